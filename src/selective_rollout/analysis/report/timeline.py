"""What a rule would say about a group at every position, tau left open.

The curves of many groups come out of one pass, and what else a decision reads changes only where a rollout
ends, so all positions come at little more than the price of one. `analysis.replay`, which puts the group
through the live gate, is the oracle of the tests and takes over for the rules this form cannot serve.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from selective_rollout.analysis.batch_curve import mean_curves
from selective_rollout.analysis.curve import MemberRow, member_rows
from selective_rollout.analysis.open_checks import reason_changes
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import Reason
from selective_rollout.types import Group

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


def timelines(
    groups: Sequence[Group], rule: GateConfig, histories: Sequence[Sequence[float] | None]
) -> list[Timeline]:
    """Lay groups out under a rule; some hundreds at a time are enough to be fast.

    Args:
        groups: the groups as recorded.
        rule: the rule; tau and the check positions play no part.
        histories: `histories[i]` are the earlier rewards of group i's prompt, newest last, if the rule reads
            them.
    """
    curves = mean_curves([_first_steps(group) for group in groups], rule.padding)
    lines = []
    for group, history, curve in zip(groups, histories, curves, strict=True):
        longest = max((len(rollout.steps) for rollout in group.rollouts), default=0)
        last = min(longest, MOST_STEPS)
        distances: list[float | None] = [*curve.tolist(), *[None] * (last - len(curve))]
        reasons = tuple(change for change in reason_changes(group, rule, history) if change[0] <= last)
        lines.append(Timeline(tuple(distances), reasons, longest <= last))
    return lines


def _first_steps(group: Group) -> list[MemberRow]:
    return [
        MemberRow(row.actions[:MOST_STEPS], None if row.last is None else min(row.last, MOST_STEPS))
        for row in member_rows(group)
    ]
