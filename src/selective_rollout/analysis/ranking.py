"""How well many numbers rank groups by a label: areas, intervals over tasks, and what chance alone reaches.

Everything resamples tasks, never groups, since groups of one task are no independent evidence. Needs the
`analysis` extra; `stats.ranks` says the same of a single ranking without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from selective_rollout.analysis.resampling import task_weights
from selective_rollout.errors import MissingExtraError
from selective_rollout.stats import Interval

try:
    import numpy as np
    from numpy.typing import NDArray
except ImportError:
    raise MissingExtraError("analysis", "numpy") from None

Floats: TypeAlias = NDArray[np.float64]
Labels: TypeAlias = NDArray[np.bool_]
Places: TypeAlias = NDArray[np.intp]

_DRAWS: Final = 4_000_000
"""Groups times resamples; more groups need fewer resamples for the same precision."""
_FEWEST: Final = 200


@dataclass(frozen=True, slots=True)
class Area:
    """An AUROC, the probability that a positive ranks above a negative; None if a class is missing."""

    value: float | None
    interval: Interval | None
    """95% percentile bootstrap over tasks."""
    positives: int
    negatives: int

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON output."""
        return {
            "value": self.value,
            "interval_95": None if self.interval is None else [self.interval.low, self.interval.high],
            "positives": self.positives,
            "negatives": self.negatives,
        }


class ResampledAreas:
    """Areas with intervals, from resamples of the tasks that all rankings of the same groups share.

    Args:
        task_ids: `task_ids[group]`.
        resamples: drawn at most; fewer for many groups, at least 200.
        seed: the same seed gives the same intervals.
    """

    def __init__(self, task_ids: Sequence[str], *, resamples: int = 2000, seed: int = 0) -> None:
        names, self._task_of = np.unique(np.array(task_ids, dtype=object), return_inverse=True)
        count = max(min(_FEWEST, resamples), min(resamples, _DRAWS // max(len(task_ids), 1)))
        self._times = np.empty((len(names), count), np.uint16)
        for place, name in enumerate(names):
            self._times[place] = task_weights(name, count, seed)
        """`[task, resample]`: how often the task is in it."""

    def area(self, scores: Floats, labels: Labels, among: Labels) -> Area:
        """AUROC of "a higher score means True" with its interval.

        Args:
            scores: `scores[group]`; NaN is unknown and left out.
            labels: `labels[group]`.
            among: groups that take part.
        """
        known = among & ~np.isnan(scores)
        ups, downs = np.flatnonzero(known & labels), np.flatnonzero(known & ~labels)
        if not len(ups) or not len(downs):
            return Area(None, None, len(ups), len(downs))
        downs = downs[np.argsort(scores[downs], kind="stable")]
        below = np.searchsorted(scores[downs], scores[ups], "left")
        not_above = np.searchsorted(scores[downs], scores[ups], "right")
        value = int((below + not_above).sum()) / (2 * len(ups) * len(downs))
        drawn = self._drawn_areas(ups, downs, below, not_above)
        interval = None
        if 2 * len(drawn) >= self._times.shape[1]:
            low, high = np.quantile(drawn, [0.025, 0.975])
            interval = Interval(float(low), float(high))
        return Area(value, interval, len(ups), len(downs))

    def _drawn_areas(self, ups: Places, downs: Places, below: Places, not_above: Places) -> Floats:
        """The area in every resample that has both classes.

        Args:
            ups: positives.
            downs: negatives by ascending score.
            below: `below[i]`, how many of the downs score less than positive i.
            not_above: `not_above[i]`, how many score no more.
        """
        areas = []
        columns = max(1, _DRAWS // 4 // (len(ups) + len(downs)))
        for begin in range(0, self._times.shape[1], columns):
            times = self._times[:, begin : begin + columns].astype(np.float64)
            up, down = times[self._task_of[ups]], times[self._task_of[downs]]
            passed = np.concatenate([np.zeros((1, down.shape[1])), np.cumsum(down, axis=0)])
            won = np.einsum("ir,ir->r", up, passed[below] + passed[not_above])
            pairs = 2 * up.sum(axis=0) * passed[-1]
            areas.append(won[pairs > 0] / pairs[pairs > 0])
        return np.concatenate(areas)


@dataclass(frozen=True, slots=True)
class Chance:
    """What the best of all rankings reaches when labels say nothing."""

    rankings: int
    """Rankings looked at."""
    permutations: int
    median: float
    p95: float
    p_value: float
    """Share of the permutations, the true labels included, whose best ranking is at least as good as ours."""

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON output."""
        return {name: getattr(self, name) for name in self.__slots__}


def best_by_chance(
    scores: Floats, labels: Labels, task_ids: Sequence[str], *, permutations: int = 1000, seed: int = 0
) -> Chance | None:
    """Give the labels to other tasks, again and again, and see how well the best ranking then does.

    Labels move in blocks: the tasks are shuffled and their labels laid end to end, so that what groups of
    one task have in common stays together.

    Args:
        scores: `scores[group, ranking]`; NaN is unknown.
        labels: `labels[group]`.
        task_ids: `task_ids[group]`.
        permutations: drawn at most; fewer for many groups.
        seed: the same seed gives the same result.

    Returns:
        The distribution of the best AUROC; None if no ranking has both classes.
    """
    order = np.argsort(np.array(task_ids, dtype=object), kind="stable")
    scores, labels = scores[order], labels[order]
    _, first, sizes = np.unique(
        np.array(task_ids, dtype=object)[order], return_index=True, return_counts=True
    )
    ranks, known = _doubled_ranks(scores), ~np.isnan(scores)
    observed = _best(labels[None, :], ranks, known)[0]
    if np.isnan(observed):
        return None
    count = max(min(_FEWEST, permutations), min(permutations, _DRAWS // max(len(labels), 1)))
    draw = np.random.default_rng(seed)
    best = np.empty(count)
    rows = max(1, _DRAWS // 4 // len(labels))
    for begin in range(0, count, rows):
        shuffled = np.empty((min(rows, count - begin), len(labels)), np.bool_)
        for row in shuffled:
            tasks = draw.permutation(len(sizes))
            row[:] = labels[_laid_out(first[tasks], sizes[tasks])]
        best[begin : begin + rows] = _best(shuffled, ranks, known)
    best = best[~np.isnan(best)]
    at_least = int((best >= observed).sum())
    median, p95 = np.quantile(best, [0.5, 0.95])
    return Chance(scores.shape[1], len(best), float(median), float(p95), (at_least + 1) / (len(best) + 1))


def rank_correlation(xs: Floats, ys: Floats) -> float | None:
    """Spearman's rank correlation where both are known; None if a side is constant there."""
    known = ~np.isnan(xs) & ~np.isnan(ys)
    x, y = _doubled_ranks(np.stack([xs[known], ys[known]], axis=1)).T
    x, y = x - (len(x) + 1), y - (len(y) + 1)
    spread = float(x @ x) * float(y @ y)
    return float(x @ y) / math.sqrt(spread) if spread else None


def _laid_out(first: Places, sizes: Places) -> Places:
    """Places first[i] .. first[i] + sizes[i] - 1 of every block, one block after the other."""
    begins = np.cumsum(sizes) - sizes
    places: Places = np.arange(int(sizes.sum())) + np.repeat(first - begins, sizes)
    return places


def _best(labels: Labels, ranks: Floats, known: Labels) -> Floats:
    """Best AUROC over the rankings, for each row of labels; NaN if no ranking has both classes."""
    ups = labels.astype(np.float64)
    positives = ups @ known
    negatives = known.sum(axis=0) - positives
    won = ups @ ranks - positives * (positives + 1)
    pairs = 2 * positives * negatives
    areas = np.full(won.shape, -np.inf)
    np.divide(won, pairs, out=areas, where=pairs > 0)
    best = areas.max(axis=1, initial=-np.inf)
    return np.where(np.isinf(best), np.nan, best)


def _doubled_ranks(scores: Floats) -> Floats:
    """Average ranks from 1 within each column, times two; 0 for what is unknown."""
    ranks = np.zeros(scores.shape)
    for column, values in enumerate(scores.T):
        use = np.flatnonzero(~np.isnan(values))
        _, place, counts = np.unique(values[use], return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        ranks[use, column] = (2 * ends - counts + 1)[place]
    return ranks
