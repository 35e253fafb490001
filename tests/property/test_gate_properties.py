"""Any order of arrival gives the decisions that lockstep gives, and recorded facts replay to them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from selective_rollout.distance.reference import mean_distance
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import GateDecision, Reason, judge
from selective_rollout.gate.group import GroupGate


@dataclass(frozen=True)
class Script:
    """One rollout's life: its actions, and how it ended."""

    actions: list[str]
    fails: bool
    reward: float | None


scripts = st.lists(
    st.builds(
        Script,
        st.lists(st.sampled_from(["a", "b", ""]), max_size=7),
        st.booleans(),
        st.sampled_from([None, 0.0, 1.0]),
    ),
    min_size=2,
    max_size=5,
)
rules = st.builds(
    GateConfig,
    start_step=st.integers(1, 5),
    tau=st.sampled_from([0.05, 0.2, 0.25, 0.5, 1.0]),
    check_every=st.sampled_from([None, 1, 2]),
    padding=st.sampled_from(["end", "none"]),
    min_members=st.sampled_from([None, 2]),
)


def events_of(rollout: int, script: Script) -> list[tuple[str, int, str | None]]:
    """A rollout's events; its last action and its normal end are one event."""
    if script.fails or not script.actions:
        steps = [("report", rollout, action) for action in script.actions]
        return [*steps, ("fail" if script.fails else "finish", rollout, None)]
    *first, last = script.actions
    return [*[("report", rollout, action) for action in first], ("finish", rollout, last)]


def run(config: GateConfig, group: list[Script], order: list[int]) -> tuple[GateDecision, ...]:
    """Feed the events, the next one of each rollout in the given order of rollouts."""
    gate = GroupGate(config, len(group))
    queues = [events_of(i, script) for i, script in enumerate(group)]
    for rollout in order:
        kind, _, action = queues[rollout].pop(0)
        if kind == "report":
            gate.report(rollout, action)
        elif kind == "fail":
            gate.fail(rollout)
        else:
            gate.finish(rollout, group[rollout].reward, action=action)
    return gate.checks


def lockstep(group: list[Script]) -> list[int]:
    lengths = [len(events_of(i, script)) for i, script in enumerate(group)]
    return [i for k in range(max(lengths)) for i, length in enumerate(lengths) if k < length]


@given(rules, scripts, st.randoms(use_true_random=False))
def test_arrival_order_does_not_matter(config: GateConfig, group: list[Script], rng: random.Random) -> None:
    order = lockstep(group)
    expected = run(config, group, order)
    shuffled = order.copy()
    rng.shuffle(shuffled)
    assert [without_bounds(d) for d in run(config, group, shuffled)] == [without_bounds(d) for d in expected]


def without_bounds(decision: GateDecision) -> tuple[object, ...]:
    return decision.fires, decision.reason, decision.step, decision.distance, decision.facts


@given(rules, scripts)
def test_every_decision_replays_from_its_own_facts(config: GateConfig, group: list[Script]) -> None:
    for decision in run(config, group, lockstep(group)):
        assert decision.facts is not None
        assert judge(config, decision.facts) is decision.reason
        assert decision.fires == (decision.reason is Reason.FIRED)


@given(rules, scripts)
def test_decisions_follow_the_definition(config: GateConfig, group: list[Script]) -> None:
    """A readable second opinion on every check, straight from the definition of positions."""
    checks = run(config, group, lockstep(group))
    assert [d.step for d in checks] == sorted({d.step for d in checks if d.step is not None})
    for decision in checks:
        k = decision.step
        assert k is not None
        assert config.is_check(k)
        present = [i for i, s in enumerate(group) if not (s.fails and len(s.actions) < k)]
        running = [i for i in present if group[i].fails or len(group[i].actions) > k]
        assert decision.facts is not None
        assert list(decision.facts.members) == present
        assert list(decision.facts.running) == running
        mean = mean_distance([group[i].actions for i in present], k, config.padding)
        if mean is not None:
            assert decision.facts.below_tau == (float(mean) < config.tau)
            if decision.fires:
                assert decision.distance == float(mean)
        if decision.fires:
            known = {group[i].reward for i in present if i not in running} - {None}
            assert len(known) <= 1
            assert running
