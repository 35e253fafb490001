"""Gate decisions as plain data, for states and checkpoints; the fields are those of the trace's event."""

from __future__ import annotations

from typing import Final

import msgspec

from selective_rollout.gate.decision import GateDecision
from selective_rollout.integrations.langgraph.state import Plain, plain_copy
from selective_rollout.trace.convert import decision_event, decision_from_event
from selective_rollout.trace.schema import DecisionEvent

_FIELDS: Final = tuple(name for name in DecisionEvent.__struct_fields__ if name not in ("group", "attempt"))


def decision_state(decision: GateDecision) -> Plain:
    """A decision made at a check position, as plain data."""
    event = decision_event("", 1, decision)
    plain: Plain = plain_copy({name: getattr(event, name) for name in _FIELDS}, "a decision")
    return plain


def decision_of(plain: Plain, group_size: int) -> GateDecision:
    """The inverse of `decision_state`."""
    event = msgspec.convert({"type": "decision", "group": "", **plain}, DecisionEvent)
    return decision_from_event(event, group_size)
