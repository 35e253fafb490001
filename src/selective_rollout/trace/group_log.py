"""One group's gate and its record, kept in step: what the gate reads and decides is what is written."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from selective_rollout.errors import GroupError
from selective_rollout.gate.decision import GateDecision, would_cut_at
from selective_rollout.gate.evidence import Reply, reply_to
from selective_rollout.gate.group import GroupGate
from selective_rollout.gate.streaming import StreamGate
from selective_rollout.rewards import parse_reward
from selective_rollout.trace.convert import decision_event, sampling_records, usage_record
from selective_rollout.trace.schema import (
    Event,
    FailureRecord,
    GroupEndEvent,
    GroupEvent,
    RewardEvent,
    RolloutEndEvent,
    StepEvent,
    StreamDecisionEvent,
    StreamRuleRecord,
)
from selective_rollout.types import (
    Mode,
    Outcome,
    RolloutFailure,
    RolloutStatus,
    SamplingInfo,
    Step,
    Usage,
)


class GroupLog:
    """Feeds one group's gate and writes its events.

    Args:
        write: takes each event, usually `Recorder.write`.
        group_id: the group.
        attempt: counts restarts of an unfinished group.
        gate: the group's gate, if it is watched.
        stream: the gate over its streams, if they are watched.
        record_observations: keep observation texts.
        record_completions: keep raw completions, and what the stream gate heard of them.
    """

    def __init__(
        self,
        write: Callable[[Event], None],
        group_id: str,
        *,
        attempt: int = 1,
        gate: GroupGate | None = None,
        stream: StreamGate | None = None,
        record_observations: bool = False,
        record_completions: bool = False,
    ) -> None:
        self.group_id = group_id
        self.attempt = attempt
        self.gate = gate
        self.stream = stream
        self._write = write
        self._record_observations = record_observations
        self._record_completions = record_completions
        self._steps: dict[int, int] = {}
        self._untold: dict[int, deque[Step]] = {}
        """Steps written, by rollout, that the gate has not heard of yet."""
        self._heard: dict[int, list[Hashable]] = {}
        """What the stream gate heard, by rollout, if it is to be recorded."""
        self._lost: set[int] = set()
        self._size: int | None = None
        self._closed: set[int] = set()
        self._ended = False
        self._checks_written = 0
        self._stream_checks_written = 0

    def begin(
        self,
        *,
        size: int,
        task_id: str,
        mode: Mode | None = None,
        policy_version: str | None = None,
        sampling: Sequence[SamplingInfo] | None = None,
        history: Sequence[float] | None = None,
        audit: bool | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the group's first event."""
        self._size = size
        self._write(
            GroupEvent(
                group=self.group_id,
                attempt=self.attempt,
                task_id=task_id,
                size=size,
                mode=mode,
                policy_version=policy_version,
                sampling=sampling_records(sampling),
                gate=self.gate.config.fingerprint() if self.gate else None,
                tau=self.gate.tau if self.gate else None,
                history=list(history) if history is not None else None,
                audit=audit,
                stream=StreamRuleRecord(**self.stream.rule.to_dict()) if self.stream else None,
                metadata=dict(metadata or {}),
            )
        )

    def step(
        self,
        rollout: int,
        action: str,
        *,
        observation: str | None = None,
        completion: str | None = None,
        is_error: bool | None = None,
        state_key: str | None = None,
        usage: Usage | None = None,
        finish_reason: str | None = None,
    ) -> GateDecision | None:
        """Record one step and report it to the gate.

        Returns:
            The gate's decision, or None without a gate.
        """
        self.write_step(
            rollout,
            Step(
                index=self._steps.get(rollout, 0) + 1,
                action=action,
                completion=completion,
                observation=observation,
                observation_hash=observation_hash(observation),
                is_error=is_error,
                state_key=state_key,
                usage=usage,
                finish_reason=finish_reason,
            ),
        )
        return self.report(rollout, action)

    def write_step(self, rollout: int, step: Step, *, wasted: int = 0, replayed: bool = False) -> None:
        """Record one step without telling the gate, which hears of it by `report` or `finish`.

        Args:
            rollout: 0-based index.
            step: the step.
            wasted: completion tokens of failed attempts at its request.
            replayed: the step was taken over from an earlier attempt of the group.

        Raises:
            GroupError: unknown rollout, or one that has already ended.
        """
        self._require_open(rollout)
        self._write(
            StepEvent(
                group=self.group_id,
                attempt=self.attempt,
                rollout=rollout,
                step=step.index,
                action=step.action,
                observation_hash=step.observation_hash,
                is_error=step.is_error,
                state_key=step.state_key,
                finish_reason=step.finish_reason,
                usage=usage_record(step.usage),
                wasted=wasted or None,
                replayed=replayed,
                completion=step.completion if self._record_completions else None,
                observation=step.observation if self._record_observations else None,
            )
        )
        self._steps[rollout] = step.index
        if self.gate is not None:
            self._untold.setdefault(rollout, deque()).append(step)

    def report(self, rollout: int, action: str) -> GateDecision | None:
        """Tell the gate of the next recorded step that it has not heard of."""
        if self.gate is None:
            return None
        return self._noted(self.gate.report(rollout, action, **self._reply_to_next(rollout)))

    def hear(self, rollout: int, symbols: Sequence[Hashable]) -> None:
        """Tell the stream gate of a piece of a rollout's stream; does nothing where there is none."""
        if self.stream is None or rollout in self._lost:
            return
        if self._record_completions:
            self._heard.setdefault(rollout, []).extend(symbols)
        if self.stream.hear(rollout, symbols) is not None:
            self._note_stream_checks()

    def lose(self, rollout: int) -> None:
        """Tell the stream gate that a rollout's stream broke off; its completion may begin again."""
        if self.stream is not None:
            self._lost.add(rollout)
            self.stream.lose(rollout)
            self._note_stream_checks()

    def finish(
        self,
        rollout: int,
        reward: object = None,
        answer: str | None = None,
        *,
        truncated: bool = False,
        last_action: str | None = None,
        lost: Usage | None = None,
        wasted: int = 0,
        overrun: int = 0,
    ) -> GateDecision | None:
        """Record a normal end and tell the gate.

        Args:
            rollout: 0-based index.
            reward: see `rewards.parse_reward`; None if scored later, by `reward`.
            answer: final answer.
            truncated: the rollout ran into max_steps or a token limit.
            last_action: the action of the last step, if the gate has not heard of it yet.
            lost: tokens of a last completion that became no step.
            wasted: completion tokens of failed attempts at that completion.
            overrun: completion tokens that arrived after the group's cut.
        """
        value = parse_reward(reward, where=f"group {self.group_id!r} rollout {rollout}")
        status = RolloutStatus.TRUNCATED if truncated else RolloutStatus.FINISHED
        self._write_end(rollout, status, lost, wasted, overrun, reward=value, answer=answer)
        if self.stream is not None:
            self.stream.finish(rollout, value, answer)
            self._note_stream_checks()
        if self.gate is None:
            return None
        if last_action is None:
            return self._noted(self.gate.finish(rollout, value, answer))
        reply = self._reply_to_next(rollout)
        return self._noted(self.gate.finish(rollout, value, answer, action=last_action, **reply))

    def fail(
        self,
        rollout: int,
        kind: str,
        message: str = "",
        *,
        lost: Usage | None = None,
        wasted: int = 0,
        overrun: int = 0,
    ) -> GateDecision | None:
        """Record that infrastructure broke this rollout, and tell the gate."""
        failure = FailureRecord(kind=kind, message=message)
        self._write_end(rollout, RolloutStatus.FAILED, lost, wasted, overrun, failure=failure)
        if self.stream is not None:
            self.stream.lose(rollout)
            self._note_stream_checks()
        return self._noted(self.gate.fail(rollout)) if self.gate else None

    def cut(self, rollout: int, *, lost: Usage | None = None, wasted: int = 0, overrun: int = 0) -> None:
        """Record that the gate stopped this rollout; it stays unscored."""
        self._write_end(rollout, RolloutStatus.CUT, lost, wasted, overrun)

    def reward(self, rollout: int, reward: object, *, failure: RolloutFailure | None = None) -> float | None:
        """Record a reward that became known after the rollout's end, or why it never will.

        Returns:
            The reward as a number, None if unscored.
        """
        value = parse_reward(reward, where=f"group {self.group_id!r} rollout {rollout}")
        self._write(
            RewardEvent(
                group=self.group_id,
                attempt=self.attempt,
                rollout=rollout,
                reward=value,
                failure=FailureRecord(kind=failure.kind, message=failure.message) if failure else None,
            )
        )
        if self.gate:
            self.gate.score(rollout, value)
        if self.stream:
            self.stream.score(rollout, value)
        return value

    def end(
        self,
        *,
        outcome: Outcome | None = None,
        cut_at: int | None = None,
        stream_cut_at: int | None = None,
        survivor: int | None = None,
        answer: str | None = None,
        abandoned: int | None = None,
        late_veto: bool = False,
        error: str | None = None,
    ) -> None:
        """Write the group's last event; a group ends once, so that a recorder's block may end it early."""
        if self._ended:
            return
        self._ended = True
        self._write(
            GroupEndEvent(
                group=self.group_id,
                attempt=self.attempt,
                outcome=outcome,
                cut_at=cut_at,
                would_cut_at=would_cut_at(self.gate.fired if self.gate else None, cut_at),
                stream_cut_at=stream_cut_at,
                stream_would_cut_at=would_cut_at(self.stream.fired if self.stream else None, stream_cut_at),
                late_veto=late_veto,
                survivor=survivor,
                answer=answer,
                abandoned=abandoned,
                error=error,
            )
        )

    def _write_end(
        self,
        rollout: int,
        status: RolloutStatus,
        lost: Usage | None,
        wasted: int,
        overrun: int,
        *,
        reward: float | None = None,
        answer: str | None = None,
        failure: FailureRecord | None = None,
    ) -> None:
        self._require_open(rollout)
        self._write(
            RolloutEndEvent(
                group=self.group_id,
                attempt=self.attempt,
                rollout=rollout,
                status=status,
                reward=reward,
                answer=answer,
                failure=failure,
                usage=usage_record(lost),
                wasted=wasted or None,
                overrun=overrun or None,
                stream=self._stream_of(rollout),
                stream_lost=rollout in self._lost,
            )
        )
        self._closed.add(rollout)

    def _require_open(self, rollout: int) -> None:
        if self._size is not None and rollout not in range(self._size):
            raise GroupError(
                f"group {self.group_id!r} has rollouts 0 to {self._size - 1}; there is no rollout {rollout!r}"
            )
        if rollout in self._closed:
            raise GroupError(f"rollout {rollout} of group {self.group_id!r} has already ended")

    def _stream_of(self, rollout: int) -> list[Any] | str | None:
        """What is recorded of a rollout's stream."""
        if self.stream is None or not self._record_completions:
            return None
        symbols: list[Any] = self._heard.pop(rollout, [])
        return symbols if self.stream.rule.level == "token" else "".join(symbols)

    def _note_stream_checks(self) -> None:
        assert self.stream is not None
        checks = self.stream.checks
        for check in checks[self._stream_checks_written :]:
            self._write(decision_event(self.group_id, self.attempt, check, StreamDecisionEvent))
        self._stream_checks_written = len(checks)

    def _reply_to_next(self, rollout: int) -> Reply:
        untold = self._untold.get(rollout)
        return (
            reply_to(untold.popleft()) if untold else Reply(observation=None, state_key=None, is_error=None)
        )

    def _noted(self, decision: GateDecision) -> GateDecision:
        assert self.gate is not None
        checks = self.gate.checks
        for check in checks[self._checks_written :]:
            self._write(decision_event(self.group_id, self.attempt, check))
        self._checks_written = len(checks)
        return decision


def observation_hash(observation: str | None) -> str | None:
    """Short hash of an observation, kept also when its text is not."""
    if observation is None:
        return None
    return hashlib.sha256(observation.encode("utf-8", "surrogatepass")).hexdigest()[:16]
