"""Which groups the page shows when there are more than it can hold.

Kept are the groups with the lowest rank, ties broken by a hash of the id: the same groups on every run and
in any order of reading, and beyond the ranked ones a fair draw.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

from selective_rollout.draws import stable_fraction

T = TypeVar("T")


class BoundedSample(Generic[T]):
    """Keeps items up to a number and a total cost.

    Args:
        most: items kept at most.
        budget: total cost of the items kept; one item may exceed it alone.
    """

    def __init__(self, most: int, budget: float = float("inf")) -> None:
        self._most = most
        self._budget = budget
        self._heap: list[tuple[float, float, int, float, T]] = []
        self._seen = 0
        self._cost = 0.0

    def would_keep(self, rank: int, key: str) -> bool:
        """Whether an item of no cost would be kept, so that a dear one need not be made in vain."""
        if not self._most:
            return False
        full = len(self._heap) >= self._most or self._cost >= self._budget
        return not full or (-rank, -stable_fraction("sample", key)) > self._heap[0][:2]

    def offer(self, rank: int, key: str, item: T, cost: float = 1.0) -> None:
        """Add an item; whatever has the highest rank then leaves, as long as there is too much."""
        entry = (float(-rank), -stable_fraction("sample", key), -self._seen, cost, item)
        self._seen += 1
        self._cost += cost
        heapq.heappush(self._heap, entry)
        while len(self._heap) > self._most or (self._cost > self._budget and len(self._heap) > 1):
            self._cost -= heapq.heappop(self._heap)[3]

    def items(self) -> list[T]:
        """What was kept, in the order it was offered."""
        return [entry[4] for entry in sorted(self._heap, key=lambda entry: -entry[2])]
