"""Replaying recorded groups: what live gates decided, at every threshold at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selective_rollout.analysis.replay import replay
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import Reason
from selective_rollout.gate.group import GroupGate
from selective_rollout.types import Group, Rollout, RolloutStatus, Step

DONE, FAILED, RUNNING = RolloutStatus.FINISHED, RolloutStatus.FAILED, RolloutStatus.RUNNING


def rollout(index: int, actions: str, reward: float | None = None, status: RolloutStatus = DONE) -> Rollout:
    steps = tuple(Step(k, action) for k, action in enumerate(actions, start=1))
    return Rollout(index, steps, status, reward)


def group(*rollouts: Rollout, size: int | None = None) -> Group:
    return Group("g", size or len(rollouts), rollouts, "g")


def test_the_smallest_tau_that_cuts_lies_just_above_the_distance() -> None:
    replayed = replay(group(rollout(0, "abcde"), rollout(1, "abxde")), GateConfig(start_step=4))
    assert replayed.smallest_tau == 0.25
    assert replayed.fires_at(0.25) is None, "strictly below"
    assert replayed.fires_at(0.26) == 4


def test_later_checks_count_for_the_taus_that_the_first_one_did_not_satisfy() -> None:
    rule = GateConfig(start_step=2, check_every=2)
    replayed = replay(group(rollout(0, "xbcdefg"), rollout(1, "ybcdefg")), rule)
    assert [(c.step, c.distance) for c in replayed.checks[:3]] == [(2, 0.5), (4, 0.25), (6, 1 / 6)]
    assert [replayed.fires_at(tau) for tau in (0.1, 0.2, 0.3, 0.6)] == [None, 6, 4, 2]


def test_vetoes_hold_at_any_tau() -> None:
    mixed = group(rollout(0, "a", 1.0), rollout(1, "b", 0.0), rollout(2, "aaaaa", 1.0))
    replayed = replay(mixed, GateConfig(start_step=3))
    assert [c.reason for c in replayed.checks] == [Reason.KNOWN_REWARDS_DIFFER]
    assert replayed.smallest_tau is None


def test_late_rewards_are_not_read() -> None:
    late = [replace(rollout(i, "a", float(i)), late_reward=True) for i in range(2)]
    replayed = replay(group(*late, rollout(2, "aaaaa")), GateConfig(start_step=3))
    assert replayed.fires_at(1.0) == 3


def test_members_that_never_ended_or_never_appeared_are_absent() -> None:
    sparse = group(rollout(0, "aaaa"), rollout(1, "aaaa"), rollout(2, "aa", status=RUNNING), size=4)
    assert replay(sparse, GateConfig(start_step=3)).fires_at(0.1) == 3
    lonely = group(rollout(0, "aaaa"), rollout(1, "aa", status=FAILED))
    assert [c.reason for c in replay(lonely, GateConfig(start_step=3)).checks] == [Reason.TOO_FEW_MEMBERS]


def test_traces_hold_no_tokens() -> None:
    with pytest.raises(ConfigError, match="a trace records actions, not tokens"):
        replay(group(rollout(0, "a"), rollout(1, "a")), GateConfig(level="token"))


rows = st.lists(
    st.tuples(st.text("ab", max_size=7), st.sampled_from([None, 0.0, 1.0]), st.booleans()),
    min_size=2,
    max_size=5,
)


@given(rows, st.sampled_from([None, 1, 2]), st.sampled_from([0.05, 0.2, 0.25, 0.5, 1.0]), st.integers(1, 5))
def test_a_replay_agrees_with_the_live_gate(
    rows: list[tuple[str, float | None, bool]], every: int | None, tau: float, start: int
) -> None:
    rule = GateConfig(start_step=start, check_every=every, tau=tau)
    recorded = group(
        *(rollout(i, a, None if f else r, FAILED if f else DONE) for i, (a, r, f) in enumerate(rows))
    )
    live = GroupGate(rule, len(rows))
    for index, (actions, reward, fails) in enumerate(rows):
        for action in actions[:-1] if not fails else actions:
            live.report(index, action)
        if fails:
            live.fail(index)
        else:
            live.finish(index, reward, action=actions[-1] if actions else None)
    expected = live.fired.step if live.fired is not None else None
    assert replay(recorded, rule).fires_at(tau) == expected
