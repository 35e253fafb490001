"""The distance of a recorded group at every position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selective_rollout.distance import GroupDistance
from selective_rollout.types import Group, Padding, RolloutStatus


@dataclass(frozen=True, slots=True)
class GroupLine:
    """A group's curve with its label and its cut, as a picture shows it."""

    distances: Sequence[float]
    """`distances[k - 1]` is the mean pairwise distance at step k."""
    kind: str
    """Kind of the group's label; see `rewards.GroupLabel.kind`."""
    cut_at: int | None = None
    """Step at which the gate fires."""


def distance_curve(group: Group, padding: Padding = "end") -> list[float]:
    """Mean pairwise distance d_k for k = 1 .. the longest rollout; `curve[k - 1]` belongs to step k.

    Rollouts that infrastructure lost are left out. Empty with fewer than two others.
    """
    rows = [r.actions for r in group.rollouts if r.status is not RolloutStatus.FAILED]
    if len(rows) < 2:
        return []
    distance = GroupDistance(len(rows), padding)
    for member, actions in enumerate(rows):
        for action in actions:
            distance.push(member, action)
        distance.finish(member)
    distance.advance_to(max(map(len, rows)))
    return list(distance.curve())
