"""How far groups run, and which step that leaves to check at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from selective_rollout.analysis.reach import Reach
from selective_rollout.analysis.split import Split
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.group import GroupGate
from selective_rollout.trace.group_log import GroupLog
from selective_rollout.trace.reader import RecordedGroup, read_groups
from selective_rollout.trace.recorder import Recorder


def recorded(
    folder: Path, lengths: Sequence[int], *, checked_at: int | None = None, stopped: bool = False
) -> list[RecordedGroup]:
    """Groups of two, the second member always a step shorter, maybe watched by a gate or stopped by it."""
    with Recorder(folder / "trace.jsonl") as recorder:
        for i, length in enumerate(lengths):
            name = f"g{i}"
            gate = GroupGate(GateConfig(start_step=checked_at or 1), 2, group_id=name)
            log = GroupLog(recorder.write, name, gate=None if checked_at is None else gate)
            log.begin(size=2, task_id=name)
            for member, steps in enumerate((length, length - 1)):
                for k in range(steps):
                    log.step(member, f"a{k}")
                if stopped:
                    log.cut(member)
                else:
                    log.finish(member, 0.0)
            log.end(outcome="drop" if stopped else None)
    return list(read_groups(folder))


def reach_of(groups: Sequence[RecordedGroup], split: Split | None = None) -> Reach:
    reach = Reach()
    if split is not None:
        assert list(reach.watch(groups, split)) == list(groups)
        return reach
    for group in groups:
        reach.add(group)
    return reach


def test_a_group_still_runs_while_one_member_goes_on(tmp_path: Path) -> None:
    reach = reach_of(recorded(tmp_path, [4, 4, 6]))
    assert [reach.running(k) for k in (0, 3, 4, 5, 6)] == [3, 3, 1, 1, 0]
    assert (reach.groups, reach.is_too_late(5), reach.is_too_late(6)) == (3, False, True)


def test_what_a_gate_stopped_says_nothing_about_where_groups_end(tmp_path: Path) -> None:
    reach = reach_of(recorded(tmp_path, [3, 3], stopped=True))
    assert reach.groups == 0
    assert reach.shortfall(10) is None


def test_a_check_that_half_of_the_groups_reach_needs_no_word(tmp_path: Path) -> None:
    assert reach_of(recorded(tmp_path, [4, 12])).shortfall(10) is None


def test_a_check_that_few_reach_is_named_with_the_step_to_try(tmp_path: Path) -> None:
    reach = reach_of(recorded(tmp_path, [5] * 7 + [12] * 3))
    assert reach.shortfall(10) == (
        "only 3 of 10 groups still run at step 10, and the others cannot be cut; "
        "try --start-step 4, where 10 of 10 still run"
    )


def test_a_check_that_nobody_reaches_says_nothing(tmp_path: Path) -> None:
    reach = reach_of(recorded(tmp_path, [5] * 6 + [8] * 14))
    assert reach.shortfall(10) == (
        "hardly any group (0 of 20) still runs at step 10, so nothing can be said about a check there; "
        "try --start-step 4, where 20 of 20 still run"
    ), "only 14 of 20 go beyond step 5"


def test_the_step_of_the_recorded_gate_is_tried_first(tmp_path: Path) -> None:
    reach = reach_of(recorded(tmp_path, [5] * 9, checked_at=2))
    assert "try --start-step 2, where the recorded gate decided" in str(reach.shortfall(10))
    assert reach.to_dict(10) == {
        "step": 10,
        "groups": 9,
        "still_running": 0,
        "too_late": True,
        "try_start_step": 2,
    }


def test_a_recorded_gate_that_came_too_late_itself_is_no_advice(tmp_path: Path) -> None:
    reach = reach_of(recorded(tmp_path, [5] * 9, checked_at=10))
    assert reach.suggested == 4


def test_a_step_is_chosen_on_the_part_that_is_free_to_choose_on(tmp_path: Path) -> None:
    split = Split(0.5)
    parts = [split.part(f"g{i}") for i in range(40)]
    assert parts.count("certify") > 10, "on all groups another step would be suggested"
    reach = reach_of(recorded(tmp_path, [7 if part == "choose" else 4 for part in parts]), split)
    assert (reach.groups, reach.suggested) == (40, 6)


def test_without_such_a_part_nothing_is_suggested(tmp_path: Path) -> None:
    reach = reach_of(recorded(tmp_path, [4] * 9), Split(0.0))
    assert reach.suggested is None
    assert str(reach.shortfall(10)).endswith("look where the rollouts end, and check earlier")


def test_groups_of_one_step_leave_no_step_to_try(tmp_path: Path) -> None:
    assert reach_of(recorded(tmp_path, [1, 1, 1])).suggested is None
