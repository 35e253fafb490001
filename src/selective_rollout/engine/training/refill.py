"""Replacing groups that were dropped by fresh prompts, within a budget."""

from __future__ import annotations

from dataclasses import dataclass

from selective_rollout.errors import ConfigError


@dataclass(slots=True)
class Refill:
    """Counts what may still be started to fill one batch; it always comes to an end.

    Args of the constructor: `wanted`, the groups a batch should hold; `extra`, the most groups that may be
    started on top of them, over the whole batch. As many again may be given back unstarted. What is still
    missing then stays missing.

    Raises:
        ConfigError: wanted below 1, or extra below 0.
    """

    wanted: int
    extra: int
    kept: int = 0
    dropped: int = 0
    """Groups cut on the way, or found flat afterwards if the caller drops those too."""
    started: int = 0
    given_back: int = 0

    def __post_init__(self) -> None:
        if self.wanted < 1:
            raise ConfigError(f"refill.wanted must be at least 1, not {self.wanted}")
        if self.extra < 0:
            raise ConfigError(f"refill.extra must be at least 0, not {self.extra}")

    def start(self) -> int:
        """Take as many groups as are missing now and the budget allows; 0: no more for this batch."""
        under_way = self.started - self.kept - self.dropped
        budget = self.wanted + self.extra
        if self.given_back > budget:
            return 0
        count = min(self.wanted - self.kept - under_way, budget - self.started)
        count = max(0, count)
        self.started += count
        return count

    def unstarted(self, count: int = 1) -> None:
        """Give back groups that were taken and not begun, because a prompt was skipped or none was left."""
        self.started -= count
        self.given_back += count

    def ended(self, *, kept: bool) -> None:
        """Book a group that was started."""
        self.kept += kept
        self.dropped += not kept

    @property
    def missing(self) -> int:
        """Groups the batch is short of."""
        return max(0, self.wanted - self.kept)
