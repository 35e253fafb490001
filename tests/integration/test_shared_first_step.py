"""The first step of a group as one request with n choices, against the loopback server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.runner import run_group
from selective_rollout.env.prompt import PromptEnvironment
from selective_rollout.errors import ConfigError
from selective_rollout.gate.streaming import StreamRule
from selective_rollout.policy import Endpoint, Meter, RequestInfo, RequestLimits, SamplingParams
from selective_rollout.policy.base import Completion
from selective_rollout.policy.openai_client import OpenAIPolicy
from selective_rollout.policy.options import FirstStep
from selective_rollout.testing import EchoBrain, Fault, LoopbackServer, ScriptedBrain
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Task

G = 4
HELLO = [{"role": "user", "content": "open the red door and look behind it"}]
SERVERS = ["vllm", "llama.cpp"]
BY_SEED = ScriptedBrain(lambda request, choice, seed: " ".join(["word"] * (3 + (seed or 0) % 5)) + f" {seed}")
LONG = ScriptedBrain(lambda request, choice, seed: " ".join(["step"] * 2000))


def policy_of(server: LoopbackServer, first_step: FirstStep = "shared", **options: Any) -> OpenAIPolicy:
    endpoint = Endpoint(base_url=server.base_url, api_key=server.api_key or "", model=server.model)
    limits = RequestLimits(backoff_s=0.01)
    return OpenAIPolicy(endpoint, limits=limits, first_step=first_step, **options)


def info(rollout: int, **fields: Any) -> RequestInfo:
    return RequestInfo("g1", rollout, **{"step": 1, "siblings": G, "seed": 100 + rollout} | fields)


async def ask_all(policy: OpenAIPolicy, **fields: Any) -> list[Completion]:
    return await asyncio.gather(*(policy.complete(HELLO, info(i, **fields)) for i in range(G)))


def texts(completions: list[Completion]) -> list[object]:
    return [completion.message["content"] for completion in completions]


@pytest.mark.parametrize("personality", SERVERS)
async def test_one_request_gives_each_rollout_what_it_would_have_asked_for(personality: Any) -> None:
    with LoopbackServer(BY_SEED, personality, prefix_cache=False) as server:
        async with policy_of(server, "each") as policy:
            alone = await ask_all(policy)
        before = server.counters
        async with policy_of(server) as policy:
            shared = await ask_all(policy)
        after = server.counters
    assert texts(shared) == texts(alone)
    assert after.requests - before.requests == 1
    assert [c.usage.completion for c in shared] == [c.usage.completion for c in alone]
    assert sum(c.usage.completion or 0 for c in shared) == after.completion_tokens - before.completion_tokens
    prompts = [c.usage.prompt for c in shared]
    assert prompts == [alone[0].usage.prompt, 0, 0, 0], "the prompt was read once and counts once"
    assert len({c.response_id for c in shared}) == G


async def test_only_the_first_step_of_siblings_is_shared() -> None:
    with LoopbackServer(EchoBrain()) as server:
        async with policy_of(server) as policy:
            await ask_all(policy, step=2)
            await ask_all(policy, siblings=1)
        assert server.counters.requests == 2 * G


async def test_a_rollout_that_asks_something_else_asks_for_itself() -> None:
    with LoopbackServer(EchoBrain()) as server:
        async with policy_of(server) as policy:
            other = [{"role": "user", "content": "close the window"}]
            mine, its = await asyncio.gather(policy.complete(HELLO, info(0)), policy.complete(other, info(1)))
            assert mine.message != its.message


async def test_a_late_rollout_finds_its_choice_and_a_second_visit_asks_anew() -> None:
    with LoopbackServer(BY_SEED) as server:
        async with policy_of(server) as policy:
            first = await asyncio.gather(*(policy.complete(HELLO, info(i)) for i in range(G - 1)))
            last = await policy.complete(HELLO, info(G - 1))
            assert server.counters.requests == 1
            assert [str(text).split()[-1] for text in texts([*first, last])] == ["100", "101", "102", "103"]
            await ask_all(policy)
        assert server.counters.requests == 2


@pytest.mark.parametrize(
    "fault",
    ["rate_limit", "server_error", "reset_mid_response", "error_event", "malformed_chunk", "fewer_choices"],
)
async def test_a_request_that_fails_falls_back_to_one_per_rollout(fault: Any) -> None:
    def fails(context: Any) -> Fault | None:
        return Fault(fault) if context.ordinal == 0 else None

    meters = [Meter() for _ in range(G)]
    with LoopbackServer(BY_SEED, faults=fails) as server:
        async with policy_of(server) as policy:
            done = await asyncio.gather(
                *(policy.complete(HELLO, info(i, meter=meter)) for i, meter in enumerate(meters))
            )
        counters = await server.until(lambda now: now.in_flight == 0)
    assert [str(text).split()[-1] for text in texts(list(done))] == ["100", "101", "102", "103"]
    assert counters.requests == 1 + G
    assert all(c.usage.prompt for c in done)


async def test_a_server_that_ignores_n_is_asked_for_choices_once() -> None:
    with LoopbackServer(BY_SEED, "n_ignored") as server:
        async with policy_of(server) as policy:
            await ask_all(policy)
            await ask_all(policy)
        assert server.counters.requests == 1 + 2 * G


async def test_cancelling_one_rollout_leaves_the_others_their_choices() -> None:
    meters = [Meter() for _ in range(G)]
    with LoopbackServer(BY_SEED, step_delay_s=0.1) as server:
        async with policy_of(server) as policy:
            tasks = [
                asyncio.create_task(policy.complete(HELLO, info(i, meter=meter)))
                for i, meter in enumerate(meters)
            ]
            await server.until(lambda now: bool(now.records) and now.records[0].tokens_sent >= 4)
            tasks[0].cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
        counters = await server.until(lambda now: now.in_flight == 0)
    assert [isinstance(one, asyncio.CancelledError) for one in done] == [True, False, False, False]
    assert counters.requests == 1
    kept = [one for one in done if isinstance(one, Completion)]
    assert kept[0].usage.prompt
    booked = sum(c.usage.completion or 0 for c in kept) + sum(m.wasted for m in meters) + meters[0].completion
    assert counters.completion_tokens - 1 <= booked <= counters.completion_tokens, "but for an end token"


async def test_the_last_rollout_that_leaves_stops_the_server() -> None:
    meters = [Meter() for _ in range(G)]
    with LoopbackServer(LONG, step_delay_s=0.005, max_model_len=10_000) as server:
        async with policy_of(server) as policy:
            tasks = [
                asyncio.create_task(policy.complete(HELLO, info(i, meter=meter)))
                for i, meter in enumerate(meters)
            ]
            await server.until(lambda now: bool(now.records) and now.records[0].tokens_sent >= 4 * G)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        counters = await server.until(lambda now: now.in_flight == 0)
    assert counters.disconnects == 1
    assert counters.completion_tokens < 1000 * G
    assert all(0 < meter.completion <= counters.completion_tokens for meter in meters)


async def test_a_request_that_waits_for_its_place_counts_as_not_sent() -> None:
    meter = Meter()
    with LoopbackServer(LONG, step_delay_s=0.005, max_model_len=10_000) as server:
        async with policy_of(server, concurrency=1) as policy:
            first = asyncio.create_task(policy.complete(HELLO, info(0, siblings=1)))
            await server.until(lambda now: now.in_flight == 1)
            second = asyncio.create_task(policy.complete(HELLO, info(1, meter=meter)))
            await asyncio.sleep(0)
            for task in (second, first):
                task.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
    assert (meter.started, meter.attempts) == (False, 0)


@pytest.mark.parametrize("stream", [None, StreamRule(level="token", tau=0.0, start=4, check_every=4)])
async def test_a_run_is_recorded_as_ever(tmp_path: Path, stream: StreamRule | None) -> None:
    traces = []
    for way in ("each", "shared"):
        with LoopbackServer(BY_SEED) as server, Recorder(tmp_path / way, record_completions=True) as recorder:
            sampling = SamplingParams(extra_body={"return_token_ids": True})
            endpoint = Endpoint(base_url=server.base_url, api_key=server.api_key or "", model=server.model)
            async with OpenAIPolicy(endpoint, sampling, first_step=way) as policy:
                outcome = await run_group(
                    Task("t", "speak"),
                    policy=policy,
                    environment=PromptEnvironment,
                    config=RunConfig(group_size=G, max_steps=1, stream=stream),
                    recorder=recorder,
                )
            assert server.counters.requests == (G if way == "each" else 1)
        (recorded,) = read_groups(tmp_path / way)
        traces.append(recorded)
        assert isinstance(outcome, GroupOutcome)
    each, shared = traces
    assert [[s.action for s in r.steps] for r in each.group.rollouts] == [
        [s.action for s in r.steps] for r in shared.group.rollouts
    ]
    assert each.streams == shared.streams
    assert [(d.step, d.distance) for d in each.stream_decisions] == [
        (d.step, d.distance) for d in shared.stream_decisions
    ]


def test_choices_cannot_be_told_apart_without_a_stream() -> None:
    endpoint = Endpoint(base_url="http://127.0.0.1:1/v1", model="m")
    with pytest.raises(ConfigError, match="first_step shared needs a stream"):
        OpenAIPolicy(endpoint, first_step="shared", stream=False)
    with pytest.raises(ConfigError, match="each or shared"):
        OpenAIPolicy(endpoint, first_step="both")  # type: ignore[arg-type]
