"""What a rule would say about a group at every position, tau left open.

The curve costs one pass over each pair of rollouts, and what else a decision reads changes only where a
rollout ends, so all positions come at little more than the price of one. `analysis.replay`, which puts the
group through the live gate, is the oracle of the tests and takes over for the rules this form cannot serve.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from selective_rollout.distance import GroupDistance
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import GateFacts, Reason, judge
from selective_rollout.gate.sampling import identical_sampling
from selective_rollout.types import Group, Padding, Rollout

MOST_STEPS: Final = 500
"""Positions looked at; beyond them the curve of a group is left out, since its cost grows with the square."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """One group under one rule, at the positions 1 .. the longest rollout, or MOST_STEPS."""

    distances: tuple[float | None, ...]
    """`distances[k - 1]`: mean pairwise distance of the members present at k; None below two of them."""
    reasons: tuple[tuple[int, Reason], ...]
    """(k, reason) where the reason changes: FIRED where the rule would cut given a distance below tau."""
    whole: bool
    """Whether every position of the group is covered."""

    def reason_at(self, k: int) -> Reason:
        """What the rule would say at position k, given a distance below tau."""
        place = bisect_right(self.reasons, k, key=lambda change: change[0])
        return self.reasons[place - 1][1] if place else Reason.NOBODY_RUNNING

    def fires_at(self, rule: GateConfig) -> int | None:
        """First check of the rule that fires; None if none does."""
        last = len(self.distances)
        checks = range(rule.start_step, last + 1, rule.check_every or max(last, 1))
        for k in checks:
            distance = self.distances[k - 1]
            if distance is not None and distance < rule.tau and self.reason_at(k) is Reason.FIRED:
                return k
        return None


def can_serve(rule: GateConfig, like: GateConfig) -> bool:
    """Whether a timeline made under `like` tells what `rule` does, up to tau and the check positions."""
    judged = ("level", "padding", "outcome", "min_members", "vetoes", "history_mixed", "reward_tolerance")
    plain = rule.level == "action" and rule.score is None
    return plain and all(getattr(rule, name) == getattr(like, name) for name in judged)


def timeline(group: Group, rule: GateConfig, history: Sequence[float] | None = None) -> Timeline:
    """Lay a group out under a rule.

    Args:
        group: the group as recorded.
        rule: the rule; tau and the check positions play no part.
        history: the prompt's earlier rewards, newest last, if the rule reads them.
    """
    longest = max((len(rollout.steps) for rollout in group.rollouts), default=0)
    last = min(longest, MOST_STEPS)
    reasons: list[tuple[int, Reason]] = []
    for k in _turning_points(group, last):
        reason = judge(rule, _facts(group, k, history))
        if not reasons or reasons[-1][1] is not reason:
            reasons.append((k, reason))
    return Timeline(tuple(_distances(group, rule.padding, last)), tuple(reasons), longest <= last)


def is_present(rollout: Rollout, k: int) -> bool:
    """Whether a rollout counts at position k: it ended normally, or recorded at least k actions."""
    return rollout.status.ended_normally or len(rollout.steps) >= k


def _turning_points(group: Group, last: int) -> list[int]:
    """The positions at which anything but the distance can change."""
    points = {1}
    for rollout in group.rollouts:
        length = len(rollout.steps)
        points.add(length if rollout.status.ended_normally else length + 1)
        first = next((step.index for step in rollout.steps if step.action), None)
        points.add(first if first is not None else 1)
    return sorted(point for point in points if 1 <= point <= last)


def _facts(group: Group, k: int, history: Sequence[float] | None) -> GateFacts:
    present = [rollout for rollout in group.rollouts if is_present(rollout, k)]
    finished = [rollout for rollout in present if _is_finished(rollout, k)]
    return GateFacts(
        step=k,
        group_size=group.size,
        members=tuple(rollout.index for rollout in present),
        running=tuple(rollout.index for rollout in present if not _is_finished(rollout, k)),
        has_actions=any(step.action for rollout in present for step in rollout.steps[:k]),
        below_tau=True,
        rewards=tuple(None if rollout.late_reward else rollout.reward for rollout in finished),
        answers=tuple(rollout.answer for rollout in finished),
        sampling=identical_sampling(group.sampling),
        history=tuple(history) if history is not None else None,
    )


def _is_finished(rollout: Rollout, k: int) -> bool:
    return rollout.status.ended_normally and len(rollout.steps) <= k


def _distances(group: Group, padding: Padding, last: int) -> list[float | None]:
    """The curve, taken anew wherever a rollout drops out."""
    ends = {len(r.steps) for r in group.rollouts if not r.status.ended_normally}
    borders = [*sorted(end for end in ends if 0 < end < last), last]
    distances: list[float | None] = []
    for border in borders:
        present = [rollout for rollout in group.rollouts if is_present(rollout, border)]
        begun = len(distances)
        curve: list[float | None] = [None] * border
        if len(present) > 1:
            curve = list(_curve(present, padding, border))
        distances += curve[begun:border]
    return distances


def _curve(rollouts: Sequence[Rollout], padding: Padding, last: int) -> list[float]:
    distance = GroupDistance(len(rollouts), padding)
    for row, rollout in enumerate(rollouts):
        for step in rollout.steps[:last]:
            distance.push(row, step.action)
        if len(rollout.steps) < last:
            distance.finish(row)
    distance.advance_to(last)
    return distance.curve()
