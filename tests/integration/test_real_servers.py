"""What docs/servers.md says, held against the real servers: llama.cpp (llm) and vLLM on the CPU (vllm).

Each test prints what it measured; `pytest -rP` shows it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from selective_rollout.engine.batch import run_groups
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.ledger import Ledger
from selective_rollout.engine.reconcile import reconcile
from selective_rollout.engine.runner import Workshop
from selective_rollout.env.prompt import PromptEnvironment
from selective_rollout.errors import PrerequisiteError
from selective_rollout.gate.config import GateConfig
from selective_rollout.policy import Endpoint, Meter, RequestInfo, RequestLimits, SamplingParams, abort
from selective_rollout.policy.doctor import check_endpoint
from selective_rollout.policy.doctor_verdicts import fit, judge
from selective_rollout.policy.openai_client import OpenAIPolicy
from selective_rollout.policy.server_metrics import ServerCounters, read_when_idle
from selective_rollout.policy.stream import Assembly
from selective_rollout.policy.transport import Transport
from selective_rollout.testing.local_model import LocalModel
from selective_rollout.testing.local_vllm import LocalVllm
from selective_rollout.testing.weights import fetch_weights
from selective_rollout.types import Task

ROOT = Path(__file__).resolve().parents[2]
VLLM_PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
G = 4
LONG = 300
STORY: Any = [{"role": "user", "content": "Write a long story about a house."}]
PATIENT = RequestLimits(first_token_timeout_s=240, stall_timeout_s=240)
"""A shared machine of two cores makes a token wait for seconds now and then."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("llama.cpp", marks=pytest.mark.llm),
        pytest.param("vLLM", marks=pytest.mark.vllm),
    ],
)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, Endpoint]]:
    """A real server and its name."""
    if request.param == "llama.cpp" and importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("needs the llm extra")
    if request.param == "vLLM" and not VLLM_PYTHON.exists():
        pytest.skip("needs the environment that make test-vllm makes")
    try:
        fetch_weights()
    except PrerequisiteError as error:
        pytest.skip(str(error))
    model = (
        LocalModel(slots=G, context_per_slot=768, threads=1)
        if request.param == "llama.cpp"
        else LocalVllm(VLLM_PYTHON)
    )
    with model:
        yield request.param, Endpoint(base_url=model.base_url, api_key=model.api_key, model=model.model)


def policy_of(endpoint: Endpoint) -> OpenAIPolicy:
    sampling = SamplingParams(temperature=1.0, max_tokens=LONG, extra_body={"ignore_eos": True})
    return OpenAIPolicy(endpoint, sampling, limits=PATIENT)


async def counters(endpoint: Endpoint) -> ServerCounters:
    transport = Transport(endpoint)
    try:
        found = await read_when_idle(transport, 60)
    finally:
        await transport.aclose()
    assert found is not None
    assert found.running == 0
    return found


async def cut_midway(policy: OpenAIPolicy, endpoint: Endpoint) -> tuple[list[Meter], float]:
    """Cancel a group once each member has received some tokens; returns seconds until the server was idle."""
    meters = [Meter() for _ in range(G)]
    infos = [RequestInfo("story", i, 1, seed=i, meter=meter) for i, meter in enumerate(meters)]
    tasks = [asyncio.create_task(policy.complete(STORY, info)) for info in infos]
    while not all(meter.completion >= 5 for meter in meters):
        assert not any(task.done() for task in tasks), [task for task in tasks if task.done()]
        await asyncio.sleep(0.005)
    cut_at = time.monotonic()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    transport = Transport(endpoint)
    await read_when_idle(transport, 60)
    await transport.aclose()
    return meters, time.monotonic() - cut_at


def documented(column: str) -> dict[str, str]:
    """Check -> verdict of one column of the compatibility table."""
    table = [
        [cell.strip() for cell in line.strip("|\n ").split("|")]
        for line in (ROOT / "docs" / "servers.md").read_text().splitlines()
        if line.startswith("|")
    ]
    head = next(row for row in table if row[0] == "check")
    place = next(i for i, name in enumerate(head) if name.startswith(column))
    rows = table[table.index(head) + 2 :]
    return {row[0]: row[place].split(":")[0] for row in rows if len(row) == len(head)}


async def test_the_checkup_finds_what_the_table_says(server: tuple[str, Endpoint]) -> None:
    name, endpoint = server
    report = await check_endpoint(endpoint, timeout_s=120, within_s=600)
    checks = judge(report)
    for check in checks:
        print(f"{name}: {check.name}: {check.verdict}: {check.finding}")
    found, said = {check.name: check.verdict for check in checks}, documented(name)
    assert found.keys() == said.keys()
    if name == "llama.cpp":  # it hangs up after a stream; whether the next request meets that is a race
        del found["keep-alive"], said["keep-alive"]
    assert found == said
    assert fit(checks)


async def test_closing_the_connection_stops_the_group(server: tuple[str, Endpoint]) -> None:
    name, endpoint = server
    before = await counters(endpoint)
    async with policy_of(endpoint) as policy:
        policy._aborter.works = False
        meters, idle_after_s = await cut_midway(policy, endpoint)
    generated = (await counters(endpoint)).since(before).completion
    received = sum(meter.received.completion or 0 for meter in meters)
    print(f"{name}: close: idle after {idle_after_s:.3f} s, {received} received, {generated} generated")
    assert {meter.received.source for meter in meters} == {"client"}
    assert generated is not None
    assert received <= generated < received + 10 * G < LONG


async def test_a_cut_ends_by_abort_with_exact_usage_where_that_is_offered(
    server: tuple[str, Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, endpoint = server
    monkeypatch.setattr(abort, "_ORDER_TIMEOUT_S", 60.0)
    monkeypatch.setattr(abort, "_END_TIMEOUT_S", 60.0)
    before = await counters(endpoint)
    async with policy_of(endpoint) as policy:
        meters, idle_after_s = await cut_midway(policy, endpoint)
        offered = policy._aborter.works
    generated = (await counters(endpoint)).since(before).completion
    received = sum(meter.completion for meter in meters)
    known = sum(meter.received.completion or 0 for meter in meters)
    print(
        f"{name}: abort: idle after {idle_after_s:.3f} s, {received} received, {known} booked, "
        f"{generated} generated"
    )
    assert offered == (name == "vLLM")
    if offered:
        assert {meter.received.source for meter in meters} == {"server"}
        assert all(meter.received.prompt for meter in meters)
        assert known == generated


@pytest.mark.parametrize("stream", [True, False])
async def test_usage_of_n_choices_comes_to_what_the_engine_generated(
    server: tuple[str, Endpoint], stream: bool
) -> None:
    name, endpoint = server
    before = await counters(endpoint)
    transport, assembly = Transport(endpoint), Assembly(G)
    body = {"model": endpoint.model, "messages": STORY, "max_tokens": 12, "n": G, "ignore_eos": True}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        async with transport.stream(body, {"Connection": "close"}) as chunks:
            async for chunk in chunks:
                assembly.add_chunk(chunk)
    else:
        assembly.add_response(await transport.fetch(body, {"Connection": "close"}))
    await transport.aclose()
    assembly.finish()
    usage, counted = assembly.usage(), (await counters(endpoint)).since(before)
    print(f"{name}: n={G} stream={stream}: usage {usage}, engine {counted}")
    assert counted.completion == 12 * G
    told_of_one = name == "llama.cpp" and not stream
    assert usage.completion == (12 if told_of_one else 12 * G)
    if name == "vLLM":
        assert counted.prompt == G * (usage.prompt or 0), "the engine counts a prompt once per choice"


@pytest.mark.parametrize("stream", [True, False])
async def test_the_ledger_of_a_run_agrees_with_the_server(server: tuple[str, Endpoint], stream: bool) -> None:
    name, endpoint = server
    before = await counters(endpoint)
    sampling = SamplingParams(temperature=1.0, max_tokens=24, stop=(".", ",", "'"))
    async with OpenAIPolicy(endpoint, sampling, limits=PATIENT, stream=stream, concurrency=G) as policy:
        shop = Workshop(
            policy, PromptEnvironment, GateConfig(start_step=2), RunConfig(group_size=G, max_steps=3)
        )
        ledger = await total(shop, [Task(f"t{i}", f"Describe room {i}.") for i in range(2)])
    found = reconcile(ledger, (await counters(endpoint)).since(before))
    print(f"{name}: stream={stream}: {found.describe()}; {found}")
    assert ledger.requests == ledger.sources["server"] > 0
    assert found.surplus == 0
    assert found.ledger_prompt == found.server_prompt


async def total(shop: Workshop, tasks: Sequence[Task]) -> Ledger:
    ledger = Ledger()
    async for outcome in run_groups(tasks, shop):
        ledger.merge(outcome.ledger)
    return ledger
