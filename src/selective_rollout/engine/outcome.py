"""What came of a group."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from selective_rollout.engine.ledger import Ledger
from selective_rollout.gate.decision import GateDecision
from selective_rollout.types import Group, Outcome, RolloutStatus


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """One group, run to its end or cut."""

    group: Group
    decisions: tuple[GateDecision, ...]
    """Every decision at a check position, firing or not."""
    ledger: Ledger
    cut_as: Outcome | None = None
    """How the group was stopped early; None if every member ran to its own end."""
    cut_at: int | None = None
    """Position k of the decision that was carried out; None also for an exact vote."""
    would_cut_at: int | None = None
    """Position k of a decision that fired and was not carried out: observe mode, audit, late veto."""
    stream_decisions: tuple[GateDecision, ...] = ()
    """Every decision of the stream gate, if there is one; their positions count symbols."""
    stream_cut_at: int | None = None
    """Like `cut_at`, of the stream gate. At most one of the two is set."""
    stream_would_cut_at: int | None = None
    audited: bool = False
    late_veto: bool = False
    survivor: int | None = None
    answer: str | None = None
    """The group's answer at inference: the survivor's, or the winner of the vote."""

    @property
    def votes(self) -> Counter[str]:
        """Answers really given, by members that ended normally."""
        return Counter(
            rollout.answer
            for rollout in self.group.rollouts
            if rollout.status.ended_normally and rollout.answer is not None
        )

    @property
    def inferred_votes(self) -> int:
        """Members that were stopped and so never voted: their votes are inferred, not cast."""
        return sum(rollout.status is RolloutStatus.CUT for rollout in self.group.rollouts)

    @property
    def trainable(self) -> bool:
        """False for a group that was cut: it must not enter a gradient batch."""
        return self.cut_as is None
