"""Cuts counted by the label of their group, and the shares that come of it."""

from __future__ import annotations

from dataclasses import dataclass

from selective_rollout.stats import Interval, clopper_pearson


@dataclass(frozen=True, slots=True)
class Rate:
    """A share with its exact interval; None where there is nothing to take a share of."""

    hits: int
    trials: int

    @property
    def value(self) -> float | None:
        """The share itself."""
        return self.hits / self.trials if self.trials else None

    @property
    def interval(self) -> Interval | None:
        """95% Clopper-Pearson interval."""
        return clopper_pearson(self.hits, self.trials) if self.trials else None

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON output."""
        interval = self.interval
        return {
            "hits": self.hits,
            "trials": self.trials,
            "value": self.value,
            "interval_95": None if interval is None else [interval.low, interval.high],
        }


@dataclass(slots=True, kw_only=True)
class CutCounts:
    """Running totals of groups that ran on and of a rule's cuts among them, by label."""

    zero_variance: int = 0
    signal: int = 0
    unknown: int = 0
    """Groups without a label."""
    right: int = 0
    """Cuts of zero-variance groups."""
    wrong: int = 0
    """Cuts of signal-bearing groups."""
    unknown_cuts: int = 0

    def count(self, zero_variance: bool | None, cut: bool) -> None:
        """Count one group by its label; None if it has none."""
        if zero_variance is None:
            self.unknown += 1
            self.unknown_cuts += cut
        elif zero_variance:
            self.zero_variance += 1
            self.right += cut
        else:
            self.signal += 1
            self.wrong += cut

    @property
    def cuts(self) -> int:
        """Groups the rule cuts."""
        return self.right + self.wrong + self.unknown_cuts

    @property
    def base_rate(self) -> Rate:
        """Share of zero variance among all labelled groups: the precision of cutting blindly."""
        return Rate(self.zero_variance, self.zero_variance + self.signal)

    @property
    def precision(self) -> Rate:
        """Share of zero variance among the labelled cuts."""
        return Rate(self.right, self.right + self.wrong)

    @property
    def loss(self) -> Rate:
        """Share of the signal-bearing groups that are cut: the false-cut rate."""
        return Rate(self.wrong, self.signal)
