"""What is kept of one rollout while it runs, whoever drives it."""

from __future__ import annotations

from dataclasses import dataclass, field

from selective_rollout.engine.ledger import Ledger
from selective_rollout.policy.usage import sum_usages
from selective_rollout.types import Rollout, RolloutFailure, RolloutStatus, Step, Usage


@dataclass(slots=True)
class RolloutRecord:
    """The record of one rollout; a member that drives it, or is told of it, builds on this."""

    index: int
    status: RolloutStatus = field(default=RolloutStatus.RUNNING, kw_only=True)
    steps: list[Step] = field(default_factory=list, kw_only=True)
    reward: float | None = field(default=None, kw_only=True)
    answer: str | None = field(default=None, kw_only=True)
    failure: RolloutFailure | None = field(default=None, kw_only=True)
    ledger: Ledger = field(default_factory=Ledger, kw_only=True)
    lost: list[Usage] = field(default_factory=list, kw_only=True)
    """Completions that became no step: cut off by their limit, cancelled, or never answered by the world."""

    @property
    def rollout(self) -> Rollout:
        """The record so far."""
        return Rollout(
            self.index,
            tuple(self.steps),
            self.status,
            self.reward,
            answer=self.answer,
            failure=self.failure,
        )

    @property
    def lost_usage(self) -> Usage | None:
        """Tokens of what became no step; None if there is nothing."""
        return sum_usages(self.lost) if self.lost else None
