"""Edit distances of the prefixes of many pairs at once, with one bit of a machine word per symbol.

The same bit-vector form as `distance.curve` (Myers, J. ACM 46(3), 1999, in Hyyro's formulation), with the
columns of all pairs worked on together by NumPy: bit i of `free` says that the diagonal step into row i costs
nothing, so d(a[:k], b[:k]) grows by its complement at k = i + 1. Needs the `analysis` extra.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from selective_rollout.errors import MissingExtraError

try:
    import numpy as np
    from numpy.typing import NDArray
except ImportError:
    raise MissingExtraError("analysis", "numpy") from None

Ints: TypeAlias = NDArray[np.integer[Any]]
Words: TypeAlias = NDArray[np.uint64]

WORD: Final = 64
_ONE: Final = np.uint64(1)
_TOP: Final = np.uint64(WORD - 1)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of numbered symbols, filled up to a common length.

    Two rows may be compared if they number their symbols alike, from 0 to the same largest number.
    """

    symbols: Ints
    """`symbols[t, row]`."""
    largest: Ints
    """Largest number that may come up in a row."""


def prefix_distances(rows: Rows, a: Ints, b: Ints, a_length: Ints, b_length: Ints) -> NDArray[np.int32]:
    """Return d(a[:k], b[:k]) of each pair for every k; beyond its length a row stays as it is.

    Args:
        rows: all rows.
        a: `a[pair]`, a row; never the longer one.
        b: `b[pair]`, the row compared with it.
        a_length: `a_length[pair]`, symbols of a.
        b_length: `b_length[pair]`.

    Returns:
        `distances[k - 1, pair]`.
    """
    start, match = _match_words(rows)
    length = len(rows.symbols)
    ends_early = bool(len(a)) and int(a_length.min()) < length
    column = _Column(match, len(a), a_length - 1 if ends_early else None)
    steps = np.empty((length, len(a)), np.int8)
    start_a = start[a]
    for t, symbols in enumerate(rows.symbols):
        column.advance(start_a + symbols[b], t)
        steps[t] = column.diagonal_step
        if ends_early:
            beyond = np.where(t < b_length, column.last_row_step(), 0)
            steps[t] = np.where(t < a_length, steps[t], beyond)
    return np.cumsum(steps, axis=0, dtype=np.int32)


def _match_words(rows: Rows) -> tuple[Ints, list[Words]]:
    """Return where each row's entries start, and for each word the bits at which a row has a symbol.

    `match[w][start[row] + symbol]` has bit i set if `symbols[w * 64 + i, row]` is the symbol.
    """
    sizes = rows.largest.astype(np.intp) + 1
    start = np.concatenate([np.zeros(1, np.intp), np.cumsum(sizes)])
    length = len(rows.symbols)
    match = [np.zeros(int(start[-1]), np.uint64) for _ in range(-(-length // WORD))]
    for t, symbols in enumerate(rows.symbols):
        match[t // WORD][start[:-1] + symbols] |= _ONE << np.uint64(t % WORD)
    return start[:-1], match


class _Column:
    """One column of the tables of all pairs, as differences between neighbouring rows.

    Args:
        match: for each word, the bits of every entry.
        pairs: number of tables.
        last_row: row of each table whose differences are asked for; -1: the top row, which always rises.
    """

    def __init__(self, match: Sequence[Words], pairs: int, last_row: Ints | None) -> None:
        self._match = match
        self._rising = [np.full(pairs, ~np.uint64(0)) for _ in match]
        self._falling = [np.zeros(pairs, np.uint64) for _ in match]
        self._matches, self._free, self._up, self._down, self._spare = np.empty((5, pairs), np.uint64)
        self.diagonal_step = np.empty(pairs, np.bool_)
        """Growth of the distance along the diagonal, from the column before to this one."""
        self._watched = [] if last_row is None else _bits_of(last_row, len(match))
        self._top = None if last_row is None else last_row < 0
        self._went_up, self._went_down = np.zeros((2, pairs), np.bool_)

    def advance(self, entry: Ints, t: int) -> None:
        """Move to column t, in which each pair's bits are those of its entry."""
        carry: NDArray[np.bool_] | None = None
        up_in: Words | np.uint64 = _ONE
        down_in: Words | None = None
        matches, free, up, down, spare = self._matches, self._free, self._up, self._down, self._spare
        for w, words in enumerate(self._match):
            rising, falling = self._rising[w], self._falling[w]
            np.take(words, entry, out=matches, mode="clip")
            np.bitwise_and(matches, rising, out=spare)
            np.add(spare, rising, out=free)
            if carry is not None:
                free += carry
            if w + 1 < len(self._match):
                carry = free < spare if carry is None else (free < spare) | ((free == spare) & carry)
            free ^= rising
            free |= matches
            free |= falling
            np.bitwise_or(free, rising, out=up)
            np.invert(up, out=up)
            up |= falling
            np.bitwise_and(free, rising, out=down)
            self._look(w, t)
            np.left_shift(up, _ONE, out=spare)
            spare |= up_in
            np.bitwise_and(spare, free, out=falling)
            spare |= free
            np.invert(spare, out=spare)
            np.left_shift(down, _ONE, out=rising)
            if down_in is not None:
                rising |= down_in
            rising |= spare
            if w + 1 < len(self._match):
                up_in, down_in = up >> _TOP, down >> _TOP

    def last_row_step(self) -> Ints:
        """Growth of the distance along the watched row, from the column before to this one."""
        return self._went_up.astype(np.int8) - self._went_down.astype(np.int8)

    def _look(self, w: int, t: int) -> None:
        """Note what is asked for in this word."""
        if w == t // WORD:
            np.bitwise_and(self._free, _ONE << np.uint64(t % WORD), out=self._spare)
            np.equal(self._spare, 0, out=self.diagonal_step)
        if self._watched:
            if w == 0:
                self._went_up[:] = self._top
                self._went_down[:] = False
            self._went_up |= (self._up & self._watched[w]) != 0
            self._went_down |= (self._down & self._watched[w]) != 0


def _bits_of(rows: Ints, words: int) -> list[Words]:
    """For each word, the bit of each row, if the row is in that word."""
    bits = _ONE << (rows % WORD).astype(np.uint64)
    return [np.where(rows // WORD == w, bits, np.uint64(0)) for w in range(words)]
