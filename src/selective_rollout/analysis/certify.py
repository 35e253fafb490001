"""How far a threshold may go, and whether going there is of any use.

The walk over thresholds is Learn-then-Test with a fixed sequence: the grid was declared beforehand, and each
threshold is tested by an exact binomial over independent tasks until one fails. A certificate alone is no
reason to switch a gate on: its cuts must be right more often than cuts at random, and save steps.

Two risks can be bounded. "signal" is P(cut | signal-bearing): one trial per signal-bearing task. "answer" is
P(cut and the survivor answers differently than the full vote): one trial per task whose full vote is known,
cut or not. Both can only grow with tau: what a smaller tau cuts a larger one cuts too, and whether cutting a
group does harm depends on the group alone (who survives is drawn from its id). The walk does not lean on
that. In it the first threshold whose true risk is above alpha passes its own test with probability at most
delta, and unless it passes no later one is ever tested; so the chance of certifying any such threshold is at
most delta, in whatever way the risk moves along the grid. That it grows is what lets a certificate also cover
lower thresholds and other rules that cut a subset (`gate.certificate.accepts`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import inf
from typing import Any, Final

from selective_rollout.analysis.sample import Unit
from selective_rollout.errors import ConfigError
from selective_rollout.gate.certificate import Risk
from selective_rollout.stats import (
    Interval,
    auroc,
    beats_base_rate,
    bootstrap_interval,
    decimal_grid,
    fixed_sequence,
    needed_at_rate,
    needed_zero_false,
    upper_bound,
)

USEFUL_AT: Final = 0.05
"""Level of the test that the cuts beat the base rate of zero variance."""


class Verdict(StrEnum):
    """What came out; only CERTIFIED switches a gate on.

    Harmless groups are those of zero variance, or those whose survivor answers as the full vote does.
    """

    CERTIFIED = "certified"
    NOT_CERTIFIABLE = "not_certifiable"
    """Even the smallest threshold has too many false cuts for the number of trials."""
    NO_BETTER_THAN_CHANCE = "no_better_than_chance"
    """The lower bound of the AUROC for harmless groups is at most 0.5."""
    CERTIFIED_BUT_USELESS = "certified_but_useless"
    """The bound holds, but the cuts do not beat the base rate of harmless groups, or save nothing."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the data, declared before looking.

    Raises:
        ConfigError: alpha or delta is not strictly between 0 and 1, or the grid is malformed or beyond 1.
    """

    alpha: float = 0.10
    """Bound on the risk."""
    delta: float = 0.05
    """Allowed probability that the bound does not hold."""
    grid: str = "0.005:0.300:0.005"
    """Thresholds, start:stop:step or a list."""
    risk: Risk = "signal"
    """What is bounded: P(cut | signal-bearing), or P(cut and the survivor answers differently)."""

    def __post_init__(self) -> None:
        needed_zero_false(self.alpha, self.delta)
        if self.taus[-1] > 1:
            raise ConfigError(f"grid {self.grid!r} must hold thresholds from 0 to 1")

    @property
    def taus(self) -> list[float]:
        """The grid, from the strictest threshold up."""
        return decimal_grid(self.grid)

    def trials(self, units: Sequence[Unit]) -> int:
        """How many of the groups the risk is taken over."""
        return len(units) if self.risk == "answer" else sum(not unit.harmless for unit in units)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one chain of tests found; counts are at the largest certified tau, None without one."""

    verdict: Verdict
    risk: Risk
    start_step: int
    level: float
    """Part of delta that this chain may spend."""
    groups: int
    harmful: int
    """Groups that should not be cut: signal-bearing ones, or those whose survivor answers differently."""
    tau: float | None
    cuts: int | None
    false_cuts: int | None
    bound: float | None
    """Upper bound of the risk."""
    beats_base_rate: float | None
    """p-value of "the cuts are right no more often than groups drawn at random"."""
    lossless_steps: int | None
    """Steps the right cuts leave ungenerated."""
    lossy_steps: int | None
    steps: int
    auroc: float | None
    """How well the distance tells harmless groups from harmful ones."""
    auroc_interval: Interval | None
    """95%, over tasks."""
    needed: int | None
    """Trials that certify the smallest tau with cuts at its observed rate; None: no number does."""
    needed_min: int
    """Trials that certify a tau without any false cut."""
    stratum: str | None = None

    @property
    def n_signal(self) -> int | None:
        """Signal-bearing groups; None where answers are at risk."""
        return self.harmful if self.risk == "signal" else None

    @property
    def trials(self) -> int:
        """Groups that the risk is taken over."""
        return self.harmful if self.risk == "signal" else self.groups

    @property
    def on(self) -> bool:
        """Whether the gate may be switched on."""
        return self.verdict is Verdict.CERTIFIED

    @property
    def base_rate(self) -> float | None:
        """Share of harmless groups: the precision of cutting blindly."""
        return (self.groups - self.harmful) / self.groups if self.groups else None

    @property
    def saved(self) -> float | None:
        """Share of the steps left ungenerated, lossy ones included; None without cuts or without lengths."""
        if self.lossless_steps is None or self.lossy_steps is None or not self.steps:
            return None
        return (self.lossless_steps + self.lossy_steps) / self.steps

    @property
    def efficiency(self) -> float | None:
        """Signal-bearing groups per generated step, relative to no gate; None if that is not the question."""
        if self.saved is None or self.saved == 1 or not self.n_signal or self.false_cuts is None:
            return None
        return (1 - self.false_cuts / self.n_signal) / (1 - self.saved)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON output; unknown is null."""
        interval = self.auroc_interval
        plain = {name: getattr(self, name) for name in (*self.__slots__, "n_signal")}
        plain["verdict"] = self.verdict.value
        plain["gate"] = "on" if self.on else "off"
        plain["auroc_interval"] = None if interval is None else [interval.low, interval.high]
        return {**plain, "base_rate": self.base_rate, "saved": self.saved, "efficiency": self.efficiency}


def largest_tau(units: Sequence[Unit], question: Question, level: float | None = None) -> float | None:
    """The largest threshold of the grid that is certified, None if none is.

    Args:
        units: labelled groups, at most one per task.
        question: bound, confidence and grid.
        level: part of delta that may be spent; all of it by default.
    """
    harmful = [unit for unit in units if not unit.harmless]
    last = _last_certified(_cut_counts(harmful, question.taus), question.trials(units), question, level)
    return question.taus[last] if last >= 0 else None


def certify(
    units: Sequence[Unit],
    question: Question,
    *,
    start_step: int,
    level: float | None = None,
    stratum: str | None = None,
    seed: int = 0,
) -> Finding:
    """Test one chain of thresholds on one group per independent task.

    Args:
        units: labelled groups, at most one per task.
        question: bound, confidence and grid.
        start_step: recorded in the finding.
        level: part of delta this chain may spend; all of it by default.
        stratum: recorded in the finding.
        seed: of the bootstrap.
    """
    level = question.delta if level is None else level
    taus = question.taus
    trials = question.trials(units)
    harmful = [unit for unit in units if not unit.harmless]
    harmless = [unit for unit in units if unit.harmless]
    false_cuts, right = _cut_counts(harmful, taus), _cut_counts(harmless, taus)
    last = _last_certified(false_cuts, trials, question, level)
    area, interval = _auroc(units, seed)
    found: dict[str, Any] = {}
    if last >= 0:
        tau, wrong, cuts = taus[last], false_cuts[last], false_cuts[last] + right[last]
        found = {
            "tau": tau,
            "cuts": cuts,
            "false_cuts": wrong,
            "bound": upper_bound(wrong, trials, 1 - level),
            "beats_base_rate": beats_base_rate(right[last], cuts, len(harmless), len(units)),
            "lossless_steps": sum(unit.saved(tau) or 0 for unit in harmless),
            "lossy_steps": sum(unit.saved(tau) or 0 for unit in harmful),
        }
    steps = sum(unit.steps for unit in units)
    return Finding(
        verdict=_verdict(found, interval, knows_steps=steps > 0),
        risk=question.risk,
        start_step=start_step,
        level=level,
        groups=len(units),
        harmful=len(harmful),
        **(found or dict.fromkeys(_AT_TAU)),
        steps=steps,
        auroc=area,
        auroc_interval=interval,
        needed=_needed(false_cuts, right, trials, question.alpha, level),
        needed_min=needed_zero_false(question.alpha, level),
        stratum=stratum,
    )


_AT_TAU: Final = (
    "tau",
    "cuts",
    "false_cuts",
    "bound",
    "beats_base_rate",
    "lossless_steps",
    "lossy_steps",
)


def _last_certified(false_cuts: Sequence[int], trials: int, question: Question, level: float | None) -> int:
    level = question.delta if level is None else level
    return fixed_sequence(false_cuts, trials, question.alpha, level) if trials else -1


def _verdict(found: dict[str, Any], interval: Interval | None, *, knows_steps: bool) -> Verdict:
    if interval is not None and interval.low <= 0.5:
        return Verdict.NO_BETTER_THAN_CHANCE
    if not found:
        return Verdict.NOT_CERTIFIABLE
    saves = found["lossless_steps"] > 0 or not knows_steps
    useful = found["beats_base_rate"] <= USEFUL_AT and saves
    return Verdict.CERTIFIED if useful else Verdict.CERTIFIED_BUT_USELESS


def _cut_counts(units: Sequence[Unit], taus: Sequence[float]) -> list[int]:
    """Groups cut at each tau: those whose smallest value lies strictly below it."""
    values = sorted(value for unit in units if (value := unit.smallest_tau) is not None)
    return [bisect_left(values, tau) for tau in taus]


def _needed(
    false_cuts: Sequence[int], right: Sequence[int], trials: int, alpha: float, level: float
) -> int | None:
    if not trials:
        return None
    first = next((wrong for wrong, good in zip(false_cuts, right, strict=True) if wrong + good), 0)
    return needed_at_rate(Fraction(first, trials), alpha, level)


def _auroc(units: Sequence[Unit], seed: int) -> tuple[float | None, Interval | None]:
    """AUROC of "low value means harmless"; groups that no tau cuts rank last."""
    pairs = [(-(inf if u.smallest_tau is None else u.smallest_tau), u.harmless) for u in units]

    def area(drawn: Sequence[tuple[float, bool]]) -> float | None:
        return auroc([score for score, _ in drawn], [label for _, label in drawn])

    value = area(pairs)
    if value is None:
        return None, None
    resamples = max(200, min(2000, 400_000 // len(pairs)))
    return value, bootstrap_interval(area, pairs, resamples=resamples, seed=seed)
