"""What a group of `create_agent` agents may be trusted with: its samples, its certificate, and stopping."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason='needs pip install "selective-rollout[langchain]" langchain-openai')
pytest.importorskip(
    "langchain_openai", reason='needs pip install "selective-rollout[langchain]" langchain-openai'
)

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_openai import ChatOpenAI

from selective_rollout.errors import ConfigError
from selective_rollout.gate.certificate import Certificate, Stratum, Workload
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import Reason
from selective_rollout.gate.gate_file import write_gate_file
from selective_rollout.integrations.langchain import (
    GatedGroup,
    GroupGateMiddleware,
    IdenticalSamplingWarning,
    gated_group,
)
from selective_rollout.testing import LoopbackServer, Reply, ScriptedBrain, ToolCall

STEPS, K = 6, 3
QUESTION: Any = {"messages": [("user", "Where is the mug?")]}
DROP = GateConfig(start_step=K)
Agents = list[Any]


def walk(request: dict[str, Any], choice: int, seed: int | None) -> Reply:
    step = sum(message["role"] == "assistant" for message in request["messages"])
    if step >= STEPS:
        return Reply("On the desk.")
    return Reply(tool_calls=(ToolCall("look", f'{{"place": {step}}}'),))


def look(place: int) -> str:
    """Look at a place."""
    return "nothing here"


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer(ScriptedBrain(walk)) as running:
        yield running


def agent_of(server: LoopbackServer, *more: AgentMiddleware[Any, Any, Any], **options: Any) -> Any:
    model = ChatOpenAI(
        model=server.model,
        base_url=server.base_url,
        api_key=server.api_key,
        max_retries=0,
        default_headers={"Connection": "close"},  # its clients outlive the event loop of a test
        **options,
    )
    return create_agent(model, [look], middleware=[*more, GroupGateMiddleware()])


def enforced(gate: GateConfig, size: int = 2, **options: Any) -> GatedGroup:
    return gated_group(gate, size, mode="enforce", group_id="g", certified=True, **options)


async def run_all(group: GatedGroup, agents: Agents) -> None:
    async with group:
        runs = (group.run(i, agent.ainvoke(QUESTION)) for i, agent in enumerate(agents))
        await asyncio.wait_for(asyncio.gather(*runs), 60)


def call_all(group: GatedGroup, agents: Agents) -> None:
    with group, ThreadPoolExecutor(len(agents)) as pool:
        list(pool.map(lambda i: group.call(i, agents[i].invoke, QUESTION), range(len(agents))))


RUNNERS: dict[str, Callable[[GatedGroup, Agents], None]] = {
    "async": lambda group, agents: asyncio.run(run_all(group, agents)),
    "threads": call_all,
}


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("options", "words"), [({"seed": 7}, "with one seed"), ({"temperature": 0}, "at temperature 0")]
)
def test_copies_are_noticed_and_never_cut(
    server: LoopbackServer, runner: str, options: Any, words: str
) -> None:
    group = enforced(DROP)
    with pytest.warns(IdenticalSamplingWarning, match=words):
        RUNNERS[runner](group, [agent_of(server, **options)] * 2)
    assert group.outcome.cut_as is None
    assert group.outcome.ledger.requests == 2 * (STEPS + 1)


def test_seeds_that_differ_are_no_copies(server: LoopbackServer) -> None:
    group = enforced(DROP)
    call_all(group, [agent_of(server, seed=seed) for seed in range(2)])
    assert group.outcome.cut_at == K


class Lockstep(InMemoryCache):
    """Two agents look things up at the same time, so that neither finds what the other will be told."""

    def __init__(self) -> None:
        super().__init__()
        self._both = threading.Barrier(2)

    def lookup(self, prompt: str, llm_string: str) -> Any:
        found = super().lookup(prompt, llm_string)
        self._both.wait(60)
        return found


class OneAhead(InMemoryCache):
    """Whoever comes second looks up what the first was told."""

    def __init__(self) -> None:
        super().__init__()
        self._first = threading.Lock()
        self._is_filled = threading.Event()

    def lookup(self, prompt: str, llm_string: str) -> Any:
        if not self._first.acquire(blocking=False):
            self._is_filled.wait(60)
        return super().lookup(prompt, llm_string)

    def update(self, prompt: str, llm_string: str, return_val: Any) -> None:
        super().update(prompt, llm_string, return_val)
        self._is_filled.set()


@pytest.mark.parametrize(
    ("cache", "reasons"), [(Lockstep, [Reason.IDENTICAL_SAMPLING]), (OneAhead, [])], ids=["missed", "hit"]
)
def test_a_cache_that_answers_for_the_model_is_noticed(
    server: LoopbackServer, cache: Callable[[], InMemoryCache], reasons: list[Reason]
) -> None:
    """It is said once, before the group begins; a response out of it switches the gate off at once."""
    set_llm_cache(cache())
    try:
        with pytest.warns(IdenticalSamplingWarning, match="set_llm_cache"):
            group = enforced(DROP)
        call_all(group, [agent_of(server)] * 2)
    finally:
        set_llm_cache(None)
    assert [rollout.failure for rollout in group.outcome.group.rollouts] == [None, None]
    assert group.outcome.cut_as is None
    assert [decision.reason for decision in group.outcome.decisions] == reasons


class Renamed(AgentMiddleware[Any, Any, Any]):
    """Gives responses other ids."""

    def __init__(self, name: Callable[[int], str]) -> None:
        super().__init__()
        self._name = name

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        response = handler(request)
        for message in response.result:
            message.response_metadata["id"] = self._name(len(request.messages))
        return response


def test_a_response_that_two_rollouts_were_given_is_one_sample(server: LoopbackServer) -> None:
    group = enforced(DROP)
    agent = agent_of(server, Renamed(lambda place: f"response-{place}"))
    with pytest.warns(IdenticalSamplingWarning, match="one and the same response"):
        call_all(group, [agent] * 2)
    assert group.outcome.cut_as is None


def test_a_server_that_gives_every_response_one_id_says_nothing(server: LoopbackServer) -> None:
    group = enforced(DROP)
    own = [agent_of(server, Renamed(lambda place, i=i: f"id-of-{i}")) for i in range(2)]
    call_all(group, own)
    assert group.outcome.cut_at == K


def certificate(**changes: Any) -> Certificate:
    fields: dict[str, Any] = {
        "rule": DROP,
        "alpha": 0.15,
        "delta": 0.05,
        "n_signal": 61,
        "false_cuts": 4,
        "cuts": 21,
        "groups": 100,
        "grid": "0.005:0.300:0.005",
        "choose_share": 0.4,
        "split_seed": 7,
        "workload": Workload(group_size=2),
    }
    return Certificate(**{**fields, **changes})


def test_a_gate_file_is_enforced_as_it_was_certified(server: LoopbackServer, tmp_path: Path) -> None:
    path = tmp_path / "gate.toml"
    write_gate_file(path, certificate())
    group = gated_group(path, 2, mode="enforce")
    call_all(group, [agent_of(server)] * 2)
    assert group.outcome.cut_at == K
    gated_group(GateConfig(start_step=K, tau=0.05), 2, mode="enforce", certified=path)
    with pytest.raises(ConfigError, match="tau: 0.3 is above the certified 0.12"):
        gated_group(GateConfig(start_step=K, tau=0.3), 2, mode="enforce", certified=path)


@pytest.mark.parametrize(("kind", "cut_at"), [("clean", K), ("heat", None)])
def test_a_certificate_by_stratum_reads_the_metadata(
    server: LoopbackServer, tmp_path: Path, kind: str, cut_at: int | None
) -> None:
    strata = (Stratum("clean", 0.12, 61, 4, 5, 90),)
    write_gate_file(tmp_path / "gate.toml", certificate(strata=strata, stratum_key="type"))
    group = gated_group(tmp_path / "gate.toml", 2, mode="enforce", metadata={"type": kind})
    call_all(group, [agent_of(server)] * 2)
    assert group.outcome.cut_at == cut_at


@pytest.mark.parametrize(
    ("gate", "requests"),
    [
        (GateConfig(start_step=STEPS + 2), 56),
        (GateConfig(start_step=K, outcome="survivor"), 28),
        (DROP, 24),
    ],
    ids=["never", "survivor", "drop"],
)
async def test_requests_of_streaming_models_are_exactly_those_of_the_rule(
    server: LoopbackServer, gate: GateConfig, requests: int
) -> None:
    group = enforced(gate, 8)
    agent = agent_of(server, streaming=True, stream_usage=True)
    await run_all(group, [agent] * 8)
    counters = await server.until(lambda counters: counters.in_flight == 0)
    assert (counters.requests, counters.disconnects) == (requests, 0)
    ledger = group.outcome.ledger
    assert (ledger.requests, ledger.completion) == (requests, counters.completion_tokens)


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_run_that_is_cancelled_leaves_its_server_at_once(streaming: bool) -> None:
    took = []
    with LoopbackServer(ScriptedBrain(lambda *_: Reply("word " * 3000)), step_delay_s=0.01) as slow:
        agent = agent_of(slow, streaming=streaming)
        async with enforced(DROP, 5) as group:
            for i in range(5):  # a busy machine makes some of them late, and none early
                run = asyncio.create_task(group.run(i, agent.ainvoke(QUESTION)))
                await slow.until(lambda counters, n=i + 1: (counters.requests, counters.running) == (n, 1))
                began = time.monotonic()
                async with asyncio.timeout(60):
                    while slow.counters.disconnects == i:
                        run.cancel()  # wait_for of Python 3.11, which langchain-openai uses, may drop one
                        await asyncio.sleep(0.05)
                took.append(time.monotonic() - began)
                await asyncio.wait({run}, timeout=60)
                assert run.cancelled()
    assert min(took) < 3, "the answer takes ten times as long"
    assert slow.counters.requests == 5
    failures = [rollout.failure for rollout in group.outcome.group.rollouts]
    assert all(failure is not None and failure.kind == "cancelled" for failure in failures)
    assert group.outcome.ledger.unknown_requests == 5
