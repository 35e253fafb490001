"""The distance at every position at once.

Myers' bit-vector form of the edit-distance table (J. ACM 46(3), 1999) in Hyyro's formulation keeps one column
as two big integers. Bit i of its `d0` says that the diagonal step into row i is free, so the diagonal
d(a[:k], b[:k]) of all k comes out of one pass, without the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import comb

from selective_rollout.distance.pairs import exact_mean


def mean_curve(texts: Sequence[str], last: int) -> list[float]:
    """Return the mean pairwise distance of `texts` cut off at k, for k = 1 .. `last`.

    Args:
        texts: at least two strings, one character a symbol. Pairs are divided by the longer prefix, so texts
            padded to `last` give the padded mean.
        last: the last position.
    """
    sums: list[dict[int, int]] = [{} for _ in range(last)]
    for (a, copies_a), (b, copies_b) in combinations(Counter(texts).items(), 2):
        longer = max(len(a), len(b))
        for k, value in enumerate(prefix_distances(a, b, last), start=1):
            denominator = min(k, longer)
            at_k = sums[k - 1]
            at_k[denominator] = at_k.get(denominator, 0) + copies_a * copies_b * value
    return [exact_mean(at_k, comb(len(texts), 2)) for at_k in sums]


def prefix_distances(a: str, b: str, last: int) -> list[int]:
    """Return d(a[:k], b[:k]) for k = 1 .. `last`; beyond its end a string stays as it is."""
    rows, columns = (a, b) if len(a) <= len(b) else (b, a)
    if not rows:
        return [min(k, len(columns)) for k in range(1, last + 1)]
    matches: dict[str, int] = {}
    for row, symbol in enumerate(rows):
        matches[symbol] = matches.get(symbol, 0) | 1 << row
    all_rows = (1 << len(rows)) - 1
    last_row = len(rows) - 1
    rising, falling = all_rows, 0
    value, values = 0, []
    for column, symbol in enumerate(columns[:last]):
        match = matches.get(symbol, 0)
        d0 = ((((match & rising) + rising) ^ rising) | match | falling) & all_rows
        right_up = falling | (all_rows & ~(d0 | rising))
        right_down = d0 & rising
        if column <= last_row:
            value += 1 - (d0 >> column & 1)
        else:
            value += (right_up >> last_row & 1) - (right_down >> last_row & 1)
        values.append(value)
        shifted = right_up << 1 | 1
        rising = (right_down << 1 | ~(d0 | shifted)) & all_rows
        falling = shifted & d0
    return values + [value] * (last - len(values))
