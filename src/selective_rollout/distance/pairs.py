"""Sums over the pairs of a group, exact until one last division."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import combinations
from math import lcm

from rapidfuzz.distance.Levenshtein import distance

from selective_rollout.errors import ConfigError


def check_tau(tau: float) -> None:
    """Refuse a threshold that no distance can be compared with.

    Raises:
        ConfigError: tau is NaN or outside [0, 1].
    """
    if not 0.0 <= tau <= 1.0:
        raise ConfigError(f"tau is {tau!r}: give a number from 0 to 1")


def pair_sums(texts: Iterable[str]) -> dict[int, int]:
    """Add up the edit distances of all pairs, grouped by denominator.

    Args:
        texts: one string per rollout, one character a symbol. Equal texts are measured once.

    Returns:
        {length of the longer text: sum of the distances of such pairs}; pairs at distance 0 add nothing.
    """
    sums: dict[int, int] = {}
    for (a, copies_a), (b, copies_b) in combinations(Counter(texts).items(), 2):
        longer = max(len(a), len(b))
        sums[longer] = sums.get(longer, 0) + copies_a * copies_b * distance(a, b)
    return sums


def exact_mean(sums: Mapping[int, int], pairs: int) -> float:
    """Return (sum over denominators n of sums[n] / n) / pairs, correctly rounded.

    Adding the quotients as floats would put about half of the means that equal a threshold below it.
    """
    common = lcm(*sums)
    total = sum(amount * (common // denominator) for denominator, amount in sums.items())
    return total / (common * pairs)
