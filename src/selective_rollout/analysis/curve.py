"""The distance of a recorded group at every position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selective_rollout.distance.curve import mean_curve
from selective_rollout.distance.symbols import END_CODE, SymbolTable
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
    table = SymbolTable()
    texts = [table.encode(row.actions) for row in rows]
    longest = max(map(len, texts), default=0)
    curve: list[float] = []
    for end in sorted({longest, *(row.last for row in rows if row.last is not None)}):
        here = [
            text[:end] for text, row in zip(texts, rows, strict=True) if row.last is None or row.last >= end
        ]
        if len(here) < 2:
            break
        if padding == "end":
            here = [text.ljust(end, END_CODE) for text in here]
        curve += mean_curve(here, end)[len(curve) :]
    return curve
