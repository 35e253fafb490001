"""The account of one agent's rollout: its messages as steps, told to the gate and written to the trace.

A step is an assistant message and whatever is said until the next one. The gate hears of an action the moment
the model has chosen it, before any tool runs; the trace is given the step once its reply is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from selective_rollout.actions import canonicalise, read_action
from selective_rollout.actions.read import is_assistant
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.record import RolloutRecord
from selective_rollout.engine.sampling import SamplingWatch
from selective_rollout.gate.decision import GateDecision
from selective_rollout.integrations.chat_messages import (
    finish_reason_of,
    is_cut_off,
    response_id_of,
    usage_of,
)
from selective_rollout.integrations.chat_models import ModelWatch
from selective_rollout.integrations.langgraph.agent_result import GroupEvent
from selective_rollout.integrations.langgraph.messages import (
    Conversation,
    acts,
    final_action,
    reply_of,
    text_of,
)
from selective_rollout.rewards import parse_reward
from selective_rollout.trace.group_log import GroupLog, observation_hash
from selective_rollout.types import RolloutFailure, RolloutStatus, Step, Usage


class Desk(Protocol):
    """What a rollout tells its group."""

    log: GroupLog
    samples: SamplingWatch

    def check_sampling(self) -> None:
        """The gate is about to be told something: last chance to notice that the rollouts are copies."""

    def note(self, decision: GateDecision | None) -> None:
        """The gate has spoken."""

    def ended(self, rollout: int, *, failed: bool, answer: str | None) -> None:
        """A rollout ended on its own."""

    def interrupted(self) -> None:
        """A rollout waits for somebody's reply."""

    def emit(self, event: GroupEvent) -> None:
        """Something happened that a reader of the stream may want to know."""


@dataclass(slots=True)
class _Turn:
    """The newest step: an action whose reply is still to come."""

    message: Any
    action: str
    acts: bool
    """False for prose, which ends the rollout unless more follows."""
    usage: Usage
    is_replayed: bool = False
    replies: list[Any] = field(default_factory=list)
    is_reported: bool = False


class Account(RolloutRecord):
    """Keeps one rollout's record.

    Args:
        index: of the rollout.
        desk: its group.
        config: how actions are read, and how many there may be.
    """

    def __init__(self, index: int, desk: Desk, config: RunConfig) -> None:
        super().__init__(index)
        self.out_of_steps = False
        """The last action allowed was chosen; it is not carried out."""
        self.watch = ModelWatch(index, desk.samples)
        self._desk = desk
        self._config = config
        self._conversation = Conversation()
        self._turn: _Turn | None = None
        self._overrun = 0

    @property
    def is_cut_off(self) -> bool:
        """Whether the newest message ran into its token limit."""
        return self._turn is not None and is_cut_off(self._turn.message)

    def begin(self, messages: Iterable[Any]) -> None:
        """Messages of the input: no steps of this rollout."""
        self._conversation = Conversation(messages)

    def take(self, messages: Iterable[Any], *, late: bool = False, replayed: bool = False) -> None:
        """Read a state's messages; those not seen before become steps and replies.

        Args:
            messages: all messages of the state.
            late: the group was cut while the newest of them were made.
            replayed: they were made by an earlier run.
        """
        for message in self._conversation.new(messages):
            if self.out_of_steps:
                return
            if not is_assistant(message):
                if self._turn is not None:
                    self._turn.replies.append(message)
                continue
            self._begin_turn(message, late=late, replayed=replayed)

    def finish(self, answer: str | None, reward: object, *, truncated: bool) -> None:
        """The rollout ended normally.

        Its end is an action like any other, `final` with the answer: the closing message's, or, where the
        agent ended with a tool's result, one more. So a rollout that is about to end never looks as if it
        had ended already, whoever comes first.

        Raises:
            RewardError: the reward is no number.
        """
        where = f"group {self._desk.log.group_id!r} rollout {self.index}"
        self.reward, self.answer = parse_reward(reward, where=where), answer
        last: str | None = None
        if not truncated and (self._turn is None or self._turn.acts):
            self._close_turn()
            if self.steps or answer is not None:
                last = self._write(final_action(answer, self._config.actions))
        elif self._turn is not None and not self._turn.is_reported:
            if not truncated:
                self._turn.action = final_action(answer, self._config.actions)
            last = self._write(self._turn.action, self._turn)
            self._turn = None
        self._close_turn()
        self.status = RolloutStatus.TRUNCATED if truncated else RolloutStatus.FINISHED
        if last is not None:
            self._tell(len(self.steps), last)
        self._desk.check_sampling()
        decision = self._desk.log.finish(
            self.index,
            self.reward,
            answer,
            truncated=truncated,
            last_action=last,
            overrun=self._overrun,
        )
        self._leave(decision, failed=False)

    def fail(self, kind: str, message: str) -> None:
        """Something broke that is no behaviour of the model."""
        self._close_turn()
        self.status, self.failure = RolloutStatus.FAILED, RolloutFailure(kind, message)
        self._lose_requests()
        decision = self._desk.log.fail(self.index, kind, message, lost=self.lost_usage, overrun=self._overrun)
        self._leave(decision, failed=True)

    def interrupt(self, asks: str) -> None:
        """The rollout waits for somebody's reply, which this run does not get."""
        self._desk.interrupted()
        self.fail("interrupted", f"waits for a reply: {asks}")

    def cut(self, *, is_lost: bool = False) -> None:
        """The gate stopped the rollout.

        Args:
            is_lost: in mid-flight, so that it cannot go on for a survivor that fails.
        """
        self._close_turn()
        self.status = RolloutStatus.CUT
        self._lose_requests()
        self._desk.log.cut(self.index, lost=self.lost_usage, overrun=self._overrun)
        if is_lost:
            self._desk.ended(self.index, failed=True, answer=None)
        self._emit_end()

    def _begin_turn(self, message: Any, *, late: bool, replayed: bool) -> None:
        usage = self._book(message, late=late)
        self._close_turn()
        if len(self.steps) >= self._config.max_steps:
            self.out_of_steps = True
            return
        options = self._config.actions
        raw = read_action(message, options)
        self._turn = _Turn(message, canonicalise(raw, options), acts(raw, options), usage, replayed)
        self.out_of_steps = self._turn.acts and len(self.steps) + 1 >= self._config.max_steps
        if self._turn.acts and not self.out_of_steps:
            self._report(self._turn)

    def _book(self, message: Any, *, late: bool) -> Usage:
        """Count a message's tokens; several messages of one response share theirs, which count once."""
        usage, name = usage_of(message), response_id_of(message)
        self._desk.samples.sampled(self.index, name)
        turn = self._turn
        if name is not None and turn is not None and response_id_of(turn.message) == name:
            if not turn.replies:
                return Usage(prompt=0, completion=0, source=usage.source)
            self._desk.samples.repeated()
        overrun = (usage.completion or 0) if late else 0
        self._overrun += overrun
        self.ledger.add(usage, overrun=overrun)
        return usage

    def _report(self, turn: _Turn) -> None:
        """Tell the gate of the newest action, which the trace does not hold yet."""
        turn.is_reported = True
        self._tell(len(self.steps) + 1, turn.action)
        self._desk.check_sampling()
        self._desk.note(self._desk.log.report(self.index, turn.action))

    def _close_turn(self) -> None:
        """Write the newest step, whose reply is complete."""
        turn, self._turn = self._turn, None
        if turn is None:
            return
        if not turn.is_reported:
            self._report(turn)
        self._write(turn.action, turn)

    def _write(self, action: str, turn: _Turn | None = None) -> str:
        reply, is_error = reply_of(turn.replies) if turn is not None else (None, None)
        step = Step(
            index=len(self.steps) + 1,
            action=action,
            completion=text_of(turn.message) if turn is not None else None,
            observation=reply,
            observation_hash=observation_hash(reply),
            is_error=is_error,
            usage=turn.usage if turn is not None else None,
            finish_reason=finish_reason_of(turn.message) if turn is not None else None,
        )
        self.steps.append(step)
        self._desk.log.write_step(self.index, step, replayed=turn is not None and turn.is_replayed)
        return action

    def _lose_requests(self) -> None:
        """Book those that were under way when the rollout ended: asked for, and never counted."""
        for _ in self.watch.requests:
            self.lost.append(Usage())
            self.ledger.add(Usage())

    def _leave(self, decision: GateDecision | None, *, failed: bool) -> None:
        self._desk.ended(self.index, failed=failed, answer=self.answer)
        self._desk.note(decision)
        self._emit_end()

    def _tell(self, step: int, action: str) -> None:
        self._desk.emit(
            GroupEvent(
                type="step", group_id=self._desk.log.group_id, rollout=self.index, step=step, action=action
            )
        )

    def _emit_end(self) -> None:
        self._desk.emit(
            GroupEvent(
                type="rollout_end",
                group_id=self._desk.log.group_id,
                rollout=self.index,
                status=self.status,
            )
        )
