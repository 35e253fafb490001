"""A fifth of all requests goes wrong: every rollout is accounted for, nothing hangs or is left running."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from selective_rollout.engine.batch import run_groups
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.runner import Workshop
from selective_rollout.env.prompt import PromptEnvironment
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.streaming import StreamRule
from selective_rollout.policy.endpoint import Endpoint
from selective_rollout.policy.openai_client import OpenAIPolicy
from selective_rollout.policy.options import RequestLimits
from selective_rollout.testing import Fault, FaultPlan, LoopbackServer, TutorialBrain
from selective_rollout.testing.counters import CounterSnapshot
from selective_rollout.testing.faults import FAULT_KINDS
from selective_rollout.trace.reader import RecordedGroup, read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import RolloutStatus, Task

G, STEPS, START = 3, 2, 1
KINDS = [
    Fault(kind, after_steps=2, delay_s=0.02, retry_after_s=0.02 if kind == "rate_limit" else 0.0)
    for kind in FAULT_KINDS
]
LIMITS = RequestLimits(backoff_s=0.005, stall_timeout_s=1.0, first_token_timeout_s=30.0)


async def run(server: LoopbackServer, path: Path, groups: int, **config: object) -> list[GroupOutcome]:
    tasks = [Task(f"g{i}", f"question {i}") for i in range(groups)]
    settings = RunConfig(
        group_size=G,
        max_steps=STEPS,
        concurrency=24,
        **{"mode": "enforce", **config},  # type: ignore[arg-type]
    )
    endpoint = Endpoint(base_url=server.base_url, api_key=server.api_key or "", model=server.model)
    async with OpenAIPolicy(endpoint, limits=LIMITS, concurrency=24) as policy, asyncio.timeout(300):
        with Recorder(path) as recorder:
            shop = Workshop(policy, PromptEnvironment, GateConfig(start_step=START), settings, recorder)
            return [outcome async for outcome in run_groups(tasks, shop, certified=True)]


def check_accounts(
    outcomes: list[GroupOutcome], recorded: list[RecordedGroup], counters: CounterSnapshot
) -> None:
    """The outcomes, the trace and the server's counters say the same, and nothing is open anywhere."""
    assert len(outcomes) == len(recorded)
    by_id = {group.group.id: group for group in recorded}
    for outcome in outcomes:
        group = by_id[outcome.group.id]
        assert group.end is not None
        assert group.end.error is None
        assert group.end.outcome == outcome.cut_as
        ends = [(r.index, r.status, len(r.steps)) for r in outcome.group.rollouts]
        assert len(ends) == G
        assert ends == [(r.index, r.status, len(r.steps)) for r in group.group.rollouts]
        assert RolloutStatus.RUNNING not in {status for _, status, _ in ends}
        for rollout in outcome.group.rollouts:
            assert (rollout.failure is not None) == (rollout.status is RolloutStatus.FAILED)
    assert counters.in_flight == counters.running == 0
    assert counters.requests >= sum(outcome.ledger.requests for outcome in outcomes)
    assert counters.completion_tokens >= sum(outcome.ledger.completion for outcome in outcomes)


async def test_two_hundred_groups_at_a_fifth_of_faults(tmp_path: Path) -> None:
    plan = FaultPlan(rate=0.2, kinds=KINDS, seed=3, by="request")
    with LoopbackServer(TutorialBrain(0.5, STEPS), faults=plan) as server:
        outcomes = await run(server, tmp_path / "t.jsonl", 200)
        counters = await server.until(lambda now: now.in_flight == 0)
    assert len(outcomes) == 200
    check_accounts(outcomes, list(read_groups(tmp_path)), counters)
    struck = Counter(record.fault for record in counters.records)
    assert set(FAULT_KINDS) < set(struck), "every kind of fault struck"
    assert 0.15 < 1 - struck[None] / counters.requests < 0.25
    failures = Counter(
        rollout.failure.kind
        for outcome in outcomes
        for rollout in outcome.group.rollouts
        if rollout.failure is not None
    )
    assert set(failures) <= {"timeout", "protocol", "server", "connection", "overloaded", "rate_limit"}
    assert sum(failures.values()) < 0.1 * 200 * G, "retries get most requests through"
    assert sum(outcome.cut_as == "drop" for outcome in outcomes) > 0.3 * 200


@pytest.mark.filterwarnings("ignore::selective_rollout.engine.rule.UncertifiedGateWarning")
async def test_cuts_in_mid_sentence_between_faults_leave_nothing_behind(tmp_path: Path) -> None:
    """The same under a stream rule that fires often, on a server that is still loading at first."""
    plan = FaultPlan(rate=0.2, kinds=KINDS, seed=4, by="request")
    rule = StreamRule(level="char", tau=0.3, start=4, check_every=2)
    brain = TutorialBrain(0.5, STEPS)
    with LoopbackServer(brain, "llama.cpp", faults=plan, loading_s=0.1, step_delay_s=0.001) as server:
        outcomes = await run(server, tmp_path / "t.jsonl", 60, stream=rule)
        counters = await server.until(lambda now: now.in_flight == 0)
    check_accounts(outcomes, list(read_groups(tmp_path)), counters)
    assert sum(outcome.stream_cut_at is not None for outcome in outcomes) > 0.2 * 60
