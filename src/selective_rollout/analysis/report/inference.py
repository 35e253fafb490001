"""What cutting would do to answers: the survivor's against the full vote's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from selective_rollout.analysis.accounting import Rate
from selective_rollout.analysis.report.timeline import is_present
from selective_rollout.draws import stable_order
from selective_rollout.types import Group, Rollout


@dataclass(slots=True)
class AnswerTotals:
    """Groups with at least two answers, and whether one survivor would have answered for all.

    A survivor agrees if its answer leads the full vote, alone or in a tie. The base rate beside it lets a
    survivor answer for *every* group at start_step: with few members that alone agrees often.
    """

    groups: int = 0
    unanimous: int = 0
    tied: int = 0
    agreed: int = 0
    cuts: int = 0
    agreed_in_cuts: int = 0

    def add(self, group: Group, start_step: int, cut_at: int | None) -> None:
        """Book one group that ran to its end; those with fewer than two answers are passed over."""
        answers = {
            rollout.index: rollout.answer
            for rollout in group.rollouts
            if rollout.answer is not None and rollout.status.ended_normally
        }
        if len(answers) < 2:
            return
        leaders = leading(answers)
        self.groups += 1
        self.unanimous += len(set(answers.values())) == 1
        self.tied += len(leaders) > 1
        survivor = survivor_of(group, cut_at or start_step)
        agrees = survivor is not None and survivor.answer in leaders
        self.agreed += agrees
        if cut_at is not None:
            self.cuts += 1
            self.agreed_in_cuts += agrees

    @property
    def base(self) -> Rate:
        """Share of all groups whose survivor agrees."""
        return Rate(self.agreed, self.groups)

    @property
    def in_cuts(self) -> Rate:
        """Share of the cuts whose survivor agrees."""
        return Rate(self.agreed_in_cuts, self.cuts)

    @property
    def risk(self) -> Rate:
        """Share of all groups that are cut and then answered differently."""
        return Rate(self.cuts - self.agreed_in_cuts, self.groups)

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON output."""
        return {
            "groups": self.groups,
            "unanimous": self.unanimous,
            "tied": self.tied,
            "survivor_agrees_in_cuts": self.in_cuts.to_dict(),
            "survivor_agrees_base_rate": self.base.to_dict(),
            "cut_and_answered_differently": self.risk.to_dict(),
        }


def leading(answers: Mapping[int, str]) -> set[str]:
    """The most frequent answers: one, or several in a tie."""
    votes = Counter(answers.values())
    most = max(votes.values())
    return {answer for answer, count in votes.items() if count == most}


def survivor_of(group: Group, k: int) -> Rollout | None:
    """The member that the engine would let survive a cut at position k; None if nobody is present."""
    present = {rollout.index: rollout for rollout in group.rollouts if is_present(rollout, k)}
    # The same draw as the engine's: it is part of what a cut means, not of how one is carried out.
    order = stable_order(group.size, "survivor", group.id)
    return next((present[index] for index in order if index in present), None)
