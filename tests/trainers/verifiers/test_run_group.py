"""`run_group` on verifiers' real environment, rollouts and interception server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from selective_rollout.engine.training import TrainingGate
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.verifiers import STOP_CONDITION, run_group
from selective_rollout.testing import LoopbackServer
from selective_rollout.types import RolloutStatus

G = 4
RULE = GateConfig(start_step=3, tau=0.12)
Make = Callable[..., Any]


def enforcing(**options: Any) -> TrainingGate:
    return TrainingGate(RULE, mode="enforce", certified=True, **options)


async def test_a_group_that_acts_alike_is_cut_and_one_that_does_not_runs_on(
    server: LoopbackServer, ask: Make, make_env: Make, make_task: Make, toys: SimpleNamespace
) -> None:
    gate, env = enforcing(), make_env()
    async with env.serving():
        alike = await run_group(gate, env, make_task("a="), ask(server), group_id="alike", size=G)
        asked = server.counters.requests
        apart = await run_group(
            gate, env, make_task("b", rewards=[0, 1]), ask(server), group_id="apart", size=G
        )
    assert not alike.trainable
    assert alike.outcome.cut_at == RULE.start_step
    assert {episode.traces[0].stop_condition for episode in alike.episodes} == {STOP_CONDITION}
    assert all(episode.ok for episode in alike.episodes)
    assert asked < G * toys.turns
    assert apart.trainable
    assert server.counters.requests - asked == G * toys.turns
    assert {episode.traces[0].stop_condition for episode in apart.episodes} == {"agent_completed"}
    assert [rollout.reward for rollout in apart.outcome.group.rollouts] == [0, 1, 1, 1]
    assert {episode.group.id for episode in apart.episodes} == {"apart"}
    assert gate.meter.metrics()["gate/cut"] == 1.0
    assert gate.meter.signal == 1


async def test_without_enforcing_every_call_is_made_and_the_would_be_cut_is_known(
    server: LoopbackServer, ask: Make, make_env: Make, make_task: Make, toys: SimpleNamespace
) -> None:
    gate, env = TrainingGate(RULE), make_env()
    async with env.serving():
        result = await run_group(gate, env, make_task("a="), ask(server), group_id="g", size=G)
    assert server.counters.requests == G * toys.turns
    assert result.trainable
    assert result.outcome.would_cut_at == RULE.start_step
    assert {len(rollout.steps) for rollout in result.outcome.group.rollouts} == {toys.turns}
    assert result.outcome.group.rollouts[0].actions == tuple(f"go {turn}" for turn in range(toys.turns))
    assert result.outcome.ledger.completion == server.counters.completion_tokens


async def test_a_cut_closes_the_requests_in_flight_and_scores_nothing(
    slow_server: LoopbackServer,
    ask: Make,
    make_env: Make,
    make_task: Make,
    toys: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_the_check = G * RULE.start_step + G - 1

    async def last_one_waits(member: int, turn: int) -> None:
        if (member, turn) == (G - 1, RULE.start_step):
            await slow_server.until(lambda counters: counters.requests == at_the_check)

    monkeypatch.setattr(toys.harness, "before_turn", staticmethod(last_one_waits))
    gate, env = enforcing(), make_env()
    async with env.serving():
        result = await run_group(gate, env, make_task("long="), ask(slow_server), group_id="g", size=G)
        counters = await slow_server.until(lambda counters: counters.in_flight == 0)
    assert not result.trainable
    assert counters.disconnects == G - 1
    assert all(episode.ok and not episode.errors for episode in result.episodes)
    assert {episode.traces[0].stop_condition for episode in result.episodes} == {STOP_CONDITION}
    assert toys.task.scored == []
    assert {rollout.status for rollout in result.outcome.group.rollouts} == {RolloutStatus.CUT}
    assert {rollout.reward for rollout in result.outcome.group.rollouts} == {None}


async def test_a_rollout_that_breaks_counts_as_come_and_the_others_go_on(
    server: LoopbackServer, ask: Make, make_env: Make, make_task: Make
) -> None:
    gate, env = enforcing(), make_env()
    async with asyncio.timeout(20), env.serving():
        alike = await run_group(gate, env, make_task("a=", breaks=[2]), ask(server), group_id="g", size=G)
        all_break = await run_group(
            gate, env, make_task("c=", breaks=[0, 1, 2, 3]), ask(server), group_id="h", size=G
        )
    statuses = [rollout.status for rollout in alike.outcome.group.rollouts]
    assert statuses.count(RolloutStatus.FAILED) == 1
    assert alike.outcome.cut_at == RULE.start_step
    failed = next(rollout for rollout in alike.outcome.group.rollouts if rollout.failure is not None)
    assert failed.failure is not None
    assert "the program died" in failed.failure.message
    assert all_break.trainable
    assert {rollout.status for rollout in all_break.outcome.group.rollouts} == {RolloutStatus.FAILED}


async def test_the_same_task_runs_in_two_groups_at_once(
    server: LoopbackServer, ask: Make, make_env: Make, make_task: Make
) -> None:
    gate, env, task = enforcing(), make_env(), make_task("a=")
    async with env.serving():
        first, second = await asyncio.gather(
            run_group(gate, env, task, ask(server), group_id="first", size=G),
            run_group(gate, env, task, ask(server), group_id="second", size=G),
        )
    assert (first.outcome.cut_at, second.outcome.cut_at) == (3, 3)
    assert first.outcome.group.task_id == second.outcome.group.task_id == task.key
    traces = {episode.traces[0].id for result in (first, second) for episode in result.episodes}
    assert len(traces) == 2 * G


async def test_an_attempt_that_is_retried_counts_as_failed(
    server: LoopbackServer,
    ask: Make,
    make_env: Make,
    make_task: Make,
    toys: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(toys.harness, "crew", 2)
    gate = TrainingGate(RULE)
    env = make_env(retries={"max_retries": 1})
    async with asyncio.timeout(20), env.serving():
        result = await run_group(
            gate, env, make_task("b", breaks=[0], rewards=[1]), ask(server), group_id="g", size=2
        )
    assert all(episode.ok for episode in result.episodes)
    first, second = result.outcome.group.rollouts
    assert first.status is RolloutStatus.FAILED
    assert first.reward is None
    assert second.reward == 1


async def test_an_equal_seed_for_all_is_declared_and_keeps_the_gate_shut(
    server: LoopbackServer, ask: Make, make_env: Make, make_task: Make
) -> None:
    gate, env = enforcing(), make_env()
    async with env.serving():
        result = await run_group(gate, env, make_task("a="), ask(server, seed=7), group_id="g", size=G)
    assert result.trainable
    assert result.outcome.decisions[0].reason == "identical_sampling"


async def test_a_cancelled_run_leaves_nobody_behind(
    slow_server: LoopbackServer, ask: Make, make_env: Make, make_task: Make
) -> None:
    gate, env = enforcing(), make_env()
    async with env.serving():
        running = asyncio.create_task(
            run_group(gate, env, make_task("b"), ask(slow_server), group_id="g", size=G)
        )
        await slow_server.until(lambda counters: counters.requests >= G)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await slow_server.until(lambda counters: counters.in_flight == 0)
    assert gate.meter.groups == 1
    assert gate.meter.unlabelled == 1


async def test_an_agent_that_is_not_there_is_refused(
    server: LoopbackServer, ask: Make, make_env: Make, make_task: Make
) -> None:
    env = make_env()
    with pytest.raises(ConfigError, match="has the agents agent"):
        await run_group(enforcing(), env, make_task("a="), ask(server), group_id="g", size=G, agent="judge")
