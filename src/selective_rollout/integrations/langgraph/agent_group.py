"""One group of agents, from its opening to its result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from selective_rollout.engine.closing import decided, write_end
from selective_rollout.engine.hold import Control, GateControl
from selective_rollout.engine.ledger import Ledger
from selective_rollout.engine.past import remember
from selective_rollout.engine.sampling import SamplingWatch
from selective_rollout.engine.vote import VoteControl, full_vote
from selective_rollout.gate.decision import GateDecision, Reason
from selective_rollout.gate.group import GroupGate
from selective_rollout.integrations.chat_models import has_cache
from selective_rollout.integrations.langgraph.account import Account
from selective_rollout.integrations.langgraph.agent_result import AgentGroupResult, GroupEvent
from selective_rollout.integrations.langgraph.drive import Drive, Setup, Start
from selective_rollout.integrations.langgraph.record import LOST, GroupRecord, Identity
from selective_rollout.integrations.langgraph.rules import Rules
from selective_rollout.integrations.langgraph.session import settled
from selective_rollout.integrations.langgraph.state import GroupStatus, Plain
from selective_rollout.integrations.langgraph.threads import thread_of
from selective_rollout.integrations.langgraph.tracing import GroupTracing
from selective_rollout.trace.group_log import GroupLog
from selective_rollout.trace.recorder import log_of
from selective_rollout.types import Group, Rollout, RolloutFailure, RolloutStatus


class _AgentControl(GateControl):
    """A gate's control that can go on with a group that was cut in an earlier run."""

    def restore(self, cut: GateDecision) -> None:
        """Carry out a cut that stands, whatever the gate would say now."""
        self._carry_out(cut)


class _Samples(SamplingWatch):
    """Also keeps what each rollout's model was asked with, which a resumed group could not see again."""

    def __init__(self, group_id: str, temperature: float | None) -> None:
        super().__init__(group_id, temperature, has_cache=has_cache())
        self.told: dict[int, Plain] = {}

    def asked(self, rollout: int, settings: Mapping[str, Any]) -> None:
        """A rollout's model was asked with these settings; the first request speaks for the rollout."""
        super().asked(rollout, settings)
        self.told.setdefault(rollout, {name: settings.get(name) for name in ("seed", "temperature")})


class AgentGroup:
    """Runs one group.

    Args:
        identity: which group it is.
        record: what an earlier run has settled about it, and where this one stores what it settles.
        rules: the gate and the records.
        setup: the agents and the settings.
        start: what this run begins with.
        tracing: the group's run, as tracers see it.
        slots: bounds the supersteps that run at once.
        emit: takes events.
    """

    def __init__(
        self,
        identity: Identity,
        record: GroupRecord,
        rules: Rules,
        setup: Setup,
        start: Start,
        tracing: GroupTracing,
        slots: asyncio.Semaphore,
        emit: Callable[[GroupEvent], None],
    ) -> None:
        config = setup.config
        self.emit = emit
        self.tracing = tracing
        self._samples = _Samples(identity.group_id, config.temperature)
        self.samples: SamplingWatch = self._samples
        self._identity = identity
        self._record = record
        self._rules = rules
        self._setup = setup
        self._is_resume = start.is_resume
        self._gate = self._make_gate()
        self.log = self._begin_log()
        self._control = self._make_control()
        self._are_copies = False
        self._checks_told = 0
        self._running = set(range(config.group_size))
        self._lost: set[int] = set()
        self._to_recall = set(range(config.group_size)) if start.is_resume else set()
        self._recalled = asyncio.Event()
        self._drives = [
            Drive(Account(index, self, config), identity.group_id, setup, start, self, slots)
            for index in range(config.group_size)
        ]

    async def run(self) -> AgentGroupResult:
        """Run every rollout to its end, or until the gate stops it.

        Raises:
            ConfigError: the agents cannot be driven.
        """
        self._take_up()
        tasks = [asyncio.create_task(self._follow(index)) for index in range(self._gate.size)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        broken = next((task.exception() for task in tasks if not task.cancelled() and task.exception()), None)
        if broken is not None:
            if not self._is_resume:  # a resume that was refused leaves the group as it was: unfinished
                self.log.end(error=f"{type(broken).__name__}: {broken}")
            raise broken
        return await self._close()

    async def permit(self, rollout: int) -> bool:
        """Wait until the rollout may go on; what the group has settled by then is stored first."""
        if self._to_recall:
            await self._recalled.wait()
        may_go = await self._control.permit(rollout)
        self._settle()
        await self._record.saved()
        return may_go

    def recalled(self, rollout: int) -> None:
        """The rollout has told all that its thread holds; nobody goes on before all have."""
        self._to_recall.discard(rollout)
        if not self._to_recall:
            self._recalled.set()

    def failure_of(self, rollout: int) -> RolloutFailure | None:
        """Why the rollout was counted out in an earlier run, if it was."""
        return self._record.failures.get(rollout)

    def check_sampling(self) -> None:
        """Switch the gate off once the rollouts are known to be copies of one sample."""
        if not self._are_copies and self.samples.copies(self._running) is not None:
            self._are_copies = True
            self._keep()

    def note(self, decision: GateDecision | None) -> None:
        """Carry out what the gate said, and tell of checks it made."""
        for check in self._gate.checks[self._checks_told :]:
            self._checks_told += 1
            self.emit(
                GroupEvent(type="decision", group_id=self._identity.group_id, step=check.step, decision=check)
            )
        if decision is not None:
            self._control.note(decision)

    def ended(self, rollout: int, *, failed: bool, answer: str | None) -> None:
        """A rollout ended on its own."""
        self._running.discard(rollout)
        if failed and self._drives[rollout].account.status is RolloutStatus.CUT:
            self._lost.add(rollout)
        self._control.ended(rollout, failed=failed, answer=answer)

    def interrupted(self) -> None:
        """A rollout waits for somebody's reply, so nobody knows yet where it goes: no convergence."""
        self._keep()

    def _keep(self) -> None:
        if self._gate.fired is None:
            self._control.note(self._gate.disable())

    async def _follow(self, rollout: int) -> None:
        try:
            await self._drives[rollout].run()
        finally:
            self.recalled(rollout)

    def _take_up(self) -> None:
        """Go on from what an earlier run has settled."""
        for rollout, settings in self._record.sampling.items():
            self.samples.asked(rollout, settings)
        if self._record.is_kept:
            self._keep()
        cut = self._record.cut(self._gate.size)
        if cut is not None and isinstance(self._control, _AgentControl):
            self._control.restore(cut)

    def _settle(self) -> None:
        """Note what is settled by now."""
        verdict, fired = self._control.verdict(), self._gate.fired
        is_off = fired is None and self._gate.confirm().reason is Reason.DISABLED
        self._record.settle(
            cut=fired if verdict.cut_at is not None else None,
            is_kept=is_off or verdict.late_veto,
            failures=self._counted_out(is_stopped=verdict.stopped),
            sampling=self._samples.told,
        )

    def _counted_out(self, *, is_stopped: bool) -> dict[int, RolloutFailure]:
        """Members that a decision has done without: those it counted as absent, and all once it is a cut."""
        failures = {
            index: failure
            for index, drive in enumerate(self._drives)
            if (failure := drive.account.rollout.failure) is not None and failure.kind != "interrupted"
        }
        if is_stopped:
            return failures | {index: RolloutFailure(LOST, "cancelled by the cut") for index in self._lost}
        checks = self._gate.checks
        present = checks[-1].facts.members if checks and checks[-1].facts is not None else ()
        return {index: failure for index, failure in failures.items() if present and index not in present}

    def _make_gate(self) -> GroupGate:
        identity, config = self._identity, self._setup.config
        return GroupGate(
            self._rules.gate,
            config.group_size,
            group_id=identity.group_id,
            sampling=[self.samples.declared] * config.group_size,
            history=identity.past,
            history_p=identity.past_p,
            tau=identity.tau,
        )

    def _begin_log(self) -> GroupLog:
        identity, config = self._identity, self._setup.config
        recorder = None if self._record.is_done else self._rules.recorder
        log = log_of(recorder, identity.group_id, attempt=identity.attempt, gate=self._gate)
        log.begin(
            size=config.group_size,
            task_id=identity.task_id,
            mode=config.mode,
            sampling=[self.samples.declared] * config.group_size,
            history=identity.past,
            audit=identity.audited if config.mode == "enforce" else None,
            metadata=identity.metadata,
        )
        return log

    def _make_control(self) -> Control:
        config, gate = self._setup.config, self._gate
        enforce = config.mode == "enforce" and not self._identity.audited
        if gate.config.outcome == "vote" and enforce:
            return VoteControl(gate.group_id, gate.size, self._stop)
        return _AgentControl(
            gate,
            hold=config.hold_for(gate.config.outcome),
            enforce=enforce,
            on_stop=self._stop,
            timeout_s=config.hold_timeout_s,
        )

    def _stop(self, rollout: int) -> None:
        self._drives[rollout].stop()

    async def _close(self) -> AgentGroupResult:
        rollouts = tuple(drive.account.rollout for drive in self._drives)
        verdict, identity = self._control.verdict(), self._identity
        result = AgentGroupResult(
            group=Group(
                id=identity.group_id,
                size=self._gate.size,
                rollouts=rollouts,
                task_id=identity.task_id,
                attempt=identity.attempt,
                metadata=identity.metadata,
            ),
            ledger=Ledger.of(drive.account.ledger for drive in self._drives),
            audited=identity.audited,
            answer=verdict.answer if verdict.stopped else await self._full_answer(rollouts),
            status=_status(rollouts, stopped=verdict.stopped),
            ledgers=tuple(drive.account.ledger for drive in self._drives),
            thread_ids=tuple(thread_of(identity.group_id, index) for index in range(self._gate.size)),
            states=tuple(drive.state for drive in self._drives),
            interrupts={i: drive.interrupts for i, drive in enumerate(self._drives) if drive.interrupts},
            messages_key=self._setup.messages_key,
            **decided(self._gate, verdict),
        )
        await self._end(result)
        return result

    async def _end(self, result: AgentGroupResult) -> None:
        """Close the group; one that waits for replies stays open in the trace, to be gone on with."""
        was_done = self._record.is_done
        self._settle()
        if not result.interrupts:
            self._record.close()
        # Stored first, since a trace in which a group goes on after its end is unreadable.
        await self._record.saved()
        if was_done or result.interrupts:
            return
        write_end(self.log, result)
        remember(self._rules.history, result)

    async def _full_answer(self, rollouts: Sequence[Rollout]) -> str | None:
        """The answer of a group that ran to its end: the aggregate's, else a vote's; none in training."""
        if self._rules.gate.outcome == "drop":
            return None
        if self._rules.aggregate is not None:
            answer = await settled(
                self._rules.aggregate([rollout for rollout in rollouts if rollout.status.ended_normally])
            )
            return None if answer is None else str(answer)
        return full_vote(self._gate, rollouts)


def _status(rollouts: Sequence[Rollout], *, stopped: bool) -> GroupStatus:
    if all(rollout.status is RolloutStatus.FAILED for rollout in rollouts):
        return "failed"
    return "cut" if stopped else "finished"
