"""`run_group`: one task, G rollouts, one outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from selective_rollout.draws import is_audited
from selective_rollout.engine.closing import decided, write_end
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.conversation import Opening, default_opening
from selective_rollout.engine.feed import StreamFeed
from selective_rollout.engine.hold import Control, GateControl
from selective_rollout.engine.ledger import Ledger
from selective_rollout.engine.member import Member, Score
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.past import Past
from selective_rollout.engine.vote import VoteControl, full_vote
from selective_rollout.env.base import EnvironmentFactory
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.group import GroupGate
from selective_rollout.gate.streaming import StreamGate
from selective_rollout.policy.base import Policy
from selective_rollout.trace.group_log import GroupLog
from selective_rollout.trace.recorder import Recorder, log_of
from selective_rollout.types import Group, Step, Task


@dataclass(frozen=True, slots=True)
class Workshop:
    """What every group of a run shares: who acts, where, under which rule, and who writes it down."""

    policy: Policy
    environment: EnvironmentFactory
    gate: GateConfig
    config: RunConfig
    recorder: Recorder | None = None
    opening: Opening = default_opening
    score: Score | None = None
    """Scores rollouts that have ended; None: the environment's own reward counts."""


@dataclass(frozen=True, slots=True)
class EarlierAttempt:
    """What a trace holds of a group that was interrupted; by default, of one that was never begun."""

    attempt: int = 0
    audit: bool | None = None
    """Whether the group was drawn for an audit, if that is on record."""
    steps: Mapping[int, Sequence[Step]] = field(default_factory=dict)
    """Recorded steps of members that can be taken over, by rollout; empty: start from scratch."""
    abandoned: int = 0
    """Completion tokens of all earlier attempts that are not taken over."""

    @property
    def goes_on(self) -> bool:
        """Whether any step is taken over."""
        return any(self.steps.values())


async def run_group(
    task: Task,
    *,
    policy: Policy,
    environment: EnvironmentFactory,
    gate: GateConfig | None = None,
    config: RunConfig | None = None,
    group_id: str | None = None,
    recorder: Recorder | None = None,
    opening: Opening = default_opening,
    score: Score | None = None,
) -> GroupOutcome:
    """Run one group to its end, or until the gate stops it.

    Args:
        task: the prompt and the facts its environment needs.
        policy: turns a conversation into the next message; called once per rollout and step.
        environment: makes the world of one rollout.
        gate: the decision rule; the paper's by default.
        config: how to run; observe mode with 8 rollouts by default.
        group_id: explicit identity; the task id by default.
        recorder: where to write the trace.
        opening: makes the first messages of a conversation.
        score: scores rollouts that have ended, instead of the environment.

    Returns:
        The outcome. A rollout that failed is in it as data.
    """
    shop = Workshop(
        policy, environment, gate or GateConfig(), config or RunConfig(), recorder, opening, score
    )
    return await run_in(shop, task, group_id or task.id)


async def run_in(
    shop: Workshop,
    task: Task,
    group_id: str,
    *,
    past: Past | None = None,
    tau: float | None = None,
    earlier: EarlierAttempt | None = None,
) -> GroupOutcome:
    """Run one group with the shared parts of a run; see `run_group`.

    Args:
        shop: the shared parts.
        task: the task.
        group_id: explicit identity.
        past: what the rule reads of the prompt's earlier groups.
        tau: this group's own threshold, clipped at the rule's.
        earlier: an interrupted attempt to continue.

    Raises:
        ConfigError: the rule is at level "token", which compares what no step reports.
    """
    config, past, earlier = shop.config, past or Past(), earlier or EarlierAttempt()
    if shop.gate.level == "token":
        raise ConfigError(
            'gate.level "token": a run reports actions to its gate; give the rule over tokens as '
            "RunConfig(stream=StreamRule(...))"
        )
    sampling = config.sampling_of(group_id)
    gate = GroupGate(
        shop.gate,
        config.group_size,
        group_id=group_id,
        sampling=sampling,
        history=past.rewards,
        history_p=past.p_zero_variance,
        tau=tau,
    )
    audited = _is_audited(config, group_id, earlier)
    stream = None
    if config.stream is not None and not earlier.goes_on:  # what was generated by then was never heard
        stream = StreamGate(
            config.stream, shop.gate, gate.size, group_id=group_id, sampling=sampling, history=past.rewards
        )
    log = log_of(shop.recorder, group_id, attempt=earlier.attempt + 1, gate=gate, stream=stream)
    log.begin(
        size=gate.size,
        task_id=task.id,
        mode=config.mode,
        sampling=sampling,
        history=past.rewards,
        audit=audited if config.mode == "enforce" else None,
        metadata=task.metadata,
    )
    members: list[Member] = []
    control = _control(shop, gate, stream, audited, on_stop=lambda rollout: members[rollout].stop())
    members += [_member(i, shop, task, control, log, earlier) for i in range(config.group_size)]
    async with asyncio.TaskGroup() as tasks:
        for member in members:
            tasks.create_task(member.run(), name=f"{group_id}/{member.index}")
    return _close(task, gate, log, members, control, audited, earlier.abandoned)


def _is_audited(config: RunConfig, group_id: str, earlier: EarlierAttempt) -> bool:
    """Drawn once per group, by id; a draw that is on record is never drawn again."""
    if config.mode != "enforce":
        return False
    if earlier.audit is not None:
        return earlier.audit
    return is_audited(config.seed, group_id, config.audit_rate)


def _control(
    shop: Workshop,
    gate: GroupGate,
    stream: StreamGate | None,
    audited: bool,
    on_stop: Callable[[int], None],
) -> Control:
    enforce = shop.config.mode == "enforce" and not audited
    if shop.gate.outcome == "vote" and enforce:
        return VoteControl(gate.group_id, gate.size, on_stop)
    return GateControl(
        gate,
        hold=shop.config.hold_for(shop.gate.outcome),
        enforce=enforce,
        on_stop=on_stop,
        stream=stream,
        timeout_s=shop.config.hold_timeout_s,
    )


def _member(
    index: int, shop: Workshop, task: Task, control: Control, log: GroupLog, earlier: EarlierAttempt
) -> Member:
    return Member(
        index,
        task,
        log.group_id,
        shop.policy,
        shop.environment,
        shop.opening,
        shop.score,
        shop.config,
        control,
        log,
        resumed=tuple(earlier.steps.get(index, ())),
        siblings=1 if earlier.goes_on else shop.config.group_size,
        feed=StreamFeed(index, log.stream, log, control) if log.stream is not None else None,
    )


def _close(
    task: Task,
    gate: GroupGate,
    log: GroupLog,
    members: Sequence[Member],
    control: Control,
    audited: bool,
    abandoned: int,
) -> GroupOutcome:
    verdict = control.verdict()
    rollouts = tuple(member.rollout for member in members)
    outcome = GroupOutcome(
        group=Group(
            id=gate.group_id,
            size=gate.size,
            rollouts=rollouts,
            task_id=task.id,
            attempt=log.attempt,
            metadata=task.metadata,
        ),
        ledger=Ledger.of((member.ledger for member in members), abandoned=abandoned),
        audited=audited,
        answer=verdict.answer if verdict.stopped else full_vote(gate, rollouts),
        **decided(gate, verdict, log.stream),
    )
    write_end(log, outcome)
    return outcome
