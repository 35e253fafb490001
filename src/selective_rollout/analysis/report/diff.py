"""A report against a baseline: what changed, by how much, and how sure that is.

Each difference gets its interval from the two single ones (method of variance estimates recovery), which for
two shares is Newcombe's hybrid interval. It takes the two traces as independent; where they hold the same
tasks it is wider than need be, never narrower, as long as a task that is hard in one is hard in the other.

References: R. Newcombe, "Interval estimation for the difference between independent proportions", Statistics
in Medicine 17 (1998), method 10; G. Zou, A. Donner, "Construction of confidence limits about effect
measures", Statistics in Medicine 27 (2008).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from selective_rollout.analysis.report.quantities import Quantity
from selective_rollout.stats import Interval


@dataclass(frozen=True, slots=True)
class Change:
    """One quantity, then and now."""

    now: Quantity
    before: Quantity

    @property
    def value(self) -> float | None:
        """Now minus before; None if either is unknown."""
        if self.now.value is None or self.before.value is None:
            return None
        return self.now.value - self.before.value

    @property
    def interval(self) -> Interval | None:
        """95% interval of the difference; None if either has none."""
        if self.now.interval is None or self.before.interval is None:
            return None
        if self.now.value is None or self.before.value is None:
            return None
        return difference(self.now.value, self.now.interval, self.before.value, self.before.interval)

    @property
    def is_clear(self) -> bool | None:
        """Whether the interval excludes no change; None without an interval."""
        interval = self.interval
        return None if interval is None else interval.low > 0 or interval.high < 0

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON output."""
        interval = self.interval
        return {
            "now": self.now.value,
            "before": self.before.value,
            "change": self.value,
            "interval_95": None if interval is None else [interval.low, interval.high],
        }


def compare(now: Sequence[Quantity], before: Sequence[Quantity]) -> list[Change]:
    """Pair the quantities that both reports hold, by name."""
    old = {quantity.name: quantity for quantity in before}
    return [Change(quantity, old[quantity.name]) for quantity in now if quantity.name in old]


def difference(a: float, of_a: Interval, b: float, of_b: Interval) -> Interval:
    """Interval of a - b from the intervals of two independent estimates, at their common confidence."""
    return Interval(
        a - b - math.hypot(a - of_a.low, of_b.high - b),
        a - b + math.hypot(of_a.high - a, b - of_b.low),
    )
