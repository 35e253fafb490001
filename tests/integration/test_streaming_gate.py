"""The stream gate over real HTTP: what the server counted proves that a cut stops it in mid-sentence."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.runner import run_group
from selective_rollout.env.prompt import PromptEnvironment
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import GateDecision
from selective_rollout.gate.streaming import StreamRule, replay_streams
from selective_rollout.policy.endpoint import Endpoint
from selective_rollout.policy.openai_client import OpenAIPolicy
from selective_rollout.policy.options import RequestLimits, SamplingParams
from selective_rollout.testing import Fault, LoopbackServer, Reply, ScriptedBrain
from selective_rollout.testing.faults import FaultContext
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Task

G, WORDS, START, EVERY = 4, 1500, 40, 20
STEPS = GateConfig(start_step=2)


def speech(rollout: str, length: int) -> Reply:
    """The same words for all but every tenth; with characters that are cut between reads."""
    words = [f"wört{i}" if i % 10 else f"own{rollout}" for i in range(length)]
    return Reply(content=" ".join(words), reasoning="well 🙂 then")


def brain(length: int = WORDS) -> ScriptedBrain:
    return ScriptedBrain(lambda request, choice, seed: speech(str(seed), length))


async def run(
    server: LoopbackServer, level: Any, *, recorder: Recorder | None = None, **config: Any
) -> GroupOutcome:
    rule = StreamRule(level=level, tau=0.3, start=START, check_every=EVERY)
    endpoint = Endpoint(base_url=server.base_url, api_key=server.api_key or "", model=server.model)
    sampling = SamplingParams(extra_body={"return_token_ids": True})
    limits = RequestLimits(backoff_s=0.01)
    async with OpenAIPolicy(endpoint, sampling, limits=limits) as policy, asyncio.timeout(60):
        return await run_group(
            Task("g", "speak"),
            policy=policy,
            environment=PromptEnvironment,
            gate=STEPS,
            config=RunConfig(group_size=G, max_steps=2, stream=rule, **{"mode": "enforce", **config}),
            recorder=recorder,
        )


def seen(decisions: tuple[GateDecision, ...]) -> list[tuple[object, ...]]:
    return [(d.step, d.reason, d.distance, d.facts) for d in decisions]


@pytest.mark.parametrize("level", ["token", "char"])
async def test_a_cut_stops_the_server_in_mid_sentence(level: str) -> None:
    with LoopbackServer(brain(), step_delay_s=0.002) as server:
        outcome = await run(server, level)
        counters = await server.until(lambda now: now.in_flight == 0)
    assert outcome.stream_cut_at == START
    assert outcome.ledger.completion <= counters.completion_tokens
    assert counters.completion_tokens < G * WORDS / 2
    assert counters.running == 0
    assert counters.requests == G, "no request follows a cut"
    assert counters.disconnects == G
    assert counters.tokens_after_disconnect <= G, "at most the step that was running"


async def test_decisions_do_not_depend_on_how_the_network_cuts_the_stream() -> None:
    decisions = []
    for framing in ("mixed", "plain"):
        with LoopbackServer(brain(80), framing=framing) as server:  # type: ignore[arg-type]
            decisions.append((await run(server, "char", mode="observe")).stream_decisions)
    assert seen(decisions[0]) == seen(decisions[1])
    assert len(decisions[0]) > 0


async def test_a_recorded_run_replays(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with LoopbackServer(brain(80)) as server, Recorder(path, record_completions=True) as recorder:
        await run(server, "token", recorder=recorder, mode="observe")
        counters = server.counters
    [group] = read_groups(tmp_path)
    assert sum(len(member.symbols) for member in group.streams.values()) == counters.completion_tokens
    assert group.begin.stream is not None
    rule = StreamRule(level="token", tau=0.3, start=START, check_every=EVERY)
    again = replay_streams(rule, STEPS, [group.streams[g] for g in range(G)], sampling=group.group.sampling)
    assert seen(again) == seen(group.stream_decisions)


async def test_a_stream_that_broke_off_and_was_asked_again_is_absent_from_there_on() -> None:
    def once(context: FaultContext) -> Fault | None:
        return Fault("reset_mid_response", after_steps=20) if context.ordinal == 0 else None

    with LoopbackServer(brain(80), faults=once) as server:
        outcome = await run(server, "token", mode="observe")
    [decision] = outcome.stream_decisions
    assert decision.facts is not None
    assert decision.fires
    assert len(decision.facts.members) == G - 1
    assert [rollout.status.value for rollout in outcome.group.rollouts] == ["truncated"] * G


async def test_llama_cpp_without_ids_is_compared_by_character() -> None:
    with LoopbackServer(brain(), "llama.cpp", step_delay_s=0.002) as server:
        outcome = await run(server, "char")
        counters = await server.until(lambda now: now.in_flight == 0)
    assert outcome.stream_cut_at == START
    assert counters.running == 0
    assert counters.completion_tokens < G * WORDS / 2
