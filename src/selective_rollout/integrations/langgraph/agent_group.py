"""One group of agents, from its opening to its result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from selective_rollout.draws import stable_fraction
from selective_rollout.engine.hold import Control, GateControl
from selective_rollout.engine.ledger import Ledger
from selective_rollout.engine.vote import VoteControl, full_vote
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import GateDecision
from selective_rollout.gate.group import GroupGate
from selective_rollout.gate.history import PromptHistory
from selective_rollout.integrations.langgraph.account import Account
from selective_rollout.integrations.langgraph.agent_result import AgentGroupResult, GroupEvent
from selective_rollout.integrations.langgraph.drive import Drive, Setup, Start
from selective_rollout.integrations.langgraph.session import settled
from selective_rollout.integrations.langgraph.state import GroupStatus
from selective_rollout.integrations.langgraph.threads import thread_of
from selective_rollout.integrations.langgraph.watch import SamplingWatch
from selective_rollout.trace.group_log import GroupLog
from selective_rollout.trace.recorder import Recorder, writer_of
from selective_rollout.types import Group, Rollout, RolloutStatus

Aggregate: TypeAlias = Callable[[Sequence[Rollout]], Any]
"""Makes the group's answer of the rollouts that ended normally; may be a coroutine function."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides about the groups of a runner, and who keeps their records."""

    gate: GateConfig
    aggregate: Aggregate | None = None
    recorder: Recorder | None = None
    history: PromptHistory | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Which group it is."""

    group_id: str
    task_id: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    attempt: int = 1


class AgentGroup:
    """Runs one group.

    Args:
        identity: which group it is.
        rules: the gate and the records.
        setup: the agents and the settings.
        start: what this run begins with.
        slots: bounds the supersteps that run at once.
        emit: takes events.
    """

    def __init__(
        self,
        identity: Identity,
        rules: Rules,
        setup: Setup,
        start: Start,
        slots: asyncio.Semaphore,
        emit: Callable[[GroupEvent], None],
    ) -> None:
        config = setup.config
        self.emit = emit
        self.samples = SamplingWatch(identity.group_id, config.temperature)
        self._identity = identity
        self._rules = rules
        self._setup = setup
        self._past = _past(rules, identity.task_id)
        self._is_audited = (
            config.mode == "enforce"
            and stable_fraction("audit", config.seed, identity.group_id) < config.audit_rate
        )
        self._gate = self._make_gate()
        self.log = self._begin_log()
        self._control = self._make_control()
        self._are_copies = False
        self._checks_told = 0
        self._running = set(range(config.group_size))
        self._drives = [
            Drive(
                Account(index, self, config),
                index,
                identity.group_id,
                setup,
                start,
                self._control.permit,
                slots,
                emit,
            )
            for index in range(config.group_size)
        ]

    async def run(self) -> AgentGroupResult:
        """Run every rollout to its end, or until the gate stops it.

        Raises:
            ConfigError: the agents cannot be driven.
        """
        tasks = [asyncio.create_task(drive.run()) for drive in self._drives]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        broken = next((task.exception() for task in tasks if not task.cancelled() and task.exception()), None)
        if broken is not None:
            self.log.end(error=f"{type(broken).__name__}: {broken}")
            raise broken
        return await self._close()

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
        self._control.ended(rollout, failed=failed, answer=answer)

    def interrupted(self) -> None:
        """A rollout waits for somebody's reply, so nobody knows yet where it goes: no convergence."""
        self._keep()

    def _keep(self) -> None:
        if self._gate.fired is None:
            self._control.note(self._gate.disable())

    def _make_gate(self) -> GroupGate:
        config, history = self._setup.config, self._rules.history
        task_id = self._identity.task_id
        return GroupGate(
            self._rules.gate,
            config.group_size,
            group_id=self._identity.group_id,
            sampling=[self.samples.declared] * config.group_size,
            history=self._past,
            history_p=history.p_zero_variance(task_id, config.group_size) if history is not None else None,
        )

    def _begin_log(self) -> GroupLog:
        identity, recorder, config = self._identity, self._rules.recorder, self._setup.config
        log = GroupLog(
            writer_of(recorder),
            identity.group_id,
            attempt=identity.attempt,
            gate=self._gate,
            record_observations=recorder is not None and recorder.record_observations,
            record_completions=recorder is not None and recorder.record_completions,
        )
        log.begin(
            size=config.group_size,
            task_id=identity.task_id,
            mode=config.mode,
            sampling=[self.samples.declared] * config.group_size,
            history=self._past,
            audit=self._is_audited if config.mode == "enforce" else None,
            metadata=identity.metadata,
        )
        return log

    def _make_control(self) -> Control:
        config, gate = self._setup.config, self._gate
        enforce = config.mode == "enforce" and not self._is_audited
        if gate.config.outcome == "vote" and enforce:
            return VoteControl(gate.group_id, gate.size, self._stop)
        return GateControl(
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
        ledger = Ledger()
        for drive in self._drives:
            ledger.merge(drive.account.ledger)
        verdict, fired, identity = self._control.verdict(), self._gate.fired, self._identity
        result = AgentGroupResult(
            group=Group(
                id=identity.group_id,
                size=self._gate.size,
                rollouts=rollouts,
                task_id=identity.task_id,
                attempt=identity.attempt,
                metadata=identity.metadata,
            ),
            decisions=self._gate.checks,
            ledger=ledger,
            cut_as=self._rules.gate.outcome if verdict.stopped else None,
            cut_at=verdict.cut_at,
            would_cut_at=fired.step if fired is not None and verdict.cut_at is None else None,
            audited=self._is_audited,
            late_veto=verdict.late_veto,
            survivor=verdict.survivor,
            answer=verdict.answer if verdict.stopped else await self._full_answer(rollouts),
            status=_status(rollouts, stopped=verdict.stopped),
            ledgers=tuple(drive.account.ledger for drive in self._drives),
            thread_ids=tuple(thread_of(identity.group_id, index) for index in range(self._gate.size)),
            states=tuple(drive.state for drive in self._drives),
            interrupts={i: drive.interrupts for i, drive in enumerate(self._drives) if drive.interrupts},
            messages_key=self._setup.messages_key,
        )
        self._end(result)
        return result

    def _end(self, result: AgentGroupResult) -> None:
        self.log.end(
            outcome=result.cut_as,
            cut_at=result.cut_at,
            survivor=result.survivor,
            answer=result.answer,
            late_veto=result.late_veto,
        )
        if self._rules.history is not None:
            rewards = [rollout.reward for rollout in result.rollouts]
            self._rules.history.record(
                result.group.task_id, result.group.id, rewards, was_cut=not result.trainable
            )

    async def _full_answer(self, rollouts: Sequence[Rollout]) -> str | None:
        """The answer of a group that ran to its end: the aggregate's, else a vote's; none in training."""
        if self._rules.gate.outcome == "drop":
            return None
        if self._rules.aggregate is not None:
            answer = await settled(
                self._rules.aggregate([rollout for rollout in rollouts if rollout.status.ended_normally])
            )
            return None if answer is None else str(answer)
        return full_vote(self._gate, {rollout.index: rollout.answer for rollout in rollouts})


def _past(rules: Rules, task_id: str) -> Sequence[float] | None:
    """The prompt's last rewards, if the rule asks for them."""
    if rules.history is None or not rules.gate.history_mixed:
        return None
    return rules.history.last(task_id, rules.gate.history_mixed)


def _status(rollouts: Sequence[Rollout], *, stopped: bool) -> GroupStatus:
    if all(rollout.status is RolloutStatus.FAILED for rollout in rollouts):
        return "failed"
    return "cut" if stopped else "finished"
