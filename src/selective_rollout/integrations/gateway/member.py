"""One rollout as the gateway sees it: requests and answers come in, steps and an end go to gate and trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from selective_rollout.actions import default_answer
from selective_rollout.engine.hold import GateControl
from selective_rollout.engine.ledger import Ledger
from selective_rollout.gate.decision import GateDecision
from selective_rollout.integrations.gateway.answer import Answer
from selective_rollout.integrations.gateway.conversation import (
    Api,
    Body,
    Reader,
    Said,
    reply_text,
    stands_in,
)
from selective_rollout.integrations.gateway.flight import Flight
from selective_rollout.integrations.gateway.threads import Pending, Thread, Threads
from selective_rollout.policy.usage import sum_usages
from selective_rollout.trace.group_log import GroupLog, observation_hash
from selective_rollout.types import RolloutFailure, RolloutStatus, SamplingInfo, Step, Usage


@dataclass(slots=True)
class Member:
    """Keeps one rollout; used on the gateway's event loop only."""

    index: int
    log: GroupLog
    control: GateControl
    reader: Reader
    threads: Threads = field(default_factory=Threads)

    status: RolloutStatus = RolloutStatus.RUNNING
    steps: int = 0
    last_action: str | None = None
    reward: float | None = None
    answer: str | None = None
    failure: RolloutFailure | None = None
    ledger: Ledger = field(default_factory=Ledger)
    sampling: SamplingInfo = field(default_factory=SamplingInfo)
    flights: set[Flight] = field(default_factory=set)
    """Requests that are being served, held ones included."""
    waiting: int = 0
    """How many of them are held."""
    seen_at: float | None = None
    """When the last request began or ended, in seconds of the gateway's clock; None: there was none."""
    _lost: Usage | None = None
    """Tokens of answers that became no step."""
    _overrun: int = 0

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.status is RolloutStatus.RUNNING

    @property
    def pending(self) -> Pending | None:
        """The last answer, if no request has gone on from it."""
        latest = self.threads.latest
        return latest.pending if latest is not None else None

    def hear(self, api: Api, raw: bytes, body: Body) -> Thread | None:
        """Take in a request: every turn that it shows for the first time is a step.

        Returns:
            The conversation that it belongs to; None if it cannot be read.
        """
        conversation = self.reader.read(api, body)
        if conversation is None:
            return None
        self._declare(body)
        if body.previous_response_id is not None:
            thread = self.threads.continuing(body.previous_response_id)
            if thread is not None:
                if thread.continued != body.previous_response_id:
                    thread.continued = body.previous_response_id
                    self._commit_pending(thread, conversation.before)
                return thread
        thread, turns = self.threads.advance(conversation)
        for other in self.threads.all:
            if other is not thread and other.pending is not None and _went_on(other.pending, raw):
                self._commit_pending(other, ())
        for turn in turns:
            self._step(thread, turn.said, turn.replies)
        if turns:
            self._drop_pending(thread)
        return thread

    def answered(
        self, thread: Thread | None, answer: Answer | None, *, offered_tools: bool, overrun: int = 0
    ) -> None:
        """Take in what came of a request.

        Args:
            thread: its conversation.
            answer: the answer; None if nothing could be read of it.
            offered_tools: whether the request offered tools of the client.
            overrun: completion tokens that came after the cut.
        """
        usage = answer.usage if answer is not None else Usage()
        self.ledger.add(usage, overrun=overrun)
        self._overrun += overrun
        if not self.running:
            return
        if thread is None or answer is None or answer.message is None:
            self._lose(usage)
            return
        self._drop_pending(thread)
        thread.pending = Pending(answer, answer.message, self.reader.said, offered_tools)
        if self.sampling.response_id is None and answer.id:
            self.sampling = SamplingInfo(self.sampling.seed, self.sampling.temperature, answer.id)

    def finish(self, reward: object, answer: str | None, *, truncated: bool = False) -> None:
        """The rollout ended normally; an answer that no request went on from was its last action.

        Raises:
            RewardError: the reward is no number.
        """
        pending = self.pending
        said = pending.said if pending is not None and not pending.answer.is_cut_off else None
        truncated = truncated or (pending is not None and pending.answer.is_cut_off)
        if said is not None and pending is not None:
            answer = answer if answer is not None or said.waits else default_answer(pending.answer.text)
            self._write(said, (), pending.answer)
        for thread in self.threads.all:
            if thread.pending is not None and (said is None or thread.pending is not pending):
                self._drop_pending(thread)
        status = RolloutStatus.TRUNCATED if truncated else RolloutStatus.FINISHED
        decision = self.log.finish(
            self.index,
            reward,
            answer,
            truncated=truncated,
            last_action=said.action if said is not None else None,
            lost=self._lost,
            overrun=self._overrun,
        )
        self._ended(status, answer)
        self.control.ended(self.index, failed=False, answer=answer)
        self._note(decision)

    def fail(self, kind: str, message: str) -> None:
        """The rollout broke, or nobody knows what became of it."""
        for thread in self.threads.all:
            self._drop_pending(thread)
        decision = self.log.fail(self.index, kind, message, lost=self._lost, overrun=self._overrun)
        self.failure = RolloutFailure(kind, message)
        self._ended(RolloutStatus.FAILED, None)
        self.control.ended(self.index, failed=True, answer=None)
        self._note(decision)

    def cut(self) -> None:
        """The gate stopped it for good."""
        for thread in self.threads.all:
            self._drop_pending(thread)
        self.log.cut(self.index, lost=self._lost, overrun=self._overrun)
        self._ended(RolloutStatus.CUT, None)

    def stop(self) -> None:
        """End the requests that are under way at the model server."""
        for flight in tuple(self.flights):
            flight.stop()

    def _declare(self, body: Body) -> None:
        """The first request tells how the rollout is sampled."""
        if self.seen_at is None or self.sampling == SamplingInfo():
            temperature = body.temperature
            self.sampling = SamplingInfo(body.seed, temperature, self.sampling.response_id)

    def _commit_pending(self, thread: Thread, replies: Sequence[bytes]) -> None:
        pending = thread.pending
        if pending is not None:
            thread.known.append(pending.said)
            self._step(thread, pending.said, replies)
        self._drop_pending(thread)

    def _step(self, thread: Thread, said: Said, replies: Sequence[bytes]) -> None:
        pending, answer = thread.pending, None
        if pending is not None and pending.is_shown_by(said):
            answer, thread.pending = pending.answer, None
        self._write(said, replies, answer)
        self._note(self.log.report(self.index, said.action))

    def _write(self, said: Said, replies: Sequence[bytes], answer: Answer | None) -> None:
        text = reply_text(replies)
        self.steps += 1
        self.last_action = said.action
        self.log.write_step(
            self.index,
            Step(
                index=self.steps,
                action=said.action,
                completion=answer.text if answer is not None else None,
                observation=text,
                observation_hash=observation_hash(text),
                usage=answer.usage if answer is not None else None,
                finish_reason=answer.finish_reason if answer is not None else None,
            ),
        )

    def _drop_pending(self, thread: Thread) -> None:
        """The client threw an answer away; its tokens were generated all the same."""
        if thread.pending is not None:
            self._lose(thread.pending.answer.usage)
            thread.pending = None

    def _lose(self, usage: Usage) -> None:
        self._lost = usage if self._lost is None else sum_usages([self._lost, usage])

    def _ended(self, status: RolloutStatus, answer: str | None) -> None:
        self.status, self.answer = status, answer
        self.reader.forget()
        self.threads = Threads()

    def _note(self, decision: GateDecision | None) -> None:
        if decision is not None:
            self.control.note(decision)


def _went_on(pending: Pending, raw: bytes) -> bool:
    """Whether a request of another conversation shows that the agent acted on an answer.

    A call was run; or the text is quoted, as by agents that write their whole history into one prompt.
    """
    if not pending.looks_final:
        return True
    return bool(pending.answer.text) and stands_in(pending.answer.text, raw)
