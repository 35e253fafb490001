"""The distance of many recorded groups at every position, in one pass over all of them.

Groups of about the same length are worked on together; each pair of different rows is gone through once, for
all positions. Sums stay integers until one last division, so the values are those of `GroupDistance` to the
last bit. Needs the `analysis` extra; `analysis.curve` does the same for one group without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import Final, TypeAlias

from selective_rollout.analysis.bit_diagonal import WORD, Ints, Rows, prefix_distances
from selective_rollout.analysis.curve import MemberRow, rows_curve
from selective_rollout.distance.pairs import exact_mean
from selective_rollout.distance.symbols import END_CODE, SymbolTable
from selective_rollout.errors import MissingExtraError
from selective_rollout.types import Padding

try:
    import numpy as np
    from numpy.typing import NDArray
except ImportError:
    raise MissingExtraError("analysis", "numpy") from None

Curve: TypeAlias = NDArray[np.float64]

_LONGEST: Final = 16 * WORD
"""Longer rows are gone through pair by pair: with so many words a column costs more than it saves."""
_PAIRS: Final = 4096
"""Pairs worked on together: enough to hide what a call of NumPy costs, few enough to stay in the cache."""
_ENTRIES: Final = 2**20
"""Match entries of the rows worked on together."""


def renamed(rows: Sequence[MemberRow], symbol: Callable[[str], str]) -> list[MemberRow]:
    """Give every action of a group another symbol, such as its tool name."""
    return [MemberRow(list(map(symbol, row.actions)), row.last) for row in rows]


def mean_curves(groups: Sequence[Sequence[MemberRow]], padding: Padding = "end") -> list[Curve]:
    """Return what `rows_curve` gives for each group.

    Args:
        groups: the rows of each group's members; some hundreds at a time are enough to be fast.
        padding: "end" or "none".

    Returns:
        `curves[i][k - 1]`, the mean pairwise distance of group i at step k.
    """
    curves: list[Curve] = [np.empty(0) for _ in groups]
    batchable: list[_Encoded] = []
    for place, rows in enumerate(groups):
        length = max((len(row.actions) for row in rows), default=0)
        if len(rows) < 2 or not length:
            continue
        if length > _LONGEST:
            curves[place] = np.array(rows_curve(rows, padding))
        else:
            batchable.append(_encoded(place, rows, length))
    for chunk in _chunks(batchable):
        for encoded, curve in zip(chunk, _chunk_curves(chunk, padding), strict=True):
            curves[encoded.place] = curve
    return curves


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A group whose equal rows are one."""

    place: int
    length: int
    """Of the longest row."""
    texts: Sequence[str]
    """Different rows, one character a symbol."""
    lasts: Sequence[int]
    """Last position at which each of them is present."""
    copies: Sequence[int]
    largest: int
    """Largest code of a symbol."""

    @property
    def pairs(self) -> int:
        """Pairs of different rows."""
        return comb(len(self.texts), 2)


def _encoded(place: int, rows: Sequence[MemberRow], length: int) -> _Encoded:
    table = SymbolTable()
    counts = Counter((table.encode(row.actions), length if row.last is None else row.last) for row in rows)
    return _Encoded(
        place=place,
        length=length,
        texts=[text for text, _ in counts],
        lasts=[last for _, last in counts],
        copies=list(counts.values()),
        largest=ord(next(reversed(table.values()))),
    )


def _chunks(groups: Iterable[_Encoded]) -> Iterator[list[_Encoded]]:
    """Put groups of about the same length together, as many as are fast in one go."""
    chunk: list[_Encoded] = []
    pairs = entries = 0
    for group in sorted(groups, key=lambda group: group.length):
        words = -(-group.length // WORD)
        if chunk and (pairs > _PAIRS or entries > _ENTRIES or words > -(-chunk[0].length // WORD)):
            yield chunk
            chunk, pairs, entries = [], 0, 0
        chunk.append(group)
        pairs += group.pairs
        entries += len(group.texts) * (group.largest + 1) * words
    if chunk:
        yield chunk


def _chunk_curves(chunk: Sequence[_Encoded], padding: Padding) -> list[Curve]:
    length = chunk[-1].length
    table = _pair_table(chunk, length)
    distances = _distances(table, length, padding)
    counts = [group.pairs for group in chunk]
    sums = _sums_by_group(distances, counts)
    present = _present(chunk, length)
    pairs = present * (present - 1) // 2
    means = sums / np.maximum(pairs * np.arange(1, length + 1), 1)
    ends = np.cumsum(counts)
    curves = []
    for i, group in enumerate(chunk):
        own = min(group.length, int((pairs[i] > 0).sum()))
        curve = means[i, :own].copy()
        if padding == "none":
            of_group = slice(ends[i] - counts[i], ends[i])
            _settle_ended(curve, distances[:own, of_group], table.longer[of_group], pairs[i])
        curves.append(curve)
    return curves


@dataclass(frozen=True, slots=True)
class _PairTable:
    """The pairs of different rows of a chunk, group by group."""

    rows: Rows
    a: Ints
    """The shorter row of each pair."""
    b: Ints
    shorter: Ints
    """Length of a."""
    longer: Ints
    last: Ints
    """Last position at which both members are present."""
    weight: Ints
    """Pairs of members that this pair of rows stands for."""


def _pair_table(chunk: Sequence[_Encoded], length: int) -> _PairTable:
    texts = [text for group in chunk for text in group.texts]
    lengths = np.array([len(text) for text in texts])
    lasts = np.array([last for group in chunk for last in group.lasts])
    copies = np.array([number for group in chunk for number in group.copies])
    codes = np.frombuffer("".join(text.ljust(length, END_CODE) for text in texts).encode("utf-32-le"), "<u4")
    left, right, first = [], [], 0
    for group in chunk:
        a, b = _all_pairs(len(group.texts))
        left.append(a + first)
        right.append(b + first)
        first += len(group.texts)
    one, other = np.concatenate(left), np.concatenate(right)
    swap = lengths[one] > lengths[other]
    a, b = np.where(swap, other, one), np.where(swap, one, other)
    return _PairTable(
        rows=Rows(
            symbols=np.ascontiguousarray(codes.reshape(len(texts), length).T),
            largest=np.repeat([group.largest for group in chunk], [len(group.texts) for group in chunk]),
        ),
        a=a,
        b=b,
        shorter=lengths[a],
        longer=lengths[b],
        last=np.minimum(lasts[a], lasts[b]),
        weight=copies[a] * copies[b],
    )


@lru_cache(maxsize=64)
def _all_pairs(rows: int) -> tuple[Ints, Ints]:
    a, b = np.triu_indices(rows, 1)
    return a, b


def _distances(table: _PairTable, length: int, padding: Padding) -> Ints:
    """Distance times weight, 0 where a member is absent: `[k - 1, pair]`."""
    ends = (np.full_like(table.a, length),) * 2 if padding == "end" else (table.shorter, table.longer)
    distances = prefix_distances(table.rows, table.a, table.b, *ends)
    distances *= table.weight.astype(np.int32)
    if len(table.last) and table.last.min() < length:
        distances[np.arange(1, length + 1)[:, None] > table.last] = 0
    return distances


def _sums_by_group(distances: Ints, counts: Sequence[int]) -> Ints:
    """Sum over the pairs of each group: `[group, k - 1]`."""
    sums = np.zeros((len(counts), len(distances)), np.int64)
    filled = [i for i, count in enumerate(counts) if count]
    if filled:
        begins = np.concatenate([[0], np.cumsum(counts)])[filled]
        sums[filled] = np.add.reduceat(distances, begins, axis=1, dtype=np.int64).T
    return sums


def _present(chunk: Sequence[_Encoded], length: int) -> Ints:
    """Members present: `[group, k - 1]`."""
    present = np.empty((len(chunk), length), np.int64)
    for i, group in enumerate(chunk):
        present[i] = sum(group.copies)
        for last, copies in zip(group.lasts, group.copies, strict=True):
            if last < group.length:
                present[i, last:] -= copies
    return present


def _settle_ended(curve: Curve, distances: Ints, longer: Ints, pairs: Ints) -> None:
    """Without END, pairs of which both rows have ended keep their own denominators: replace those means."""
    first = int(longer.min(initial=len(curve)))
    if first >= len(curve):
        return
    denominators = sorted(set(longer.tolist()) - {0})
    amounts = np.stack([distances[:, longer == n].sum(axis=1) for n in denominators], axis=1).tolist()
    for k in range(first + 1, len(curve) + 1):
        sums: dict[int, int] = {}
        for n, amount in zip(denominators, amounts[k - 1], strict=True):
            sums[min(n, k)] = sums.get(min(n, k), 0) + amount
        curve[k - 1] = exact_mean(sums, int(pairs[k - 1]))
