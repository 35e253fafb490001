"""The metric as a textbook writes it: slow, short, and the measure of the fast path.

Works on the symbols themselves, by `==`, with exact fractions; no interning, no bounds, no library.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

from selective_rollout.types import END, Padding


def edit_distance(a: Sequence[object], b: Sequence[object]) -> int:
    """Return the fewest insertions, deletions and substitutions that turn a into b."""
    above = list(range(len(b) + 1))
    for i, left in enumerate(a, start=1):
        row = [i]
        for j, right in enumerate(b, start=1):
            same = left is right or left == right
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (not same)))
        above = row
    return above[-1]


def mean_distance(prefixes: Sequence[Sequence[object]], k: int, padding: Padding) -> Fraction | None:
    """Return the mean pairwise distance at position k, or None if it has no meaning.

    Args:
        prefixes: `prefixes[g][t]`, one row per present rollout, as long as it got; only the first k symbols
            are read.
        k: position compared, in steps.
        padding: "end" fills every row with END to k and divides by k; "none" leaves rows as they are and
            divides by the longer of the two.

    Returns:
        An exact fraction in [0, 1]; None with fewer than two rows or at position 0.
    """
    if len(prefixes) < 2 or k == 0:
        return None
    rows = [list(prefix[:k]) for prefix in prefixes]
    if padding == "end":
        rows = [row + [END] * (k - len(row)) for row in rows]
    pairs = list(combinations(rows, 2))
    return sum((_normalised(a, b) for a, b in pairs), start=Fraction(0)) / len(pairs)


def _normalised(a: Sequence[object], b: Sequence[object]) -> Fraction:
    return Fraction(edit_distance(a, b), max(len(a), len(b), 1))
