"""A real small model under the real client and engine: serving, constraints, stopping, cleaning up."""

import asyncio
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.runner import run_group
from selective_rollout.errors import PrerequisiteError
from selective_rollout.policy import Endpoint, Meter, RequestInfo, SamplingParams
from selective_rollout.policy.openai_client import OpenAIPolicy
from selective_rollout.testing import local_model
from selective_rollout.testing.local_model import LocalModel
from selective_rollout.testing.small_agent import (
    SMALL_AGENT_SAMPLING,
    SMALL_AGENT_TEMPLATE,
    FindEnvironment,
    find_tasks,
    small_agent_opening,
)
from selective_rollout.testing.weights import fetch_weights
from selective_rollout.types import RolloutStatus

pytestmark = [
    pytest.mark.llm,
    pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="needs the llm extra"),
]
SLOTS = 4
LONG_ANSWER = 400
QUESTION: Any = [{"role": "user", "content": "Write a long story about a house."}]


@pytest.fixture(scope="module")
def weights() -> Path:
    try:
        return fetch_weights()
    except PrerequisiteError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def model(weights: Path) -> Iterator[LocalModel]:
    with LocalModel(weights, slots=SLOTS, context_per_slot=512) as running:
        yield running


def policy_of(model: LocalModel, sampling: SamplingParams = SMALL_AGENT_SAMPLING) -> OpenAIPolicy:
    endpoint = Endpoint(base_url=model.base_url, api_key=model.api_key, model=model.model)
    return OpenAIPolicy(endpoint, sampling, constrain="grammar", concurrency=SLOTS, keep_alive=False)


def counter(model: LocalModel, name: str) -> int:
    """One of the server's own counters."""
    url = model.base_url.removesuffix("/v1") + "/metrics"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {model.api_key}"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        found = re.search(rf"^llamacpp:{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None, name
    return int(float(found[1]))


async def wait_idle(model: LocalModel, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while await asyncio.to_thread(counter, model, "requests_processing"):
            await asyncio.sleep(0.02)


async def test_answers_n_choices_to_those_who_know_the_key(model: LocalModel) -> None:
    settings: dict[str, Any] = {"base_url": model.base_url, "max_retries": 0, "timeout": 120.0}
    fields: dict[str, Any] = {"model": model.model, "messages": QUESTION, "max_tokens": 4, "n": SLOTS}
    async with openai.AsyncOpenAI(api_key=model.api_key, **settings) as client:
        assert [served.id async for served in client.models.list()] == [model.model]
        answer = await client.chat.completions.create(**fields)
        assert len(answer.choices) == SLOTS
        assert any(choice.message.content for choice in answer.choices)
    async with openai.AsyncOpenAI(api_key="guessed", **settings) as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.chat.completions.create(**fields)


async def test_small_agent_acts_and_its_history_is_read_once(weights: Path) -> None:
    (task,) = find_tasks(1)
    config = RunConfig(group_size=SLOTS, max_steps=3, concurrency=SLOTS, temperature=0.3)
    with LocalModel(weights, slots=SLOTS, context_per_slot=512, chat_template=SMALL_AGENT_TEMPLATE) as model:
        async with policy_of(model) as policy:
            outcome = await run_group(
                task,
                policy=policy,
                environment=FindEnvironment,
                config=config,
                opening=small_agent_opening,
            )
        read, reused = (counter(model, f"prompt_tokens_{kind}total") for kind in ("", "cached_"))
    for rollout in outcome.group.rollouts:
        assert rollout.status in (RolloutStatus.TRUNCATED, RolloutStatus.FINISHED)
        assert [step.is_error for step in rollout.steps] == [False] * len(rollout.steps)
        assert all(step.usage and step.usage.source == "server" for step in rollout.steps)
    assert reused > read / 2, "from the second step on, only what is new is read"


async def test_leaving_stops_the_generation(model: LocalModel) -> None:
    before = counter(model, "tokens_predicted_total")
    meters = [Meter() for _ in range(SLOTS)]
    async with policy_of(model, SamplingParams(max_tokens=LONG_ANSWER)) as policy:
        infos = [RequestInfo("story", i, 1, seed=i, meter=meter) for i, meter in enumerate(meters)]
        tasks = [asyncio.create_task(policy.complete(QUESTION, info)) for info in infos]
        while not all(meter.completion for meter in meters):
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        assert {type(end) for end in await asyncio.gather(*tasks, return_exceptions=True)} == {
            asyncio.CancelledError
        }
    await wait_idle(model, within_s=120)
    generated = counter(model, "tokens_predicted_total") - before
    received = sum(meter.completion for meter in meters)
    assert received <= generated < SLOTS * LONG_ANSWER / 2


def test_broken_weights_are_one_clear_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF, or is it?")
    with pytest.raises(PrerequisiteError, match=r"broken\.gguf does not start: gguf_init") as caught:
        LocalModel(tmp_path / "broken.gguf").__enter__()
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_leaving_amid_an_answer_is_quick_and_leaves_nothing_behind(
    weights: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_model, "_STOP_TIMEOUT_S", 60.0)
    with LocalModel(weights, slots=1) as model:
        assert model._child is not None
        process = model._child.process
        client = openai.OpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0)
        answer: Any = client.chat.completions.create(model=model.model, messages=QUESTION, stream=True)
        next(iter(answer))
        left_at = time.monotonic()
    assert time.monotonic() - left_at < 15.0, "it waits for nobody's answer"
    assert process is not None
    assert process.returncode == 0, "it ends by itself"
    assert not is_served(model.base_url)
    answer.close()
    client.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_server_ends_when_its_owner_is_killed(weights: Path) -> None:
    program = (
        "import sys, time\n"
        "from selective_rollout.testing.local_model import LocalModel\n"
        "with LocalModel(sys.argv[1], slots=1, context_per_slot=64) as model:\n"
        "    print(model.base_url, flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program, str(weights)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        base_url = owner.stdout.readline().strip()
        assert is_served(base_url)
        os.kill(owner.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while is_served(base_url):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_served(base_url: str) -> bool:
    try:
        with urllib.request.urlopen(base_url.removesuffix("/v1") + "/health", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
