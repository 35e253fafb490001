"""A live score reads what the recorded group says, in any order of arrival."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from selective_rollout.analysis.replay import replay
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.group import GroupGate
from selective_rollout.gate.score import TwoSidedScore
from selective_rollout.gate.signals import SIGNALS, GroupView
from selective_rollout.types import Group, Rollout, RolloutStatus, Step

FEATURES = tuple(SIGNALS)
SCORE = TwoSidedScore(
    FEATURES,
    *((value,) * len(FEATURES) for value in (0.5, 0.5, -0.3, 0.2)),
    fail_intercept=0.1,
    success_intercept=-0.2,
)

steps = st.builds(
    lambda action, observation, error: Step(1, action, observation_hash=observation, is_error=error),
    st.sampled_from("abc"),
    st.sampled_from("xyz"),
    st.booleans(),
)
rollouts = st.lists(
    st.tuples(
        st.lists(steps, max_size=6),
        st.sampled_from([RolloutStatus.FINISHED, RolloutStatus.TRUNCATED, RolloutStatus.FAILED]),
    ),
    min_size=2,
    max_size=4,
)


def group_of(rows: list[tuple[list[Step], RolloutStatus]]) -> Group:
    members = tuple(Rollout(i, tuple(row), status) for i, (row, status) in enumerate(rows))
    return Group("g", len(rows), members, "g")


def feed(gate: GroupGate, group: Group, rng: random.Random) -> None:
    """Report the group's events, members in random turns; a last action and its end are one event."""
    queues: list[list[tuple[str, Any]]] = []
    for rollout in group.rollouts:
        events: list[tuple[str, Any]] = [("report", step) for step in rollout.steps]
        if not rollout.status.ended_normally:
            events.append(("fail", None))
        else:
            events.append(("finish", events.pop()[1] if events else None))
        queues.append(events)
    turns = [i for i, events in enumerate(queues) for _ in events]
    rng.shuffle(turns)
    for i in turns:
        kind, step = queues[i].pop(0)
        reply = {} if step is None else {"observation": step.observation_hash, "is_error": step.is_error}
        if kind == "report":
            gate.report(i, step.action, **reply)
        elif kind == "fail":
            gate.fail(i)
        else:
            gate.finish(i, action=step.action if step is not None else None, **reply)


@given(rollouts, st.integers(1, 5), st.one_of(st.none(), st.floats(0, 1)), st.randoms(use_true_random=False))
def test_live_features_are_those_of_the_recorded_group(
    rows: list[tuple[list[Step], RolloutStatus]], k: int, history_p: float | None, rng: random.Random
) -> None:
    group = group_of(rows)
    rule = GateConfig(start_step=k, tau=0.5, score=SCORE)
    gate = GroupGate(rule, group.size, history_p=history_p)
    feed(gate, group, rng)
    view = GroupView.of(group, history_p)
    expected = tuple(SIGNALS[name].value(view, k) for name in FEATURES)
    for decision in gate.checks:
        assert decision.facts is not None
        assert decision.facts.features == expected
        assert decision.p_signal == SCORE.p_signal(expected)
    replayed = replay(group, rule, history_p=history_p)
    assert [check.distance for check in replayed.checks] == [decision.p_signal for decision in gate.checks]
