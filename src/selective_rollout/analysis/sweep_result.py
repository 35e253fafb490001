"""What a sweep found, as plain data and in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from selective_rollout.analysis.accounting import Accounting
from selective_rollout.analysis.ranking import Area, Chance
from selective_rollout.analysis.reach import Reach
from selective_rollout.analysis.split import Split
from selective_rollout.analysis.sweep_grid import Measure, SweepGrid
from selective_rollout.analysis.sweep_history import HistoryStudy


class SweepVerdict(StrEnum):
    """Whether anything looked at tells zero variance from signal."""

    BETTER_THAN_CHANCE = "better_than_chance"
    NO_BETTER_THAN_CHANCE = "no_better_than_chance"
    """The best of all configurations reaches no more than the best would if the labels said nothing, or its
    interval holds 0.5."""
    ONE_CLASS = "one_class"
    """There are no zero-variance groups, or no others: nothing to tell apart."""


@dataclass(frozen=True, slots=True)
class RankedSignal:
    """How well one measure at one step tells zero-variance groups from the others."""

    measure: Measure
    step: int
    area: Area
    """AUROC for zero variance in the measure's usual direction."""
    all_fail: Area
    """The same among all-fail and signal-bearing groups only."""
    all_success: Area
    """The same among all-success and signal-bearing groups only."""
    spearman: float | None
    """Rank correlation of the signal's value with the variance of the group's rewards."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.measure.name} at step {self.step}"

    @property
    def is_reversed(self) -> bool:
        """Whether the signal points the other way on this workload: its whole interval lies below 0.5."""
        return self.area.interval is not None and self.area.interval.high < 0.5

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON output."""
        return {
            "measure": self.measure.name,
            "signal": self.measure.signal,
            "canonicaliser": self.measure.canonicaliser,
            "direction": self.measure.direction,
            "step": self.step,
            "auroc": self.area.to_dict(),
            "auroc_all_fail": self.all_fail.to_dict(),
            "auroc_all_success": self.all_success.to_dict(),
            "spearman_reward_variance": self.spearman,
        }


@dataclass(frozen=True, slots=True)
class RuleResult:
    """One configuration of the gate; of thresholds with the same cuts only the smallest is kept."""

    measure: Measure
    start_step: int
    check_every: int | None
    tau: float
    accounting: Accounting
    held_out: float | None
    """Mean held-out reward of the groups that are kept; None if the trace has none."""
    on_front: bool = False
    """No other configuration saves as many steps at no more loss."""
    on_held_out_front: bool = False
    """No other configuration saves as many steps and keeps as much held-out reward."""

    @property
    def name(self) -> str:
        """For people."""
        again = f", every {self.check_every}" if self.check_every is not None else ""
        return f"{self.measure.name} < {self.tau:g} at {self.start_step}{again}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON output; `gate` is null where only a fitted score can have this rule."""
        account = self.accounting
        gate = self.measure.gate(self.tau, self.start_step, self.check_every)
        return {
            "name": self.name,
            "measure": self.measure.name,
            "canonicaliser": self.measure.canonicaliser,
            "start_step": self.start_step,
            "check_every": self.check_every,
            "tau": self.tau,
            "gate": None if gate is None else gate.to_dict(),
            "cuts": account.cuts,
            "right": account.right,
            "wrong": account.wrong,
            "missed": account.missed,
            "precision": account.precision.to_dict(),
            "loss": account.loss.to_dict(),
            "lossless_steps": account.lossless.steps,
            "lossy_steps": account.lossy.steps,
            "unlabelled_steps": account.unlabelled.steps,
            "money": None if account.money is None else account.money.to_dict(),
            "saved": account.saved,
            "oracle_saved": account.oracle_saved,
            "random_saved": account.random_saved,
            "efficiency": account.efficiency,
            "held_out_reward": self.held_out,
            "on_front": self.on_front,
            "on_held_out_front": self.on_held_out_front,
        }


@dataclass(frozen=True, slots=True)
class SweepResult:
    """All that was looked at."""

    grid: SweepGrid
    split: Split | None
    """The split whose *choose* part was looked at; None: all groups were."""
    nothing: Accounting
    """The account without any gate."""
    tasks: int
    ranked: tuple[RankedSignal, ...]
    chance: Chance | None
    """What the best of `ranked` reaches by chance; None with one class only."""
    rules: tuple[RuleResult, ...]
    """Configurations that cut anything."""
    history: HistoryStudy | None
    """None if no prompt recurs."""
    warnings: tuple[str, ...]
    reach: Reach | None = None
    """How far the groups run; None if they did not come from a trace."""
    let_through: int = 0
    """Groups that an enforcing gate could have stopped and did not: no fair draw of the workload."""

    @property
    def best(self) -> RankedSignal | None:
        """The signal and step with the highest AUROC."""
        known = [ranked for ranked in self.ranked if ranked.area.value is not None]
        return max(known, key=lambda ranked: ranked.area.value or 0.0, default=None)

    @property
    def front(self) -> list[RuleResult]:
        """The Pareto front of steps saved against signal lost, by rising loss."""
        front = [rule for rule in self.rules if rule.on_front]
        return sorted(front, key=lambda rule: rule.accounting.loss.value or 0.0)

    @property
    def verdict(self) -> SweepVerdict:
        """Whether anything tells zero variance from signal."""
        best, chance = self.best, self.chance
        if best is None or best.area.value is None or chance is None:
            return SweepVerdict.ONE_CLASS
        interval = best.area.interval
        beyond = best.area.value > chance.p95 and interval is not None and interval.low > 0.5
        return SweepVerdict.BETTER_THAN_CHANCE if beyond else SweepVerdict.NO_BETTER_THAN_CHANCE

    @property
    def words(self) -> str:
        """The verdict in one paragraph."""
        best, chance = self.best, self.chance
        if best is None or chance is None:
            account = self.nothing
            return (
                f"{account.zero_variance} zero-variance and {account.signal} signal-bearing groups: with one "
                "kind only there is nothing to tell apart."
            )
        first = min(self.grid.start_steps)
        if self.reach is not None and self.reach.is_too_late(first):
            return f"Too late to tell: {self.reach.shortfall(first)}."
        held = best.area.interval
        interval = "" if held is None else f" ({held.low:.2f} to {held.high:.2f})"
        which = best.name
        if chance.rankings > 1:
            which = f"the best of {chance.rankings} configurations, {best.name},"
        found = (
            f"{which} reaches AUROC {best.area.value:.2f}{interval}; shuffled labels reach "
            f"{chance.median:.2f} in the median and {chance.p95:.2f} in one case of 20 "
            f"(p = {chance.p_value:.2g})."
        )
        if self.verdict is SweepVerdict.BETTER_THAN_CHANCE:
            return f"Better than chance: {found}"
        return f"No better than chance here: {found}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON output; unknown is null."""
        return {
            "looked_at": "all" if self.split is None else "choose",
            "split": None if self.split is None else asdict(self.split),
            "grid": self.grid.to_dict(),
            "tasks": self.tasks,
            "no_gate": self.nothing.to_dict(),
            "verdict": self.verdict.value,
            "words": self.words,
            "reach": None if self.reach is None else self.reach.to_dict(min(self.grid.start_steps)),
            "best": None if self.best is None else self.best.to_dict(),
            "chance": None if self.chance is None else self.chance.to_dict(),
            "signals": [ranked.to_dict() for ranked in self.ranked],
            "rules": [rule.to_dict() for rule in self.rules],
            "replay": self._replayed(),
            "history": None if self.history is None else self.history.to_dict(),
            "report_view": self.report_view(),
            "warnings": list(self.warnings),
        }

    def _replayed(self) -> dict[str, Any] | None:
        """The full account, if the sweep was a replay of one configuration."""
        if not self.grid.is_single:
            return None
        return (self.rules[0].accounting if self.rules else self.nothing).to_dict()

    def report_view(self) -> dict[str, Any]:
        """What pictures and report draw of a sweep; see `analysis.report.sweep_view`."""
        account = self.nothing
        about = (
            f"{account.all_fail:,} all fail, {account.all_success:,} all succeed, {account.signal:,} "
            f"signal-bearing groups, of {self.tasks:,} tasks"
        )
        return {
            "cells": [_cell(ranked, ranked.area) for ranked in self.ranked],
            "all_fail": [_cell(ranked, ranked.all_fail) for ranked in self.ranked],
            "all_success": [_cell(ranked, ranked.all_success) for ranked in self.ranked],
            "null_95": None if self.chance is None else self.chance.p95,
            "points": [_point(rule) for rule in self.rules if rule.accounting.loss.value is not None],
            "about": about,
            "oracle": {"step": account.start_step, "saved": account.oracle_saved or 0.0},
        }


def _cell(ranked: RankedSignal, area: Area) -> dict[str, Any]:
    interval = area.interval
    return {
        "signal": ranked.measure.name,
        "step": ranked.step,
        "auroc": area.value,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
    }


def _point(rule: RuleResult) -> dict[str, Any]:
    return {
        "name": rule.name,
        "saved": rule.accounting.saved or 0.0,
        "loss": rule.accounting.loss.value,
        "efficiency": rule.accounting.efficiency,
        "on_front": rule.on_front,
        "is_gate": rule.measure.gate(rule.tau, rule.start_step, rule.check_every) is not None,
        "held_out": rule.held_out,
        "on_held_out_front": rule.on_held_out_front,
    }


def pareto(points: Sequence[tuple[float, float] | None]) -> list[bool]:
    """Tell which points are on the front of two things to have much of; None is never on it.

    A point is on the front if no other has at least as much of both and more of one; of equal points the
    first is.
    """
    places = [i for i, point in enumerate(points) if point is not None]
    order = sorted(places, key=lambda i: points[i] or (0.0, 0.0), reverse=True)
    on_front = [False] * len(points)
    highest = float("-inf")
    for i in order:
        second = (points[i] or (0.0, 0.0))[1]
        if second > highest:
            on_front[i], highest = True, second
    return on_front
