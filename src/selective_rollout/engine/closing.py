"""What came of a group, from its gates and the control that heeded them, whoever drove the members."""

from __future__ import annotations

from typing import TypedDict

from selective_rollout.engine.hold import Verdict
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.gate.decision import GateDecision, would_cut_at
from selective_rollout.gate.group import GroupGate
from selective_rollout.gate.streaming import StreamGate
from selective_rollout.trace.group_log import GroupLog
from selective_rollout.types import Outcome


class Decided(TypedDict):
    """Those fields of a `GroupOutcome`."""

    decisions: tuple[GateDecision, ...]
    cut_as: Outcome | None
    cut_at: int | None
    would_cut_at: int | None
    stream_decisions: tuple[GateDecision, ...]
    stream_cut_at: int | None
    stream_would_cut_at: int | None
    late_veto: bool
    survivor: int | None


def decided(gate: GroupGate, verdict: Verdict, stream: StreamGate | None = None) -> Decided:
    """What was decided about a group, and what became of it.

    Args:
        gate: the group's gate.
        verdict: what the group's control did.
        stream: the gate over its streams, if they were watched.
    """
    return {
        "decisions": gate.checks,
        "cut_as": gate.config.outcome if verdict.stopped else None,
        "cut_at": verdict.cut_at,
        "would_cut_at": would_cut_at(gate.fired, verdict.cut_at),
        "stream_decisions": () if stream is None else stream.checks,
        "stream_cut_at": verdict.stream_cut_at,
        "stream_would_cut_at": would_cut_at(None if stream is None else stream.fired, verdict.stream_cut_at),
        "late_veto": verdict.late_veto,
        "survivor": verdict.survivor,
    }


def write_end(log: GroupLog, outcome: GroupOutcome, *, error: str | None = None) -> None:
    """Write the group's last event; `error` is what its driver's code raised."""
    log.end(
        outcome=outcome.cut_as,
        cut_at=outcome.cut_at,
        stream_cut_at=outcome.stream_cut_at,
        survivor=outcome.survivor,
        answer=outcome.answer,
        abandoned=outcome.ledger.abandoned or None,
        late_veto=outcome.late_veto,
        error=error,
    )
