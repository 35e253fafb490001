"""`/metrics` in the Prometheus text format. No label takes values that a client chooses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from selective_rollout.integrations.gateway.snapshot import Totals
from selective_rollout.trace.schema import DecisionEvent, Event, GroupEndEvent, RolloutEndEvent, StepEvent

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "selective_rollout_"


@dataclass(slots=True)
class Counts:
    """What happened since the start."""

    requests: Counter[str] = field(default_factory=Counter)
    """By what became of them: passed, recorded, unrecorded, cut, refused, client_gone, upstream_failed."""
    refused: Counter[str] = field(default_factory=Counter)
    """Refused requests by code."""
    answers: Counter[str] = field(default_factory=Counter)
    """Answers of the model server by status class."""
    aborted: Counter[str] = field(default_factory=Counter)
    """Requests at the model server that were ended early, by whom: gate, client."""
    groups: Counter[str] = field(default_factory=Counter)
    """Ended groups by outcome: kept, drop, survivor."""
    rollouts: Counter[str] = field(default_factory=Counter)
    """Ended rollouts by status."""
    decisions: Counter[str] = field(default_factory=Counter)
    """Decisions by reason."""
    steps: int = 0
    in_flight: int = 0
    """Requests being served."""


def counted(counts: Counts, write: Callable[[Event], None]) -> Callable[[Event], None]:
    """A writer of events that also counts them."""

    def write_and_count(event: Event) -> None:
        write(event)
        if isinstance(event, StepEvent):
            counts.steps += 1
        elif isinstance(event, DecisionEvent):
            counts.decisions[event.reason] += 1
        elif isinstance(event, RolloutEndEvent):
            counts.rollouts[event.status.value] += 1
        elif isinstance(event, GroupEndEvent):
            counts.groups[event.outcome or "kept"] += 1

    return write_and_count


def exposition(counts: Counts, now: Totals) -> str:
    """Render everything."""
    tokens = {
        "generated": now.tokens,
        "after_decision": now.tokens_after_fire,
    }
    parts = [
        _labelled(
            "requests_total",
            "counter",
            "Requests by what became of them; cut ones were recorded.",
            "result",
            counts.requests,
        ),
        _labelled("refused_total", "counter", "Refused requests by code.", "code", counts.refused),
        _labelled("answers_total", "counter", "Answers of the model server.", "status", counts.answers),
        _labelled("aborted_total", "counter", "Requests ended early, by whom.", "by", counts.aborted),
        _labelled("groups_total", "counter", "Groups that ended, by outcome.", "outcome", counts.groups),
        _labelled("rollouts_total", "counter", "Rollouts that ended.", "status", counts.rollouts),
        _labelled("decisions_total", "counter", "Decisions of the gate.", "reason", counts.decisions),
        _labelled(
            "completion_tokens", "gauge", "Known tokens of the groups still in memory.", "part", tokens
        ),
        _single("steps_total", "counter", "Recorded steps.", counts.steps),
        _single("in_flight", "gauge", "Requests being served.", counts.in_flight),
        _single("held", "gauge", "Requests that wait at a check.", now.held),
        _single("groups_open", "gauge", "Groups under way.", now.groups - now.ended),
        _single("requests_without_usage", "gauge", "Answers whose tokens nobody counted.", now.unknown),
    ]
    return "\n".join(line for part in parts for line in part) + "\n"


def _labelled(name: str, kind: str, text: str, label: str, values: Mapping[str, int]) -> Iterable[str]:
    yield from _head(name, kind, text)
    for value, number in sorted(values.items()):
        yield f'{_PREFIX}{name}{{{label}="{value}"}} {number}'


def _single(name: str, kind: str, text: str, number: int) -> Iterable[str]:
    yield from _head(name, kind, text)
    yield f"{_PREFIX}{name} {number}"


def _head(name: str, kind: str, text: str) -> Iterable[str]:
    yield f"# HELP {_PREFIX}{name} {text}"
    yield f"# TYPE {_PREFIX}{name} {kind}"
