"""The sum of pair distances of a growing group, known only as closely as a decision needs it.

Let D_k be the edit distance of two rows at their common length k. One more symbol on both rows gives
D_k <= D_{k+1} <= D_k + 1, and D_{k+1} <= D_k if the two new symbols are equal (Ukkonen's diagonal property).
Summed over the P pairs of a group, S_k never falls, and it rises by at most the pairs that differ in the new
column. So one look at S keeps deciding later positions: no fire while lower / (P*k) >= tau, a sure fire while
upper / (P*k) < tau, and an edit distance is computed only in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import comb
from typing import Final

from rapidfuzz.distance.Levenshtein import distance

from selective_rollout.distance.symbols import END_CODE

_CAP: Final = 3.0
"""A long pair is first measured up to this multiple of tau*k: enough to see that the group will not fire now
and for long after, at a fraction of the price of a full distance."""

_CHEAP: Final = 64
"""Edits up to which a cap saves nothing: a band of so many diagonals fits one machine word."""


class PairBounds:
    """Bounds of S_k for a fixed set of rows, each row padded with END to the position k.

    Every method takes the rows (strings, one character a symbol; symbols beyond k are ignored) and the
    position, which may only rise from call to call.

    Attributes:
        lower: S_k is at least this, at every position from the last one on.
        upper: S is at most this at position `absorbed`.
        absorbed: columns that `upper` accounts for.
        evaluations: edit distances computed so far.
    """

    def __init__(self, members: int) -> None:
        self.pairs = comb(members, 2)
        self.lower = 0
        self.upper = 0
        self.absorbed = 0
        self.evaluations = 0
        self._looked_at = 0
        self._next_pair = 0
        self._class_of = [0] * members
        self._sizes = Counter(self._class_of)
        self._texts: dict[int, str] = {0: ""}
        self._pair_lower = [[0]]
        self._exact: set[tuple[int, int]] = set()

    def below(self, rows: Sequence[str], k: int, tau: float) -> bool:
        """Return whether S_k / (P*k) < tau, exactly."""
        total = self.pairs * k
        if self.lower / total >= tau:
            return False
        if self.upper / total < tau:
            self.absorb(rows, k)
            if self.upper / total < tau:
                return True
        self._look(rows, k)
        return self._measure_below(k, tau)

    def exact_sum(self, rows: Sequence[str], k: int) -> int:
        """Return S_k."""
        self._look(rows, k)
        for pair in self._stalest_pairs():
            self._measure(pair, k)
        self._settle(k)
        return self.lower

    def absorb(self, rows: Sequence[str], k: int) -> None:
        """Raise `upper` by the pairs that differ in each column not yet accounted for."""
        if self.absorbed == k:
            return
        for column in zip(*_padded(rows, self.absorbed, k), strict=True):
            if column.count(column[0]) < len(column):
                self.upper += self.pairs - _equal_pairs(column)
        self.absorbed = k

    def _look(self, rows: Sequence[str], k: int) -> None:
        """Split the classes of rows that were equal so far by what they are at k.

        Equal rows share one class, so a pair of classes is measured once for all their members. Classes only
        ever split, and each part inherits the lower bounds of the whole.
        """
        if k == self._looked_at:
            return
        known: dict[str, int] = {}
        texts: dict[int, str] = {}
        for member, text in enumerate(_padded(rows, 0, k)):
            if text not in known:
                parent = self._class_of[member]
                known[text] = self._split(parent) if parent in texts else parent
                texts[known[text]] = text
            self._class_of[member] = known[text]
        self._texts = texts
        self._sizes = Counter(self._class_of)
        self._exact.clear()
        self._looked_at = k

    def _split(self, parent: int) -> int:
        inherited = self._pair_lower[parent].copy()
        for bounds, bound in zip(self._pair_lower, inherited, strict=True):
            bounds.append(bound)
        self._pair_lower.append([*inherited, 0])
        return len(inherited)

    def _measure_below(self, k: int, tau: float) -> bool:
        """Measure pairs, first up to a cap, until the answer is certain."""
        total = self.pairs * k
        for cap in (min(k, max(_CHEAP, int(_CAP * tau * k))), k):
            for pair in self._stalest_pairs():
                if self.lower / total >= tau:
                    return False
                self._measure(pair, cap)
            if len(self._exact) == comb(len(self._texts), 2):
                break
        self._settle(k)
        return self.lower / total < tau

    def _stalest_pairs(self) -> Iterator[tuple[int, int]]:
        """Yield every pair of classes once, going on where the last round stopped.

        The pair measured longest ago has gained most since. Neighbours on a ring come first, so that few
        pairs touch every row.
        """
        classes = len(self._texts)
        for _ in range(comb(classes, 2)):
            turn, first = divmod(self._next_pair % comb(classes, 2), classes)
            yield first, (first + turn + 1) % classes
            self._next_pair += 1

    def _measure(self, pair: tuple[int, int], cap: int) -> None:
        """Raise the lower bound of a pair to its distance, or above the cap if it is farther apart."""
        a, b = pair
        bound = self._pair_lower[a][b]
        if bound > cap or pair in self._exact:
            return
        measured = distance(self._texts[a], self._texts[b], score_cutoff=cap, score_hint=2 * bound)
        self.evaluations += 1
        if measured <= cap:
            self._exact.add(pair)
        if measured > bound:
            self._pair_lower[a][b] = self._pair_lower[b][a] = measured
            self.lower += (measured - bound) * self._sizes[a] * self._sizes[b]

    def _settle(self, k: int) -> None:
        """Note that every pair is exact at k, so that both bounds meet."""
        self.upper = self.lower
        self.absorbed = k


def _padded(rows: Sequence[str], start: int, stop: int) -> list[str]:
    return [row[start:stop].ljust(stop - start, END_CODE) for row in rows]


def _equal_pairs(column: Sequence[str]) -> int:
    """Count the pairs of equal symbols: each one pairs with all its equals before it."""
    seen: dict[str, int] = {}
    equal = 0
    for symbol in column:
        before = seen.get(symbol, 0)
        equal += before
        seen[symbol] = before + 1
    return equal
