"""The distance of one group while it runs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from math import comb
from typing import get_args

from selective_rollout.distance.bounds import PairBounds
from selective_rollout.distance.curve import mean_curve
from selective_rollout.distance.pairs import check_tau, exact_mean, pair_sums
from selective_rollout.distance.symbols import END_CODE, SymbolTable
from selective_rollout.errors import ConfigError, GroupError
from selective_rollout.types import END, Padding


class GroupDistance:
    """Mean pairwise normalised edit distance of a group's prefixes, at a position that moves up.

    Members are numbered 0 .. size-1 and all run at first. A member runs until `finish` (it ended) or `drop`
    (it failed and counts no more). Its symbols may be actions, token ids or characters: whatever is `==` is
    the same symbol.

    The **position** k is how many symbols of each member are compared; what a member has beyond k waits.
    `append` (one step for everybody) and `extend` (uneven chunks) move it as far as all running members have
    come. `push`, `push_all` and `finish` leave it alone, and `advance_to` moves it by hand, so that the
    result depends on positions only and never on the order of arrival.

    padding="end" fills finished members with END to k and divides by k. Differences between finished members
    then fade as k grows. padding="none" compares what there is, d(a[:k], b[:k]) / max of the two lengths.

    This is the metric and nothing but the metric: who must be present and running for a group to be stopped
    is for the gate to say. Not thread-safe. Pickles as plain data.

    Args:
        size: members of the group, at least 1.
        padding: "end" or "none".

    Raises:
        ConfigError: size or padding is not one of these.
    """

    def __init__(self, size: int, padding: Padding = "end") -> None:
        if size < 1:
            raise ConfigError(f"size is {size!r}: a group has at least 1 member")
        if padding not in get_args(Padding):
            raise ConfigError(f'padding is {padding!r}: choose "end" or "none"')
        self._size = size
        self._padding = padding
        self._table = SymbolTable()
        self._rows = dict.fromkeys(range(size), "")
        self._open = set(range(size))
        self._position = 0
        self._bounds = PairBounds(size)
        self._ragged_mean: tuple[int, float] | None = None
        self._other_evaluations = 0

    @property
    def size(self) -> int:
        """Members at the start, dropped ones included."""
        return self._size

    @property
    def padding(self) -> Padding:
        """What happens beyond the end of a finished member."""
        return self._padding

    @property
    def position(self) -> int:
        """Symbols of each member that are compared now (k)."""
        return self._position

    @property
    def members(self) -> tuple[int, ...]:
        """Members that were not dropped, in order."""
        return tuple(self._rows)

    @property
    def running(self) -> tuple[int, ...]:
        """Members running at the position: not finished, or finished with more than k symbols."""
        return tuple(
            member for member, row in self._rows.items() if member in self._open or len(row) > self._position
        )

    @property
    def evaluations(self) -> int:
        """Edit distances computed so far; what is saved by the bounds shows here."""
        return self._bounds.evaluations + self._other_evaluations

    def push(self, member: int, symbol: object) -> None:
        """Add one symbol to one running member, without moving the position.

        Raises:
            GroupError: the member is unknown, finished or dropped.
            ConfigError: the symbol cannot be compared (unhashable, or END).
        """
        self._require_running(member)
        self._rows[member] += self._table.code(symbol)

    def push_all(self, member: int, symbols: Collection[object]) -> None:
        """Add several symbols to one running member, without moving the position. On an error none is added.

        Raises:
            GroupError: the member is unknown, finished or dropped.
            ConfigError: a symbol cannot be compared (unhashable, or END).
        """
        self._require_running(member)
        self._rows[member] += self._table.encode(symbols)

    def append(self, symbols: Sequence[object]) -> None:
        """Add one step of the whole group and move the position.

        Args:
            symbols: `symbols[g]` for member g, END for a member that has ended: it finishes, unless it did
                so before or was dropped.

        Raises:
            GroupError: not `size` symbols, or a symbol for a member that no longer runs. Nothing is added.
            ConfigError: a symbol cannot be compared.
        """
        self._require_one_each(symbols)
        code = self._table.code
        step = [(member, code(symbol)) for member, symbol in enumerate(symbols) if symbol is not END]
        for member, _ in step:
            self._require_running(member)
        if len(step) < len(self._open):
            self._open.intersection_update(member for member, _ in step)
        for member, symbol_code in step:
            self._rows[member] += symbol_code
        self._catch_up()

    def extend(self, rows: Sequence[Sequence[object]]) -> None:
        """Add chunks of any lengths and move the position as far as all running members have come.

        Args:
            rows: `rows[g]` holds the new symbols of member g; empty if there is nothing new.

        Raises:
            GroupError: not `size` chunks, or symbols for a member that no longer runs. Nothing is added.
            ConfigError: a symbol cannot be compared (unhashable, or END).
        """
        self._require_one_each(rows)
        new = {member: row for member, row in enumerate(rows) if len(row)}
        for member in new:
            self._require_running(member)
        chunks = {member: self._table.encode(row) for member, row in new.items()}
        for member, chunk in chunks.items():
            self._rows[member] += chunk
        self._catch_up()

    def finish(self, member: int) -> None:
        """Mark the end of a member after its last symbol. The position stays.

        Raises:
            GroupError: the member is unknown, already finished or dropped.
        """
        self._require_running(member)
        self._open.remove(member)

    def drop(self, member: int) -> None:
        """Remove a member and its pairs. The position stays; what was known of the old pairs is forgotten.

        Raises:
            GroupError: the member is unknown or already dropped.
        """
        self._require_present(member)
        del self._rows[member]
        self._open.discard(member)
        self._other_evaluations += self._bounds.evaluations
        self._bounds = PairBounds(len(self._rows))
        self._ragged_mean = None

    def advance_to(self, k: int) -> None:
        """Move the position up to k.

        Raises:
            GroupError: k is behind the position, or a running member has fewer than k symbols.
        """
        if k < self._position:
            raise GroupError(f"position {k} is behind position {self._position}: positions only move up")
        for member in self._open:
            if len(self._rows[member]) < k:
                have = len(self._rows[member])
                raise GroupError(f"member {member} has {have} of {k} symbols: wait for it, finish or drop it")
        self._position = k

    def decide(self, tau: float) -> bool:
        """Return whether the mean is strictly below tau, exactly as `mean < tau` would.

        Mostly answered from bounds that hold for any tau, so tau may differ from call to call. False where
        the mean is None, and at tau 0.

        Raises:
            ConfigError: tau is NaN or outside [0, 1].
        """
        check_tau(tau)
        if not self._defined:
            return False
        if self._is_ragged:
            return self._mean_of_ragged() < tau
        return self._bounds.below(list(self._rows.values()), self._position, tau)

    @property
    def mean(self) -> float | None:
        """The mean pairwise distance at the position, correctly rounded; computed when asked for.

        None with fewer than two members, or before the first step.
        """
        if not self._defined:
            return None
        if self._is_ragged:
            return self._mean_of_ragged()
        total = self._bounds.exact_sum(list(self._rows.values()), self._position)
        return total / (self._bounds.pairs * self._position)

    def bounds(self) -> tuple[float, float]:
        """Return (lo, hi) with lo <= mean <= hi, without computing an edit distance.

        (0.0, 1.0) says that nothing is known, and stands also where the mean is None.
        """
        if not self._defined:
            return 0.0, 1.0
        if self._is_ragged:
            known = self._ragged_mean
            return (known[1], known[1]) if known and known[0] == self._position else (0.0, 1.0)
        self._bounds.absorb(list(self._rows.values()), self._position)
        total = self._bounds.pairs * self._position
        return self._bounds.lower / total, self._bounds.upper / total

    def earliest_fire(self, tau: float) -> int | None:
        """Return a position before which `decide(tau)` is certainly False, without an edit distance.

        The farthest such position that can be told from what is known: a `decide` or `mean` just before makes
        it sharp. Never behind the current position, and only good while no member is dropped. With padding
        "none" a member's end may bring the mean down at once, so only the current position is ruled out.

        Returns:
            The position; None if the group can never fire: tau 0, or fewer than two members.

        Raises:
            ConfigError: tau is NaN or outside [0, 1].
        """
        check_tau(tau)
        if tau == 0 or len(self._rows) < 2:
            return None
        now = max(self._position, 1)
        if self._padding == "none":
            ruled_out = self._defined and self.bounds()[0] >= tau
            return now + 1 if ruled_out else now
        return _first_below(self._bounds.lower, self._bounds.pairs, tau, now)

    def curve(self) -> list[float]:
        """Return the exact mean at every position so far; `curve()[k - 1]` is the mean at k.

        Of the members present now; empty below two. Costs one pass over each pair of different rows.
        """
        if not self._defined:
            return []
        texts = [row[: self._position] for row in self._rows.values()]
        if self._padding == "end":
            texts = [text.ljust(self._position, END_CODE) for text in texts]
        return mean_curve(texts, self._position)

    @property
    def _defined(self) -> bool:
        return self._position > 0 and len(self._rows) > 1

    @property
    def _is_ragged(self) -> bool:
        """Whether rows of different lengths are compared as they are; otherwise both paddings agree."""
        return self._padding == "none" and any(len(row) < self._position for row in self._rows.values())

    def _mean_of_ragged(self) -> float:
        if self._ragged_mean is None or self._ragged_mean[0] != self._position:
            texts = [row[: self._position] for row in self._rows.values()]
            mean = exact_mean(pair_sums(texts), comb(len(texts), 2))
            self._other_evaluations += comb(len(set(texts)), 2)
            self._ragged_mean = (self._position, mean)
        return self._ragged_mean[1]

    def _catch_up(self) -> None:
        """Move the position as far as all running members have come, or to the longest row if none runs."""
        if self._open:
            reached = min([len(self._rows[member]) for member in self._open])
        else:
            reached = max(map(len, self._rows.values()), default=0)
        self._position = max(self._position, reached)

    def _require_one_each(self, entries: Sequence[object]) -> None:
        if len(entries) != self._size:
            raise GroupError(f"{len(entries)} entries for a group of size {self._size}: give one per member")

    def _require_running(self, member: int) -> None:
        if member not in self._open:
            self._require_present(member)
            raise GroupError(f"member {member} has finished: it takes no more symbols and finishes once")

    def _require_present(self, member: int) -> None:
        if member not in self._rows:
            if member in range(self._size):
                raise GroupError(f"member {member} was dropped")
            raise GroupError(f"member {member} is not in this group: members are 0 to {self._size - 1}")


def _first_below(total: int, pairs: int, tau: float, start: int) -> int | None:
    """Return the smallest k >= start with total / (pairs*k) < tau, or None beyond any possible length."""
    numerator, denominator = tau.as_integer_ratio()
    k = max(start, total * denominator // (pairs * numerator) + 1)
    if k > sys.maxsize:
        return None
    while total / (pairs * k) >= tau:
        k += 1
    return k
