"""Putting one group together from its events."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from selective_rollout.errors import TraceError
from selective_rollout.gate.decision import GateDecision, Reason
from selective_rollout.gate.streaming import MemberStream
from selective_rollout.trace.convert import (
    decision_from_event,
    failure_from_record,
    sampling_from_records,
    step_from_event,
)
from selective_rollout.trace.schema import (
    LARGEST_GROUP,
    DecisionEvent,
    GroupEndEvent,
    GroupEvent,
    RolloutEndEvent,
    StepEvent,
    StreamDecisionEvent,
)
from selective_rollout.types import Group, Rollout, RolloutStatus, Step


class GroupAssembly:
    """Collects the events of one attempt of a group."""

    def __init__(self, begin: GroupEvent, where: str, abandoned: int) -> None:
        if not 1 <= begin.size <= LARGEST_GROUP:
            raise TraceError(
                f"{where}: group {begin.group!r} has size {begin.size}: give one from 1 to {LARGEST_GROUP:,}"
            )
        self.begin = begin
        self.where = where
        self.abandoned = abandoned
        self.decisions: list[GateDecision] = []
        self.stream_decisions: list[GateDecision] = []
        self.end: GroupEndEvent | None = None
        self.overrun = 0
        self.wasted = 0
        self._replayed_tokens = 0
        self._steps: dict[int, list[Step]] = {}
        self._ends: dict[int, RolloutEndEvent] = {}

    @property
    def completion_tokens(self) -> int:
        """Completion tokens known to have been generated in this attempt."""
        steps = [step.usage for steps in self._steps.values() for step in steps]
        known = sum(usage.completion or 0 for usage in steps if usage is not None)
        return known + self.lost - self._replayed_tokens

    @property
    def lost(self) -> int:
        """Completion tokens that became no step: cut off, cancelled, or of failed attempts."""
        ends = [end.usage for end in self._ends.values()]
        return sum(usage.completion or 0 for usage in ends if usage is not None) + self.wasted

    def streams(self) -> dict[int, MemberStream]:
        """The streams on record, by rollout."""
        return {
            rollout: MemberStream(
                symbols=end.stream,
                finished=end.status.ended_normally and not end.stream_lost,
                reward=end.reward,
                answer=end.answer,
            )
            for rollout, end in sorted(self._ends.items())
            if end.stream is not None
        }

    def take(
        self, path: Path, number: int, event: StepEvent | DecisionEvent | RolloutEndEvent | GroupEndEvent
    ) -> None:
        """Add one event, which stands in line `number` of a file.

        Raises:
            TraceError: an unknown rollout, a step out of order, a second end, an unknown reason.
        """
        if isinstance(event, StepEvent):
            self.take_step(path, number, event)
        elif isinstance(event, RolloutEndEvent):
            self._steps_of(path, number, event)
            self._ends[event.rollout] = event
            self.overrun += event.overrun or 0
            self.wasted += event.wasted or 0
        elif isinstance(event, DecisionEvent):
            if event.reason not in set(Reason):
                raise TraceError(f"{path}:{number}: unknown reason {event.reason!r}")
            of_streams = isinstance(event, StreamDecisionEvent)
            made = self.stream_decisions if of_streams else self.decisions
            made.append(decision_from_event(event, self.begin.size))
        elif isinstance(event, GroupEndEvent):
            self.end = event

    def take_step(self, path: Path, number: int, event: StepEvent) -> None:
        """Add one step, as `take` does; nine lines in ten are steps."""
        steps = self._steps.get(event.rollout)
        if steps is None or event.rollout in self._ends:
            steps = self._steps_of(path, number, event)
        if event.step != len(steps) + 1:
            raise TraceError(
                f"{path}:{number}: step {event.step} of rollout {event.rollout} of group {event.group!r} "
                f"follows step {len(steps)}"
            )
        steps.append(step_from_event(event))
        if event.wasted:
            self.wasted += event.wasted
        if event.replayed and event.usage is not None:
            self._replayed_tokens += event.usage.completion or 0

    def group(self, late: Mapping[int, float | None]) -> Group:
        """The group, with late rewards joined in."""
        begin = self.begin
        seen = sorted(self._steps)
        return Group(
            id=begin.group,
            size=begin.size,
            rollouts=tuple(self._rollout(index, late.get(index)) for index in seen),
            task_id=begin.task_id,
            attempt=begin.attempt,
            policy_version=begin.policy_version,
            sampling=sampling_from_records(begin.sampling),
            metadata=begin.metadata,
        )

    def _steps_of(self, path: Path, number: int, event: StepEvent | RolloutEndEvent) -> list[Step]:
        """The steps so far of a rollout that goes on, or ends now."""
        rollout = event.rollout
        if rollout in self._ends:
            raise TraceError(f"{path}:{number}: rollout {rollout} of group {event.group!r} has already ended")
        if not 0 <= rollout < self.begin.size:
            raise TraceError(
                f"{path}:{number}: group {event.group!r} has {self.begin.size} rollouts; no rollout {rollout}"
            )
        return self._steps.setdefault(rollout, [])

    def _rollout(self, index: int, late: float | None) -> Rollout:
        end = self._ends.get(index)
        steps = tuple(self._steps[index])
        if end is None:
            return Rollout(index, steps, RolloutStatus.RUNNING)
        reward = end.reward if end.reward is not None else late
        return Rollout(
            index=index,
            steps=steps,
            status=end.status,
            reward=reward,
            late_reward=end.reward is None and late is not None,
            answer=end.answer,
            failure=failure_from_record(end.failure),
        )
