"""One group as the page shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from selective_rollout.analysis.accounting import survivor_of, was_stopped
from selective_rollout.analysis.report.timeline import Timeline
from selective_rollout.analysis.report.tree import Branch, action_tree
from selective_rollout.rewards import GroupKind, GroupLabel
from selective_rollout.trace.reader import RecordedGroup
from selective_rollout.types import Group, RolloutStatus

RowKind: TypeAlias = GroupKind | Literal["stopped"]
"""The label's kind; "stopped" for a group that a gate stopped, whose label nobody will ever know."""

MOST_TREE_STEPS: Final = 200
"""Steps of each rollout in an embedded tree."""
MOST_ACTION_CHARACTERS: Final = 400


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One rollout."""

    index: int
    status: RolloutStatus
    reward: float | None
    steps: int


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One group."""

    id: str
    task_id: str
    size: int
    kind: RowKind
    members: tuple[MemberRow, ...]
    survivor: int | None
    """Who would run on if a survivor answered; None if all failed."""
    timeline: Timeline
    cuts: tuple[int | None, ...]
    """Where each gate would cut it."""
    cut_at: int | None
    """Where it was cut when it ran."""
    would_cut_at: int | None
    """Where the gate of its day fired without stopping it."""
    audited: bool
    selected: bool
    """Ran on because an enforcing gate let it, or was stopped by it: no fair draw of the workload."""


def group_row(
    recorded: RecordedGroup, label: GroupLabel, timeline: Timeline, cuts: tuple[int | None, ...]
) -> GroupRow:
    """Take from a recorded group what a row of the page needs."""
    group, end = recorded.group, recorded.end
    return GroupRow(
        id=group.id,
        task_id=group.task_id,
        size=group.size,
        kind="stopped" if label.cut else label.kind,
        members=tuple(MemberRow(r.index, r.status, r.reward, len(r.steps)) for r in group.rollouts),
        survivor=None if (survivor := survivor_of(group)) is None else survivor.index,
        timeline=timeline,
        cuts=cuts,
        cut_at=end.cut_at if end is not None else None,
        would_cut_at=end.would_cut_at if end is not None else None,
        audited=bool(recorded.begin.audit),
        selected=is_selected(recorded),
    )


def is_selected(recorded: RecordedGroup) -> bool:
    """Whether an enforcing gate had a say in how far the group ran."""
    return was_stopped(recorded.group) or recorded.is_gated


def group_tree(group: Group) -> Branch:
    """The tree of a group's actions, long rollouts and long texts cut off."""
    return action_tree(
        {
            rollout.index: [_shortened(step.action) for step in rollout.steps[:MOST_TREE_STEPS]]
            for rollout in group.rollouts
        }
    )


def _shortened(action: str) -> str:
    if len(action) <= MOST_ACTION_CHARACTERS:
        return action
    return f"{action[:MOST_ACTION_CHARACTERS]}… (+{len(action) - MOST_ACTION_CHARACTERS:,} characters)"
