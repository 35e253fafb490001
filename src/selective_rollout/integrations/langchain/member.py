"""One rollout as its agent's middleware sees it: messages come in, steps and ends go to the gate and trace.

A step's action is known before the tools run, their reply only with the next message. So the gate hears of an
action at once, and the trace gets the step when its reply is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from langchain_core.messages import AIMessage, AnyMessage

from selective_rollout.actions import ActionOptions, default_answer, from_message
from selective_rollout.engine.hold import GateControl
from selective_rollout.engine.record import RolloutRecord
from selective_rollout.gate.decision import GateDecision
from selective_rollout.integrations.chat_messages import finish_reason_of, is_cut_off, usage_of
from selective_rollout.integrations.langchain.messages import (
    Reply,
    reply_before,
)
from selective_rollout.trace.group_log import GroupLog, observation_hash
from selective_rollout.types import RolloutFailure, RolloutStatus, Step, Usage


@dataclass(slots=True)
class Member(RolloutRecord):
    """Keeps the record of one rollout; used on the group's loop only."""

    log: GroupLog
    control: GateControl
    options: ActionOptions

    seated: bool = False
    """Whether a run is under way."""
    interrupted: bool = False
    """Whether the last run returned because it waits for a human."""
    _message: str | None = None
    """Id of the last message heard."""
    _open: Step | None = None
    """The last step, whose reply may still come."""
    _untold: str | None = None
    """Action of a last message without calls: the gate hears of it together with the end."""
    _closing: str | None = None
    """What that message answers."""
    _cut_off: bool = False
    """Whether the last message ran into its token limit."""
    _waiting: bool = False
    _late: bool = False
    """The group was cut while this member's request was in flight."""
    _overrun: int = 0

    @property
    def _needs_no_leave(self) -> bool:
        """True of a survivor, also one resumed after an interrupt, and of what an ended run left behind."""
        ended = self.status not in (RolloutStatus.RUNNING, RolloutStatus.CUT)
        return ended or self.control.verdict().survivor == self.index

    def hear(self, message: AIMessage, reply: Reply, *, calls_tools: bool) -> None:
        """Take in a message of the model, unless it is the one that was heard last."""
        heard = message.id is not None and message.id == self._message
        if heard or self.status is not RolloutStatus.RUNNING:
            return
        self._message = message.id
        self._go_on(reply)
        usage = usage_of(message)
        late = (usage.completion or 0) if self._late else 0
        self._overrun += late
        self.ledger.add(usage, overrun=late)
        if is_cut_off(message) and not calls_tools:
            self._cut_off = True
            self.lost.append(usage)
            return
        action = from_message(message, self.options)
        self._open = Step(
            index=len(self.steps) + 1,
            action=action,
            completion=str(message.text),
            usage=usage,
            finish_reason=finish_reason_of(message),
        )
        if calls_tools:
            self._tell(action)
        else:
            self._untold = action
            self._closing = default_answer(str(message.text)) or (action if message.tool_calls else None)

    async def permit(self, reply: Reply) -> bool:
        """Wait for leave to go on; without it the rollout is over.

        Args:
            reply: what the tools of the last step have answered by now.
        """
        self._waiting = True
        try:
            allowed = self._needs_no_leave or await self.control.permit(self.index)
        finally:
            self._waiting = False
        if allowed:
            self._late = False
        elif self.status is RolloutStatus.RUNNING:
            self._write(reply)
            self.status = RolloutStatus.CUT
            self.log.cut(self.index, lost=self.lost_usage, overrun=self._overrun)
        return allowed

    def stop(self) -> None:
        """The group was cut; a request in flight is let arrive."""
        self._late = not self._waiting

    def finish(self, messages: Sequence[AnyMessage], answer: str | None, *, answer_given: bool) -> None:
        """The run returned.

        Args:
            messages: the agent's messages, as far as the run returned them.
            answer: what the user's own function read.
            answer_given: whether there is such a function.
        """
        if self.status is not RolloutStatus.RUNNING:
            return
        last_action, truncated = self._untold, self._cut_off
        self._write(reply_before(messages, len(messages)) if last_action is None else Reply())
        self.status = RolloutStatus.TRUNCATED if truncated else RolloutStatus.FINISHED
        self.answer = answer if answer_given else self._closing
        decision = self.log.finish(
            self.index,
            None,
            self.answer,
            truncated=truncated,
            last_action=last_action,
            lost=self.lost_usage,
            overrun=self._overrun,
        )
        self.control.ended(self.index, failed=False, answer=self.answer)
        self._note(decision)

    def fail(self, kind: str, message: str, *, unanswered: int = 0) -> None:
        """The run broke; after a cut that is no news.

        Args:
            kind: of failure.
            message: what happened.
            unanswered: requests in flight, whose tokens were spent unseen.
        """
        if self.status is not RolloutStatus.RUNNING:
            return
        if self._untold is not None:
            self._tell(self._untold)
        self._write(Reply())
        for _ in range(unanswered):
            self.lost.append(Usage())
            self.ledger.add(Usage())
        self.status = RolloutStatus.FAILED
        self.failure = RolloutFailure(kind, message)
        decision = self.log.fail(self.index, kind, message, lost=self.lost_usage, overrun=self._overrun)
        self.control.ended(self.index, failed=True, answer=None)
        self._note(decision)

    def _go_on(self, reply: Reply) -> None:
        """Another message came, so the one before it was no end."""
        if self._untold is not None:
            self._tell(self._untold)
        self._write(reply)
        self._untold = self._closing = None
        self._cut_off = False

    def _write(self, reply: Reply) -> None:
        if self._open is None:
            return
        step = replace(
            self._open,
            observation=reply.text,
            observation_hash=observation_hash(reply.text),
            is_error=reply.is_error,
        )
        self._open = None
        self.steps.append(step)
        self.log.write_step(self.index, step)

    def _tell(self, action: str) -> None:
        self._note(self.log.report(self.index, action))

    def _note(self, decision: GateDecision | None) -> None:
        if decision is not None:
            self.control.note(decision)
