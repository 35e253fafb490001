"""One group while it runs: its gate, its trace, who is held, and what came of it.

A `Desk` is used on its `LoopThread` only; a `Seat` is a rollout's way to it, from any thread or loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final

from langchain_core.messages import AIMessage, AnyMessage

from selective_rollout.engine.closing import decided
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.hold import GateControl
from selective_rollout.engine.ledger import Ledger
from selective_rollout.engine.loop import LoopThread
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.sampling import SamplingWatch
from selective_rollout.engine.vote import full_vote
from selective_rollout.errors import GroupError
from selective_rollout.gate.group import GroupGate
from selective_rollout.integrations.chat_messages import response_id_of
from selective_rollout.integrations.langchain.member import Member
from selective_rollout.integrations.langchain.messages import (
    is_interrupted,
    last_turn,
    messages_in,
    reply_before,
)
from selective_rollout.trace.group_log import GroupLog
from selective_rollout.types import Group, RolloutStatus


class Desk:
    """Keeps one group.

    Args:
        gate: the group's gate.
        log: writes its trace.
        config: how it is run.
        task_id: the independent unit of statistics.
        metadata: declared facts.
        audited: a would-be cut of this group runs on.
        samples: collects how the rollouts are sampled.
        has_answers: whether the caller reads the answers out of what the runs return.
    """

    def __init__(
        self,
        gate: GroupGate,
        log: GroupLog,
        config: RunConfig,
        *,
        task_id: str,
        metadata: Mapping[str, Any],
        audited: bool,
        samples: SamplingWatch,
        has_answers: bool,
    ) -> None:
        self._gate = gate
        self._log = log
        self._task_id = task_id
        self._metadata = metadata
        self._audited = audited
        self._samples = samples
        self._are_copies = False
        self._responses: defaultdict[int, dict[str, str | None]] = defaultdict(dict)
        """Response ids that each rollout was given, with the message that came in it."""
        self._has_answers = has_answers
        self._control = GateControl(
            gate,
            hold=config.hold_for(gate.config.outcome),
            enforce=config.mode == "enforce" and not audited,
            on_stop=lambda rollout: self._members[rollout].stop(),
            timeout_s=config.hold_timeout_s,
        )
        self._members = [Member(i, log, self._control, config.actions) for i in range(gate.size)]

    def begin(self, rollout: int) -> None:
        """A run of the rollout starts, or goes on after an interrupt.

        Raises:
            GroupError: there is no such rollout, it is under way, or it has ended.
        """
        if not 0 <= rollout < len(self._members):
            raise GroupError(
                f"{self._name} has rollouts 0 to {self._gate.size - 1}, and no rollout {rollout}"
            )
        member = self._members[rollout]
        if member.seated or member.status is not RolloutStatus.RUNNING:
            state = "is already running" if member.seated else "has already ended"
            raise GroupError(f"rollout {rollout} of {self._name} {state}: run each rollout once")
        member.seated, member.interrupted = True, False

    async def hear(self, rollout: int, messages: Sequence[AnyMessage]) -> bool:
        """Take in the model's last message, and wait for leave to run the tools it calls."""
        turn = last_turn(messages)
        if turn is None:
            return True
        message, reply, waiting = turn
        self._note_sample(rollout, message)
        self._members[rollout].hear(message, reply, calls_tools=bool(waiting))
        return not waiting or await self.permit(rollout, messages)

    async def permit(self, rollout: int, messages: Sequence[AnyMessage]) -> bool:
        """Wait for leave to go on from here."""
        return await self._members[rollout].permit(reply_before(messages, len(messages)))

    def returned(self, rollout: int, result: object, answer: str | None) -> None:
        """A run came to its end, or waits for a human."""
        member = self._members[rollout]
        member.seated = False
        if is_interrupted(result):
            self.interrupted(rollout)
        else:
            member.finish(messages_in(result), answer, answer_given=self._has_answers)

    def failed(self, rollout: int, kind: str, message: str, *, unanswered: int = 0) -> None:
        """A run broke, with so many of its requests still in flight."""
        self._members[rollout].seated = False
        self._members[rollout].fail(kind, message, unanswered=unanswered)

    def interrupted(self, rollout: int) -> None:
        """A run waits for a human: nobody else waits for it.

        Before a cut the gate is off for the group from here on. A survivor counts as having answered, so the
        parked members are stopped; its answer still counts once it is resumed.
        """
        member = self._members[rollout]
        member.seated, member.interrupted = False, True
        if member.status is not RolloutStatus.RUNNING:
            return
        if self._control.verdict().survivor == rollout:
            self._control.ended(rollout, failed=False, answer=None)
        else:
            self._keep()

    def score(self, rollout: int, reward: object) -> None:
        """Take in the reward of a rollout that has ended.

        Raises:
            GroupError: it has not.
            RewardError: the reward is no number.
        """
        member = self._members[rollout]
        if not member.status.ended_normally:
            raise GroupError(
                f"rollout {rollout} of {self._name} is {member.status.value}: "
                "only rollouts that ended normally have a reward"
            )
        member.reward = self._log.reward(rollout, reward)

    def close(self) -> GroupOutcome:
        """Fail what has not ended, and say what came of the group."""
        out = [member for member in self._members if member.status is RolloutStatus.RUNNING]
        if out:
            self._keep()
        for member in out:
            kind, text = ("interrupted", "waits for a human") if member.interrupted else _LEFT[member.seated]
            member.fail(kind, text)
        return self._outcome()

    def _note_sample(self, rollout: int, message: AIMessage) -> None:
        """Switch the gate off once the rollouts are known to be copies of one sample."""
        name, given = response_id_of(message), self._responses[rollout]
        if name is not None and given.setdefault(name, message.id) != message.id:
            self._samples.repeated()
        self._samples.sampled(rollout, name)
        running = [member.index for member in self._members if member.status is RolloutStatus.RUNNING]
        if not self._are_copies and self._samples.copies(running) is not None:
            self._are_copies = True
            self._keep()

    def _keep(self) -> None:
        """The gate is off for the group from here on, unless it has decided."""
        if self._gate.next_check is not None:
            self._control.note(self._gate.disable())

    def _outcome(self) -> GroupOutcome:
        verdict = self._control.verdict()
        survivor = verdict.survivor
        if survivor is not None and self._members[survivor].status is RolloutStatus.CUT:
            # Next in order after one that broke, but closed while that one was interrupted.
            verdict = replace(verdict, survivor=None)
        rollouts = tuple(member.rollout for member in self._members)
        return GroupOutcome(
            group=Group(
                id=self._gate.group_id,
                size=self._gate.size,
                rollouts=rollouts,
                task_id=self._task_id,
                metadata=self._metadata,
            ),
            ledger=Ledger.of(member.ledger for member in self._members),
            audited=self._audited,
            answer=verdict.answer if verdict.stopped else full_vote(self._gate, rollouts),
            **decided(self._gate, verdict),
        )

    @property
    def _name(self) -> str:
        return f"group {self._gate.group_id!r}"


_LEFT: Final = {
    False: ("not_run", "the group was left before this rollout was run"),
    True: ("left", "the group was left while this rollout was running"),
}


@dataclass(frozen=True, slots=True)
class Seat:
    """One rollout's place in its group, as its agent's middleware finds it."""

    desk: Desk
    loop: LoopThread
    rollout: int

    def hear(self, messages: Sequence[AnyMessage]) -> Future[bool] | None:
        """Tell of the model's last message; the future says whether its tools may run. None: group over."""
        return self.loop.offer(self.desk.hear(self.rollout, messages))

    def permit(self, messages: Sequence[AnyMessage]) -> Future[bool] | None:
        """Ask for leave to call the model; None: the group is over."""
        return self.loop.offer(self.desk.permit(self.rollout, messages))


SEAT: Final[ContextVar[Seat | None]] = ContextVar("selective_rollout_seat", default=None)
"""The rollout that the current task or thread belongs to."""
