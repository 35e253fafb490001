"""What is known of every group that ran in LangGraph, whoever drove it."""

from __future__ import annotations

from dataclasses import dataclass

from selective_rollout.engine.ledger import Ledger
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.integrations.langgraph.state import GroupStatus
from selective_rollout.types import Rollout, RolloutFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOutcome(GroupOutcome):
    """The engine's outcome, and what graphs add to it.

    `answer`, `survivor`, `cut_at`, `decisions`, `trainable`, `votes` (cast) and `inferred_votes` are the
    engine's. In `ledger`, `completion` sums the requests whose tokens are known; `unknown_requests` counts
    the others.
    """

    status: GroupStatus
    ledgers: tuple[Ledger, ...]
    """Tokens of each rollout, by index."""

    @property
    def rollouts(self) -> tuple[Rollout, ...]:
        """The rollouts, by index."""
        return self.group.rollouts

    @property
    def failure(self) -> RolloutFailure | None:
        """Why there is no result at all: the first rollout's failure, if every rollout failed."""
        return self.rollouts[0].failure if self.status == "failed" else None
