"""The distance of a recorded group at every position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selective_rollout.distance import GroupDistance
from selective_rollout.types import Group, Padding


@dataclass(frozen=True, slots=True)
class GroupLine:
    """A group's curve with its label and its cut, as a picture shows it."""

    distances: Sequence[float]
    """`distances[k - 1]` is the mean pairwise distance at step k."""
    kind: str
    """Kind of the group's label; see `rewards.GroupLabel.kind`."""
    cut_at: int | None = None
    """Step at which the gate fires."""


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One member of a group, as far as distances go."""

    actions: Sequence[str]
    last: int | None
    """Last position at which the member is present; None: it ended normally and stays."""


def member_rows(group: Group) -> list[MemberRow]:
    """The recorded members; one that failed, was cut or still runs is absent beyond its last step."""
    return [
        MemberRow(rollout.actions, None if rollout.status.ended_normally else len(rollout.steps))
        for rollout in group.rollouts
    ]


def distance_curve(group: Group, padding: Padding = "end") -> list[float]:
    """Mean pairwise distance d_k for k = 1 .. the longest rollout; `curve[k - 1]` belongs to step k.

    Of the members present at k, as a gate measures it; ends where fewer than two are.
    """
    return rows_curve(member_rows(group), padding)


def rows_curve(rows: Sequence[MemberRow], padding: Padding) -> list[float]:
    """`distance_curve` of the members' rows; the action may be any symbol."""
    if len(rows) < 2:
        return []
    distance = GroupDistance(len(rows), padding)
    for member, row in enumerate(rows):
        for action in row.actions:
            distance.push(member, action)
        distance.finish(member)
    ends = {row.last for row in rows if row.last is not None}
    curve: list[float] = []
    for end in sorted({*ends, max(len(row.actions) for row in rows)}):
        distance.advance_to(end)
        curve += distance.curve()[len(curve) :]
        for member, row in enumerate(rows):
            if row.last == end:
                distance.drop(member)
    return curve
