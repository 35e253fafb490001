"""Between the package's types and the records of a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields

from selective_rollout.errors import ConfigError
from selective_rollout.gate.decision import GateDecision, GateFacts, Reason
from selective_rollout.trace.schema import (
    DecisionEvent,
    FailureRecord,
    SamplingRecord,
    StepEvent,
    UsageRecord,
)
from selective_rollout.types import RolloutFailure, SamplingInfo, Step, Usage


def usage_record(usage: Usage | None) -> UsageRecord | None:
    """The record of a request's tokens.

    Raises:
        ConfigError: the usage is none, such as a server's own object.
    """
    if usage is None:
        return None
    if not isinstance(usage, Usage):
        raise ConfigError(f"usage is a {type(usage).__name__}: give types.Usage(prompt=..., completion=...)")
    return UsageRecord(
        prompt=usage.prompt,
        cached=usage.cached,
        completion=usage.completion,
        reasoning=usage.reasoning,
        source=usage.source,
    )


def sampling_records(sampling: Sequence[SamplingInfo] | None) -> list[SamplingRecord] | None:
    """The records of a group's sampling facts.

    Raises:
        ConfigError: a fact is no `SamplingInfo`.
    """
    if sampling is not None and not all(isinstance(info, SamplingInfo) for info in sampling):
        raise ConfigError("sampling must be a list of types.SamplingInfo, one per rollout")
    return None if sampling is None else [SamplingRecord(**asdict(info)) for info in sampling]


def sampling_from_records(records: Sequence[SamplingRecord] | None) -> tuple[SamplingInfo, ...] | None:
    """The inverse of `sampling_records`."""
    if records is None:
        return None
    return tuple(SamplingInfo(**{name: getattr(r, name) for name in r.__struct_fields__}) for r in records)


def _setters(cls: type) -> list[Callable[[object, object], None]]:
    """Set the fields of a new instance of a frozen, slotted dataclass, in their order.

    Its own constructor does the same through `object.__setattr__`, at more than twice the price, which a
    reader would pay for nearly every line of a trace.
    """
    return [getattr(cls, field.name).__set__ for field in fields(cls)]


_index, _action, _completion, _observation, _hash, _is_error, _state_key, _usage, _finish = _setters(Step)
_prompt, _cached, _generated, _reasoning, _source = _setters(Usage)


def step_from_event(event: StepEvent) -> Step:
    """The step that an event recorded."""
    step = object.__new__(Step)
    _index(step, event.step)
    _action(step, event.action)
    _completion(step, event.completion)
    _observation(step, event.observation)
    _hash(step, event.observation_hash)
    _is_error(step, event.is_error)
    _state_key(step, event.state_key)
    _usage(step, None if event.usage is None else _usage_from_record(event.usage))
    _finish(step, event.finish_reason)
    return step


def _usage_from_record(record: UsageRecord) -> Usage:
    usage = object.__new__(Usage)
    _prompt(usage, record.prompt)
    _cached(usage, record.cached)
    _generated(usage, record.completion)
    _reasoning(usage, record.reasoning)
    _source(usage, record.source)
    return usage


def failure_from_record(record: FailureRecord | None) -> RolloutFailure | None:
    """The failure that a record holds."""
    return None if record is None else RolloutFailure(record.kind, record.message)


def decision_event(
    group: str, attempt: int, decision: GateDecision, kind: type[DecisionEvent] = DecisionEvent
) -> DecisionEvent:
    """The event of a decision made at a check position, of a gate over steps or (`kind`) over streams."""
    facts = decision.facts
    if facts is None:
        raise ValueError("only decisions made at a check position are recorded")
    return kind(
        group=group,
        attempt=attempt,
        step=facts.step,
        fires=decision.fires,
        reason=decision.reason.value,
        distance=decision.distance,
        bounds=decision.bounds,
        tau=decision.tau,
        members=list(facts.members),
        running=list(facts.running),
        has_actions=facts.has_actions,
        below_tau=facts.below_tau,
        rewards=list(facts.rewards),
        answers=list(facts.answers),
        sampling=facts.sampling,
        history=list(facts.history) if facts.history is not None else None,
        features=list(facts.features),
        p_signal=decision.p_signal,
    )


def decision_from_event(event: DecisionEvent, group_size: int) -> GateDecision:
    """The decision that an event recorded, with all the facts it had read."""
    facts = GateFacts(
        step=event.step,
        group_size=group_size,
        members=tuple(event.members),
        running=tuple(event.running),
        has_actions=event.has_actions,
        below_tau=event.below_tau,
        rewards=tuple(event.rewards),
        answers=tuple(event.answers),
        sampling=event.sampling,
        history=tuple(event.history) if event.history is not None else None,
        features=tuple(event.features),
    )
    return GateDecision(
        fires=event.fires,
        reason=Reason(event.reason),
        step=event.step,
        distance=event.distance,
        bounds=event.bounds,
        tau=event.tau,
        facts=facts,
        p_signal=event.p_signal,
    )
