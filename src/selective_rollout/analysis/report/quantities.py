"""Named numbers with intervals.

Shares of groups carry exact (Clopper-Pearson) intervals. Ratios such as the share of steps saved have no
exact one and are resampled, task by task (`analysis.resampling`); nothing has to be kept in memory but the
weighted sums. Where prompts repeat, a share's interval is widened to cover the resampled one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from selective_rollout.analysis.rates import Rate
from selective_rollout.analysis.resampling import task_weights
from selective_rollout.errors import MissingExtraError
from selective_rollout.stats import Interval

try:
    import numpy as np
except ImportError:
    raise MissingExtraError("analysis", "numpy") from None

Sums: TypeAlias = Mapping[str, Any]
"""Weighted sums by name, one value per draw."""

DRAWS: Final = 1000
FEWEST_TASKS: Final = 10
"""Below this many tasks a resampled interval says more than is known, so there is none."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that was measured; None where there is nothing to measure it on."""

    name: str
    """Name for programs, as in `--fail-if`."""
    words: str
    """Name for people."""
    value: float | None
    interval: Interval | None = None
    """95%; None if it cannot be told."""
    is_share: bool = True
    counts: tuple[int, int] | None = None
    """(hits, trials) of a share of things counted."""

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON output."""
        return {
            "value": self.value,
            "interval_95": None if self.interval is None else [self.interval.low, self.interval.high],
            "counts": None if self.counts is None else list(self.counts),
        }


class TaskBootstrap:
    """Weighted sums of what is added, in many resamplings of the tasks at once.

    Args:
        names: what is summed up.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._sums = np.zeros((len(self._names), DRAWS))
        self._tasks: set[str] = set()
        self._groups = 0

    @property
    def tasks(self) -> int:
        """Independent tasks seen."""
        return len(self._tasks)

    @property
    def repeats(self) -> bool:
        """Whether some task came more than once."""
        return self._groups > len(self._tasks)

    def add(self, task_id: str, values: Mapping[str, float]) -> None:
        """Add one group; names that are left out count 0."""
        self._tasks.add(task_id)
        self._groups += 1
        row = np.array([values.get(name, 0.0) for name in self._names])
        self._sums += row[:, None] * task_weights(task_id, DRAWS)[None, :]

    def interval(self, statistic: Callable[[Sums], Any]) -> Interval | None:
        """95% percentile interval of a statistic of the sums.

        None with too few tasks, if it is never defined, or if it never varies: resampling what was not seen
        once (no wrong cut) says nothing about how often it happens.
        """
        if self.tasks < FEWEST_TASKS:
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.asarray(statistic(dict(zip(self._names, self._sums, strict=True))), dtype=float)
        values = values[np.isfinite(values)]
        if not len(values):
            return None
        low, high = np.quantile(values, [0.025, 0.975])
        return Interval(float(low), float(high)) if low < high else None


def counted_share(name: str, words: str, rate: Rate, resampled: Interval | None = None) -> Quantity:
    """A counted share with its exact interval, widened to cover a resampled one."""
    interval = rate.interval
    if interval is not None and resampled is not None:
        interval = hull(interval, resampled)
    return Quantity(name, words, rate.value, interval, counts=(rate.hits, rate.trials))


def hull(one: Interval, other: Interval) -> Interval:
    """The smallest interval that covers two."""
    return Interval(min(one.low, other.low), max(one.high, other.high))
