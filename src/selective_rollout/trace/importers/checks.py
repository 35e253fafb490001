"""Counting what was imported, and warning of what would spoil the statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from selective_rollout.rewards import group_label
from selective_rollout.trace.importers.columns import Columns
from selective_rollout.trace.importers.index import IndexedGroup
from selective_rollout.trace.importers.members import Members
from selective_rollout.trace.importers.report import ImportReport
from selective_rollout.trace.importers.rollouts import ImportedRollout
from selective_rollout.types import Group, RolloutStatus

_STATUS_COUNTS = {
    RolloutStatus.FAILED: "failed",
    RolloutStatus.TRUNCATED: "truncated",
    RolloutStatus.CUT: "cut",
    RolloutStatus.RUNNING: "running",
}


def tally(
    report: ImportReport, group: IndexedGroup, members: Members, late: Mapping[int, float | None]
) -> None:
    """Count one group."""
    report.groups += 1
    report.sizes[members.size] += 1
    report.late_rewards += len(late)
    if members.superseded:
        report.superseded += members.superseded
        where = members.rollouts[0].where
        report.note(where, f"group {group.id!r}: {members.superseded} earlier attempts do not count")
    for rollout in members.rollouts:
        _tally_rollout(report, rollout, late.get(rollout.index))
    rewards = (replace(r, reward=late.get(r.index, r.reward)) for r in members.rollouts)
    label = group_label(Group(group.id, members.size, tuple(rewards), group.task or group.id))
    if label.zero_variance is None:
        report.unknown += 1
    elif label.zero_variance:
        report.zero_variance += 1
    else:
        report.signal_bearing += 1


def _tally_rollout(report: ImportReport, rollout: ImportedRollout, late: float | None) -> None:
    report.rollouts += 1
    report.steps += len(rollout.steps)
    report.retried_steps += rollout.retried
    report.ghost_turns += rollout.ghosts
    report.rewards_left_out += rollout.left_out is not None
    counted = _STATUS_COUNTS.get(rollout.status)
    if counted is not None:
        setattr(report, counted, getattr(report, counted) + 1)
    if rollout.status.ended_normally:
        report.unscored += rollout.reward is None and late is None
        report.without_actions += not rollout.steps
    for problem in _problems(rollout):
        report.note(rollout.where, problem)


def _problems(rollout: ImportedRollout) -> Iterator[str]:
    if rollout.failure is not None:
        yield f"{rollout.failure.kind}: a failure of infrastructure, kept apart from behaviour"
    if rollout.left_out is not None:
        yield f"reward {rollout.left_out:g} of a rollout that is {rollout.status} left out"
    if rollout.retried:
        yield f"{rollout.retried} retried steps counted once"
    if rollout.ghosts:
        yield f"{rollout.ghosts} turns after one that its token limit had cut off left out"


def warnings(
    report: ImportReport, groups: Iterable[IndexedGroup], columns: Columns, has_late_rewards: bool
) -> list[str]:
    """What the user should know before trusting a statistic, one line each."""
    known = list(groups)
    found = [*_size_warnings(report), *_prompt_warnings(known)]
    if not columns.occurs("actions"):
        found.append(
            "no actions in any record: rewards only, so no gate can be replayed; "
            f"map actions=COLUMN ({columns.columns_seen()})"
        )
    elif not report.steps:
        found.append("NO rollout has any action; is the column of actions right?")
    if not columns.occurs("reward") and not has_late_rewards:
        found.append(
            f"no reward in any record: every group is unknown; map reward=COLUMN ({columns.columns_seen()})"
        )
    return found


def _size_warnings(report: ImportReport) -> Iterator[str]:
    if set(report.sizes) == {1}:
        yield (
            f"ALL {report.groups} groups hold a single rollout: no group has any variance; "
            "is the group id really shared by the rollouts of one prompt?"
        )
    elif len(report.sizes) > 1:
        sizes = ", ".join(f"{count} of size {size}" for size, count in sorted(report.sizes.items()))
        yield f"group sizes differ ({sizes}); for groups recorded in part, map size=COLUMN"


def _prompt_warnings(groups: Sequence[IndexedGroup]) -> Iterator[str]:
    mixed = [group.id for group in groups if len(group.prompts) > 1]
    if mixed:
        yield f"{_some(mixed)} hold rollouts of different prompts; is the group column right?"
    by_prompt: dict[bytes, list[IndexedGroup]] = {}
    by_task: dict[str, set[bytes]] = {}
    for group in groups:
        for prompt in group.prompts if len(group.prompts) == 1 else ():
            by_prompt.setdefault(prompt, []).append(group)
            if group.task is not None:
                by_task.setdefault(group.task, set()).add(prompt)
    shared = [same for same in by_prompt.values() if len(same) > 1 and any(g.task is None for g in same)]
    if shared:
        yield (
            f"{sum(map(len, shared))} groups share {len(shared)} prompts and have no task id: groups of one "
            "prompt are not independent; map task=COLUMN"
        )
    differing = [task for task, prompts in by_task.items() if len(prompts) > 1]
    if differing:
        yield (
            f"{_some(differing, 'tasks')} have different prompts in different groups; import different "
            "environments separately, or map task=COLUMN+COLUMN"
        )


def _some(names: Sequence[str], what: str = "groups") -> str:
    shown = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
    return f"{len(names)} {what} ({shown})"
