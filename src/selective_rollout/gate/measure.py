"""The distance behind a gate, at each level.

`action` and `token` compare symbols position by position and use the incremental `GroupDistance`. `char`
compares the joined action texts, as the tutorial does; it exists for parity and recomputes every time.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Protocol

from selective_rollout.distance import GroupDistance, mean_pairwise_distance, should_stop_group
from selective_rollout.gate.config import GateConfig


class Measure(Protocol):
    """The distance of one group at the position it was last advanced to."""

    def push(self, member: int, symbol: Hashable) -> None:
        """Append one symbol to a member."""

    def push_all(self, member: int, symbols: Collection[Hashable]) -> None:
        """Append several symbols to a member."""

    def finish(self, member: int) -> None:
        """The member takes no further step."""

    def drop(self, member: int) -> None:
        """Leave the member out from here on."""

    def advance_to(self, k: int) -> None:
        """Compare the first k symbols of every member."""

    def decide(self, tau: float) -> bool:
        """Whether mean < tau, exactly."""

    @property
    def mean(self) -> float | None:
        """Exact mean distance; None below two members."""

    def bounds(self) -> tuple[float, float] | None:
        """Cheap bounds of the mean; None below two members."""


def make_measure(config: GateConfig, size: int) -> Measure:
    """The measure that a rule asks for."""
    if config.level == "char":
        return CharDistance(size, config.separator)
    return GroupDistance(size, padding=config.padding)


class CharDistance:
    """Mean pairwise distance of the joined action texts, divided by the longer text of each pair."""

    def __init__(self, size: int, separator: str) -> None:
        self._separator = separator
        self._actions: dict[int, list[str]] = {member: [] for member in range(size)}
        self._k = 0

    def push(self, member: int, symbol: Hashable) -> None:
        """Append one action."""
        self._actions[member].append(str(symbol))

    def push_all(self, member: int, symbols: Collection[Hashable]) -> None:
        """Append several actions."""
        self._actions[member].extend(map(str, symbols))

    def finish(self, member: int) -> None:
        """Nothing to do: a finished member's text simply stops growing."""

    def drop(self, member: int) -> None:
        """Leave the member out from here on."""
        self._actions.pop(member, None)

    def advance_to(self, k: int) -> None:
        """Compare the texts of the first k actions."""
        self._k = k

    def decide(self, tau: float) -> bool:
        """Whether mean < tau, exactly."""
        return len(self._actions) >= 2 and should_stop_group(self._texts(), tau)

    @property
    def mean(self) -> float | None:
        """Exact mean distance; None below two members."""
        return mean_pairwise_distance(self._texts()) if len(self._actions) >= 2 else None

    def bounds(self) -> tuple[float, float] | None:
        """The exact value twice: nothing cheaper is known at this level."""
        mean = self.mean
        return None if mean is None else (mean, mean)

    def _texts(self) -> list[str]:
        return [self._separator.join(actions[: self._k]) for actions in self._actions.values()]
