"""One group inside somebody else's loop."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.engine.training import TrainingGate, TrainingGroup
from selective_rollout.errors import GroupError, RewardError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import Reason
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import RolloutStatus, Usage

RULE = GateConfig(start_step=2, tau=0.5)


def opened(size: int = 3, **settings: object) -> TrainingGroup:
    return TrainingGate(RULE, **{"mode": "enforce", "certified": True, **settings}).open("g", size)  # type: ignore[arg-type]


def walk(group: TrainingGroup, *actions: str, rollouts: int | None = None) -> None:
    for action in actions:
        for rollout in range(rollouts or group.size):
            group.step(rollout, action)


def test_a_converged_group_stops_and_leaves_no_reward() -> None:
    group = opened()
    walk(group, "look", "go")
    assert group.stopped
    outcome = group.close(rewards=[0.0, 0.0, 1.0])
    assert not outcome.trainable
    assert outcome.cut_at == 2
    assert [rollout.reward for rollout in outcome.group.rollouts] == [None] * 3
    assert {rollout.status for rollout in outcome.group.rollouts} == {RolloutStatus.CUT}


def test_step_says_whether_to_go_on() -> None:
    group = opened(size=2)
    assert [group.step(0, "a"), group.step(1, "a"), group.step(0, "b"), group.step(1, "b")] == [True] * 3 + [
        False
    ]
    assert group.step(0, "c", usage=Usage(completion=7)) is False
    assert group.close().ledger.overrun == 7


def test_a_group_that_diverges_runs_on_and_is_scored_at_the_end() -> None:
    group = opened(size=2)
    walk(group, "look")
    group.step(0, "left")
    group.step(1, "right")
    group.finish(0)
    group.finish(1, truncated=True)
    outcome = group.close(rewards=[1, "0.5"])
    assert outcome.trainable
    assert [rollout.reward for rollout in outcome.group.rollouts] == [1.0, 0.5]
    assert outcome.group.rollouts[1].status is RolloutStatus.TRUNCATED


def test_a_reward_known_at_the_end_of_a_member_vetoes_at_that_very_check() -> None:
    group = opened(size=4)
    group.finish(0, 0.0, action="look")
    group.finish(1, 1.0, action="look")
    for rollout in (2, 3):
        walk_one(group, rollout)
    assert not group.stopped
    assert [decision.reason for decision in group.decisions] == [Reason.KNOWN_REWARDS_DIFFER]


def walk_one(group: TrainingGroup, rollout: int) -> None:
    group.step(rollout, "look")
    group.step(rollout, "look")


def test_in_observe_mode_nothing_stops_and_the_would_be_cut_is_kept() -> None:
    group = opened(mode="observe")
    walk(group, "look", "go", "take")
    for rollout in range(3):
        group.finish(rollout)
    outcome = group.close(rewards=[1, 1, 1])
    assert (outcome.trainable, outcome.would_cut_at, outcome.cut_at) == (True, 2, None)


def test_an_audited_group_runs_on() -> None:
    group = opened(audit_rate=1.0)
    walk(group, "look", "go")
    assert not group.stopped
    outcome = group.close()
    assert (outcome.audited, outcome.would_cut_at) == (True, 2)


def test_members_left_running_have_failed_and_the_gate_keeps_out() -> None:
    group = opened(size=2)
    group.step(0, "a")
    outcome = group.close(rewards=[1, 0])
    assert {rollout.status for rollout in outcome.group.rollouts} == {RolloutStatus.FAILED}
    assert [rollout.reward for rollout in outcome.group.rollouts] == [None, None]
    assert outcome.decisions == ()


def test_closing_twice_counts_once() -> None:
    gate = TrainingGate(RULE)
    group = gate.open("g", 2)
    assert group.close() is group.close()
    assert gate.meter.groups == 1


def test_a_failed_member_is_absent() -> None:
    group = opened(size=4)
    group.fail(0, "timeout", "60 s")
    for action in ("look", "go"):
        for rollout in (1, 2, 3):
            group.step(rollout, action)
    assert group.stopped
    statuses = [rollout.status for rollout in group.close().group.rollouts]
    assert statuses == [RolloutStatus.FAILED, *[RolloutStatus.CUT] * 3]


@pytest.mark.parametrize("late", ["step", "finish", "fail"])
def test_nothing_is_reported_of_a_member_that_has_ended(late: str) -> None:
    group = opened()
    group.finish(1)
    with pytest.raises(GroupError, match="rollout 1 of group 'g' has already ended"):
        {
            "step": lambda: group.step(1, "a"),
            "finish": lambda: group.finish(1),
            "fail": lambda: group.fail(1, "x"),
        }[late]()


def test_errors_name_the_rollout() -> None:
    group = opened()
    with pytest.raises(GroupError, match="rollouts 0 to 2, and no rollout 3"):
        group.step(3, "a")
    with pytest.raises(RewardError, match="rollout 0 of group 'g'"):
        group.finish(0, "good")
    group.finish(0)  # the refused reward has not ended it
    with pytest.raises(GroupError, match="2 rewards for 3 rollouts"):
        group.close(rewards=[1, 2])
    with pytest.raises(GroupError, match="it has no reward"):
        group.score(1, 1.0)


async def test_hold_all_waits_for_the_slowest() -> None:
    group = opened(size=2, hold="all")
    group.step(0, "a")
    group.step(0, "b")
    group.step(1, "a")
    group.step(1, "b")
    assert await group.permit(0) is False


def test_the_trace_holds_the_group(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder:
        gate = TrainingGate(RULE, mode="enforce", certified=True, recorder=recorder)
        gate.at(progress=0.5, policy_version=7)
        group = gate.open("g", 2, task_id="prompt-1", metadata={"type": "easy"})
        walk(group, "look", "go")
        group.close()
    (recorded,) = read_groups(tmp_path)
    assert (recorded.group.task_id, recorded.group.policy_version) == ("prompt-1", "7")
    assert recorded.end is not None
    assert (recorded.end.outcome, recorded.end.cut_at) == ("drop", 2)


def test_a_version_of_the_policy_that_nobody_told_is_unknown(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder:
        group = TrainingGate(RULE, recorder=recorder).open("g", 2)
        walk(group, "look", "go")
        group.close()
    (recorded,) = read_groups(tmp_path)
    assert recorded.group.policy_version is None


ACTIONS = st.lists(st.lists(st.sampled_from("ab"), min_size=0, max_size=4), min_size=2, max_size=4)


@given(
    rows=ACTIONS,
    order=st.randoms(use_true_random=False),
    rewards=st.lists(st.sampled_from([0, 1, None]), min_size=4, max_size=4),
)
@settings(max_examples=150)
def test_any_order_of_arrival_decides_as_lockstep_does(
    rows: list[list[str]], order: object, rewards: list[object]
) -> None:
    """Also members that overshoot: only who is ahead differs, never the verdict."""

    def verdict(turns: list[int]) -> tuple[bool, int | None]:
        group = opened(size=len(rows), mode="observe")
        left = [list(row) for row in rows]
        for rollout in turns:
            if len(left[rollout]) > 1:
                group.step(rollout, left[rollout].pop(0))
            else:
                group.finish(rollout, rewards[rollout], action=left[rollout].pop() if left[rollout] else None)
        outcome = group.close()
        return outcome.trainable, outcome.would_cut_at

    lockstep = [r for k in range(5) for r in range(len(rows)) if k < max(1, len(rows[r]))]
    shuffled = list(lockstep)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    assert verdict(lockstep) == verdict(shuffled)
