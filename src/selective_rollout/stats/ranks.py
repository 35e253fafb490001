"""Rank statistics and the bootstrap."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from selective_rollout.errors import ConfigError
from selective_rollout.stats.binomial import Interval, check_fraction

T = TypeVar("T")


def auroc(scores: Sequence[float], labels: Sequence[bool]) -> float | None:
    """Probability that a positive scores higher than a negative, ties counted half; exact up to one division.

    Args:
        scores: `scores[i]`; a higher score should mean label True.
        labels: `labels[i]`, aligned with the scores.

    Returns:
        The area in 0..1, None if only one class is there.

    Raises:
        ConfigError: the lengths differ, or a score is NaN.
    """
    doubled = _doubled_ranks(scores, len(labels))
    positives = sum(map(bool, labels))
    negatives = len(labels) - positives
    if not positives or not negatives:
        return None
    rank_sum = sum(rank for rank, label in zip(doubled, labels, strict=True) if label)
    return (rank_sum - positives * (positives + 1)) / (2 * positives * negatives)


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Rank correlation with average ranks for ties; None if a side is constant.

    Raises:
        ConfigError: the lengths differ, or a value is NaN.
    """
    doubled_x, doubled_y = _doubled_ranks(xs, len(ys)), _doubled_ranks(ys, len(xs))
    mean = len(xs) + 1
    products = sum((x - mean) * (y - mean) for x, y in zip(doubled_x, doubled_y, strict=True))
    spread_x = sum((x - mean) ** 2 for x in doubled_x)
    spread_y = sum((y - mean) ** 2 for y in doubled_y)
    return products / math.sqrt(spread_x * spread_y) if spread_x and spread_y else None


def bootstrap_interval(
    statistic: Callable[[Sequence[T]], float | None],
    items: Sequence[T],
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval | None:
    """Percentile bootstrap interval of a statistic.

    Args:
        statistic: a function of a sample; None where it is not defined (such a resample is left out).
        items: independent units (tasks, not rollouts), drawn with replacement.
        confidence: coverage aimed at.
        resamples: number of samples drawn.
        seed: the same seed gives the same interval.

    Returns:
        The interval, None if the statistic is defined on fewer than half of the resamples.

    Raises:
        ConfigError: confidence is not strictly between 0 and 1, or resamples is below 1.
    """
    check_fraction("confidence", confidence)
    if resamples < 1:
        raise ConfigError(f"resamples must be 1 or more, not {resamples}")
    if not items:
        return None
    draw = random.Random(seed)
    drawn = (statistic(draw.choices(items, k=len(items))) for _ in range(resamples))
    values = sorted(value for value in drawn if value is not None)
    if 2 * len(values) < resamples:
        return None
    tail = (1 - confidence) / 2
    return Interval(_quantile(values, tail), _quantile(values, 1 - tail))


def _doubled_ranks(values: Sequence[float], expected: int) -> list[int]:
    """Average ranks from 1, times two, so that they are integers."""
    if len(values) != expected:
        raise ConfigError(f"{len(values)} values do not align with {expected}")
    if any(math.isnan(value) for value in values):
        raise ConfigError("NaN has no rank: leave unscored items out")
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for position in order[start:end]:
            ranks[position] = start + 1 + end
        start = end
    return ranks


def _quantile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
