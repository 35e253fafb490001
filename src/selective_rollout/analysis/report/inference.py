"""What stopping early would do at inference: a survivor's answer and the exact rule, beside the full vote."""

from __future__ import annotations

from dataclasses import dataclass, field

from selective_rollout.analysis.accounting import Amount, survivor_of
from selective_rollout.analysis.inference import (
    SCHEDULES,
    ExactVote,
    Schedule,
    exact_votes,
    leaders_of,
    survivor_agrees,
    vote_is_missing,
    vote_of,
)
from selective_rollout.analysis.prices import Prices
from selective_rollout.analysis.rates import Rate
from selective_rollout.types import Group


@dataclass(slots=True)
class Stopping:
    """What one way of stopping groups early leaves ungenerated."""

    saving: Amount = field(default_factory=Amount)
    """Of the groups stopped before every member had ended."""
    rounds: int = 0
    """Steps taken one after another, over all groups."""

    def add(self, group: Group, run: ExactVote) -> None:
        """Book one group under the exact rule."""
        self.rounds += run.rounds
        self.saving.groups += run.answer is not None
        for rollout in group.rollouts:
            self.saving.add_steps(rollout.steps[run.steps[rollout.index] :])


@dataclass(slots=True)
class AnswerTotals:
    """Groups whose full vote is known, and how early their answer could have been had.

    A survivor agrees if its answer leads the full vote, alone or in a tie. The base rate beside it lets a
    survivor answer for *every* group: with few members that alone agrees often. What a survivor saves is
    lossless where it agrees; what the exact rule saves always is.
    """

    prices: Prices | None = None
    groups: int = 0
    left_out: int = 0
    """Groups with some answer whose full vote is not known: fewer than two answers, or a vote missing."""
    missing_answers: int = 0
    """Members without an answer in groups that count: their votes are taken as still out."""
    unanimous: int = 0
    tied: int = 0
    agreed: int = 0
    cuts: int = 0
    agreed_in_cuts: int = 0
    spent: Amount = field(default_factory=Amount)
    """All that was recorded: the cost without a gate."""
    rounds: int = 0
    """Steps taken one after another without a gate: the longest member's, over all groups."""
    lossless: Amount = field(default_factory=Amount)
    """What the gate's cuts leave ungenerated where the survivor agrees; it runs on."""
    lossy: Amount = field(default_factory=Amount)
    """The same where it answers differently."""
    survivor_rounds: int = 0
    """Steps taken one after another under the gate, over all groups."""
    exact: dict[Schedule, Stopping] = field(
        default_factory=lambda: {schedule: Stopping() for schedule in SCHEDULES}
    )
    """The exact rule, by schedule."""

    def add(self, group: Group, cut_at: int | None) -> None:
        """Book one group that ran to its end; `cut_at` is where the gate fires, None if it does not."""
        agrees, leaders = survivor_agrees(group), leaders_of(group)
        if agrees is None or leaders is None:
            self.left_out += any(rollout.answer is not None for rollout in group.rollouts)
            return
        longest = max(len(rollout.steps) for rollout in group.rollouts)
        self.groups += 1
        self.missing_answers += sum(map(vote_is_missing, group.rollouts))
        self.unanimous += len({vote_of(rollout) for rollout in group.rollouts} - {None}) == 1
        self.tied += len(leaders) > 1
        self.agreed += agrees
        self.spent.add(group, 0)
        self.rounds += longest
        for schedule, run in exact_votes(group).items():
            self.exact[schedule].add(group, run)
        survivor = survivor_of(group)
        if cut_at is None or survivor is None:
            self.survivor_rounds += longest
            return
        self.cuts += 1
        self.agreed_in_cuts += agrees
        self.survivor_rounds += max(min(cut_at, longest), len(survivor.steps))
        (self.lossless if agrees else self.lossy).add(group, cut_at, survivor.index)

    @property
    def seen(self) -> bool:
        """Whether any group has an answer at all."""
        return self.groups > 0 or self.left_out > 0

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

    def money(self, amount: Amount) -> float | None:
        """What an amount costs; None without prices, or if a count that matters is unknown."""
        return None if self.prices is None else amount.cost(self.prices)

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON output; unknown is null."""
        return {
            "groups": self.groups,
            "left_out": self.left_out,
            "missing_answers": self.missing_answers,
            "unanimous": self.unanimous,
            "tied": self.tied,
            "survivor_agrees_in_cuts": self.in_cuts.to_dict(),
            "survivor_agrees_base_rate": self.base.to_dict(),
            "cut_and_answered_differently": self.risk.to_dict(),
            "no_gate": {**self._amount(self.spent), "rounds": self.rounds},
            "survivor": {
                "stopped": self.cuts,
                "lossless": self._amount(self.lossless),
                "lossy": self._amount(self.lossy),
                "rounds": self.survivor_rounds,
            },
            "exact_rule": {
                schedule: {
                    "stopped": stopping.saving.groups,
                    **self._amount(stopping.saving),
                    "rounds": stopping.rounds,
                }
                for schedule, stopping in self.exact.items()
            },
        }

    def _amount(self, amount: Amount) -> dict[str, object]:
        return {"steps": amount.steps, "tokens": amount.known_tokens, "money": self.money(amount)}
