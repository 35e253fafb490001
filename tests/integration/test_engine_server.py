"""The engine over real HTTP: what the server counted proves that stopping stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from selective_rollout.draws import sampling_seed
from selective_rollout.engine.batch import run_groups
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.runner import Workshop
from selective_rollout.engine.survivor import survivor_order
from selective_rollout.env.prompt import PromptEnvironment
from selective_rollout.gate.config import GateConfig
from selective_rollout.policy.endpoint import NO_KEY, Endpoint
from selective_rollout.policy.openai_client import OpenAIPolicy
from selective_rollout.policy.options import RequestLimits
from selective_rollout.testing import (
    LoopbackServer,
    Reply,
    ScriptedBrain,
    TutorialBrain,
)
from selective_rollout.types import RolloutStatus, Task

G, STEPS, START = 4, 8, 3
RULE = GateConfig(start_step=START)
LIMITS = RequestLimits(backoff_s=0.01)


@asynccontextmanager
async def policy_for(server: LoopbackServer, **options: object) -> AsyncIterator[OpenAIPolicy]:
    endpoint = Endpoint(base_url=server.base_url, api_key=server.api_key or NO_KEY, model=server.model)
    async with OpenAIPolicy(endpoint, limits=LIMITS, **options) as policy:  # type: ignore[arg-type]
        yield policy


async def run(
    server: LoopbackServer, tasks: Sequence[Task], gate: GateConfig = RULE, **config: object
) -> list[GroupOutcome]:
    settings = RunConfig(group_size=G, max_steps=STEPS, **{"mode": "enforce", **config})  # type: ignore[arg-type]
    async with policy_for(server) as policy, asyncio.timeout(60):
        shop = Workshop(policy, PromptEnvironment, gate, settings)
        return [outcome async for outcome in run_groups(tasks, shop, certified=True)]


@pytest.mark.parametrize(
    ("outcome", "requests"), [("drop", G * START), ("survivor", G * START + STEPS - START)]
)
async def test_a_cut_group_makes_no_request_too_many(outcome: str, requests: int) -> None:
    rule = GateConfig(start_step=START, outcome=outcome)  # type: ignore[arg-type]
    with LoopbackServer(TutorialBrain(1.0, STEPS)) as server:
        [done] = await run(server, [Task("g", "question")], rule, hold="all")
        counters = await server.until(lambda now: now.in_flight == 0)
    assert done.cut_at == START
    assert counters.requests == counters.for_group("g").requests == requests
    assert counters.completion_tokens == done.ledger.completion
    assert counters.disconnects == 0


async def test_followers_wait_at_the_check_while_the_leader_answers() -> None:
    rule = GateConfig(start_step=START, outcome="survivor")
    with LoopbackServer(TutorialBrain(1.0, STEPS)) as server:
        [done] = await run(server, [Task("g", "question")], rule)
        counters = await server.until(lambda now: now.in_flight == 0)
    leader = survivor_order("g", G)[0]
    assert done.survivor == leader
    assert counters.for_rollout("g", str(leader)).requests == STEPS
    assert counters.requests == STEPS + (G - 1) * START


async def test_a_cut_closes_the_requests_in_flight_and_the_server_stops_generating() -> None:
    """Rollout 0 is slow to reach the check; the others are in the middle of a long answer when it does."""

    slow = sampling_seed(0, "g", 0)

    def say(request: dict[str, object], choice: int, seed: int | None) -> Reply:
        messages = request["messages"]
        assert isinstance(messages, list)
        step = sum(message["role"] == "assistant" for message in messages) + 1
        words = 40 if seed == slow and step == START else 4000 if step > START else 1
        return Reply(content=" ".join(["go"] * words))

    rule = GateConfig(start_step=START, tau=0.5)
    with LoopbackServer(ScriptedBrain(say), step_delay_s=0.002, max_model_len=20_000) as server:
        [done] = await run(server, [Task("g", "question")], rule, hold="none")
        counters = await server.until(lambda now: now.in_flight == 0)
    assert [rollout.status for rollout in done.group.rollouts] == [RolloutStatus.CUT] * G
    assert counters.disconnects == G - 1
    assert counters.tokens_after_disconnect <= G - 1, "at most the step that was running"
    assert counters.completion_tokens < 4000, "three answers of 4000 tokens were not generated"
