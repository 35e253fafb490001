"""The events of a trace, one JSON object a line, told apart by their `type`.

A trace is append-only: facts that arrive late are new events, never edits. Events of many groups interleave;
each names its group and attempt. The first line of every file is the header with `trace_version`.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from selective_rollout.types import Mode, Outcome, RolloutStatus, UsageSource

TRACE_VERSION: Final = 1
LARGEST_GROUP: Final = 100_000
"""Rollouts of a group; a larger number is a mistake, and no reason to make room for that many."""


class _Record(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Base: frozen, unknown keys are an error, defaults are left out of the line."""


class _Event(_Record, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """Base of all events."""


class UsageRecord(_Record, frozen=True, forbid_unknown_fields=True):
    """Tokens of one request, None if unknown; `cached` is part of prompt, `reasoning` of completion."""

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    reasoning: int | None = None
    source: UsageSource = "unknown"


class SamplingRecord(_Record, frozen=True, forbid_unknown_fields=True):
    """Declared sampling facts of one rollout; see `types.SamplingInfo`."""

    seed: int | None = None
    temperature: float | None = None
    response_id: str | None = None
    cached: bool | None = None
    choices_requested: int | None = None
    choices_returned: int | None = None


class StreamRuleRecord(_Record, frozen=True, forbid_unknown_fields=True):
    """The rule of a group's stream gate; see `gate.streaming.StreamRule`."""

    level: Literal["token", "char"]
    tau: float
    start: int
    check_every: int


class FailureRecord(_Record, frozen=True, forbid_unknown_fields=True):
    """Why a rollout failed."""

    kind: str
    message: str


class HeaderEvent(_Event, frozen=True, tag="header"):
    """First line of a file."""

    trace_version: int
    producer: str
    """Package and version that wrote the file."""
    created: str
    """UTC time, ISO 8601."""
    writer: str
    """Process that owns the file: rank and pid."""
    metadata: dict[str, Any] = {}


class GroupEvent(_Event, frozen=True, tag="group"):
    """A group begins."""

    group: str
    task_id: str
    size: int
    """Rollouts requested."""
    attempt: int = 1
    mode: Mode | None = None
    policy_version: str | None = None
    sampling: list[SamplingRecord] | None = None
    gate: str | None = None
    """Fingerprint of the decision rule."""
    tau: float | None = None
    """This group's own threshold, after clipping."""
    history: list[float] | None = None
    """The prompt's last rewards that the rule was given."""
    audit: bool | None = None
    """Drawn at the start: a would-be cut of this group runs on."""
    stream: StreamRuleRecord | None = None
    """The rule that its streams were watched with; None: they were not."""
    metadata: dict[str, Any] = {}


class StepEvent(_Event, frozen=True, tag="step"):
    """One agent action plus the environment's reply."""

    group: str
    rollout: int
    step: int
    """1-based."""
    action: str
    attempt: int = 1
    observation_hash: str | None = None
    is_error: bool | None = None
    state_key: str | None = None
    finish_reason: str | None = None
    usage: UsageRecord | None = None
    wasted: int | None = None
    """Completion tokens of failed attempts at this step's request."""
    replayed: bool = False
    """Taken over from an earlier attempt of the group, not generated again."""
    completion: str | None = None
    observation: str | None = None
    repaired: bool = False
    """A lone surrogate in a text of this event was replaced by U+FFFD."""


class DecisionEvent(_Event, frozen=True, tag="decision"):
    """The gate looked at position k; holds all that it read, so that it replays to the same result."""

    group: str
    step: int
    """Position k."""
    fires: bool
    reason: str
    attempt: int = 1
    distance: float | None = None
    bounds: tuple[float, float] | None = None
    tau: float | None = None
    members: list[int] = []
    running: list[int] = []
    has_actions: bool = True
    below_tau: bool | None = None
    rewards: list[float | None] = []
    answers: list[str | None] = []
    sampling: str | None = None
    history: list[float] | None = None
    features: list[float | None] = []
    """Values of the features of the rule's score, in its order; empty without a score."""
    p_signal: float | None = None
    """P(signal-bearing) by that score, which tau was compared with."""


class StreamDecisionEvent(DecisionEvent, frozen=True, tag="stream_decision"):
    """The stream gate looked at position k: its `step` counts symbols of the streams, not steps."""


class RolloutEndEvent(_Event, frozen=True, tag="rollout_end"):
    """A rollout ended."""

    group: str
    rollout: int
    status: RolloutStatus
    attempt: int = 1
    reward: float | None = None
    answer: str | None = None
    failure: FailureRecord | None = None
    usage: UsageRecord | None = None
    """Tokens of a last completion that became no step: cut off by its limit, failed, or cancelled."""
    wasted: int | None = None
    overrun: int | None = None
    """Completion tokens that arrived after the group was cut; part of `usage` or of the last steps."""
    stream: list[int] | str | None = None
    """What the stream gate heard of it: token ids or text. Recorded together with completions only."""
    stream_lost: bool = False
    """Its stream broke off at some point: the stream gate held it for absent from there on."""
    repaired: bool = False


class RewardEvent(_Event, frozen=True, tag="reward"):
    """A reward that became known after its rollout had ended."""

    group: str
    rollout: int
    reward: float | None
    attempt: int = 1
    failure: FailureRecord | None = None
    """Why scoring broke; the reward is then null."""


class GroupEndEvent(_Event, frozen=True, tag="group_end"):
    """A group ended."""

    group: str
    attempt: int = 1
    outcome: Outcome | None = None
    """How the group was cut; None if it ran to its end."""
    cut_at: int | None = None
    """Position k of the decision that was carried out."""
    would_cut_at: int | None = None
    """Position k of a decision that fired and was not carried out: observe mode, audit, or late veto."""
    stream_cut_at: int | None = None
    """Like `cut_at`, of the stream gate: a position in symbols. At most one of the two is set."""
    stream_would_cut_at: int | None = None
    late_veto: bool = False
    survivor: int | None = None
    answer: str | None = None
    abandoned: int | None = None
    """Completion tokens of earlier attempts of this group."""
    error: str | None = None
    repaired: bool = False


Event: TypeAlias = (
    HeaderEvent
    | GroupEvent
    | StepEvent
    | DecisionEvent
    | StreamDecisionEvent
    | RolloutEndEvent
    | RewardEvent
    | GroupEndEvent
)


def json_schema() -> dict[str, Any]:
    """JSON Schema of one line of a trace."""
    return msgspec.json.schema(Event)
