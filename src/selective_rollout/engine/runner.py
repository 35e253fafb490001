"""`run_group`: one task, G rollouts, one outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from selective_rollout.draws import is_audited, sampling_seed
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.conversation import Opening, default_opening
from selective_rollout.engine.feed import StreamFeed
from selective_rollout.engine.hold import Control, GateControl
from selective_rollout.engine.ledger import Ledger
from selective_rollout.engine.member import Member, Score
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.vote import VoteControl, full_vote
from selective_rollout.env.base import EnvironmentFactory
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import would_cut_at
from selective_rollout.gate.group import GroupGate
from selective_rollout.gate.streaming import StreamGate
from selective_rollout.policy.base import Policy
from selective_rollout.trace.group_log import GroupLog
from selective_rollout.trace.recorder import Recorder, writer_of
from selective_rollout.types import Group, SamplingInfo, Step, Task


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
    """What a trace holds of a group that was interrupted."""

    attempt: int
    audit: bool | None
    steps: Mapping[int, Sequence[Step]]
    """Recorded steps of members that can be taken over, by rollout; empty: start from scratch."""
    abandoned: int
    """Completion tokens of all earlier attempts that are not taken over."""


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
    history: Sequence[float] | None = None,
    history_p: float | None = None,
    tau: float | None = None,
    earlier: EarlierAttempt | None = None,
) -> GroupOutcome:
    """Run one group with the shared parts of a run; see `run_group`.

    Args:
        shop: the shared parts.
        task: the task.
        group_id: explicit identity.
        history: the prompt's last rewards, for the `history_mixed` veto.
        history_p: the prompt's `PromptHistory.p_zero_variance`, for a score that reads it.
        tau: this group's own threshold, clipped at the rule's.
        earlier: an interrupted attempt to continue.

    Raises:
        ConfigError: the rule is at level "token", which compares what no step reports.
    """
    config = shop.config
    if shop.gate.level == "token":
        raise ConfigError(
            'gate.level "token": a run reports actions to its gate; give the rule over tokens as '
            "RunConfig(stream=StreamRule(...))"
        )
    sampling = [
        SamplingInfo(seed=sampling_seed(config.seed, group_id, i), temperature=config.temperature)
        for i in range(config.group_size)
    ]
    gate = GroupGate(
        shop.gate,
        config.group_size,
        group_id=group_id,
        sampling=sampling,
        history=history,
        history_p=history_p,
        tau=tau,
    )
    audited = _is_audited(config, group_id, earlier)
    stream = _stream(shop, gate, sampling, history, earlier)
    log = _begin(shop, task, gate, stream, sampling, history, audited, earlier)
    fresh = earlier is None or not any(earlier.steps.values())
    members: list[Member] = []
    control = _control(shop, gate, stream, audited, on_stop=lambda rollout: members[rollout].stop())
    for index in range(config.group_size):
        members.append(
            Member(
                index,
                task,
                group_id,
                shop.policy,
                shop.environment,
                shop.opening,
                shop.score,
                config,
                control,
                log,
                resumed=tuple(earlier.steps.get(index, ())) if earlier else (),
                siblings=config.group_size if fresh else 1,
                feed=StreamFeed(index, stream, log, control) if stream is not None else None,
            )
        )
    async with asyncio.TaskGroup() as tasks:
        for member in members:
            tasks.create_task(member.run(), name=f"{group_id}/{member.index}")
    return _close(shop, task, gate, log, members, control, audited, earlier)


def _is_audited(config: RunConfig, group_id: str, earlier: EarlierAttempt | None) -> bool:
    """Drawn once per group, by id; a draw that is on record is never drawn again."""
    if config.mode != "enforce":
        return False
    if earlier is not None and earlier.audit is not None:
        return earlier.audit
    return is_audited(config.seed, group_id, config.audit_rate)


def _stream(
    shop: Workshop,
    gate: GroupGate,
    sampling: Sequence[SamplingInfo],
    history: Sequence[float] | None,
    earlier: EarlierAttempt | None,
) -> StreamGate | None:
    """The gate over the group's streams; none where a part of them was generated by an earlier attempt."""
    rule = shop.config.stream
    if rule is None or (earlier is not None and any(earlier.steps.values())):
        return None
    return StreamGate(rule, shop.gate, gate.size, group_id=gate.group_id, sampling=sampling, history=history)


def _begin(
    shop: Workshop,
    task: Task,
    gate: GroupGate,
    stream: StreamGate | None,
    sampling: Sequence[SamplingInfo],
    history: Sequence[float] | None,
    audited: bool,
    earlier: EarlierAttempt | None,
) -> GroupLog:
    recorder = shop.recorder
    log = GroupLog(
        writer_of(recorder),
        gate.group_id,
        attempt=earlier.attempt + 1 if earlier else 1,
        gate=gate,
        stream=stream,
        record_observations=recorder is not None and recorder.record_observations,
        record_completions=recorder is not None and recorder.record_completions,
    )
    log.begin(
        size=gate.size,
        task_id=task.id,
        mode=shop.config.mode,
        sampling=sampling,
        history=history if shop.gate.history_mixed else None,
        audit=audited if shop.config.mode == "enforce" else None,
        metadata=task.metadata,
    )
    return log


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


def _close(
    shop: Workshop,
    task: Task,
    gate: GroupGate,
    log: GroupLog,
    members: Sequence[Member],
    control: Control,
    audited: bool,
    earlier: EarlierAttempt | None,
) -> GroupOutcome:
    ledger = Ledger.of((member.ledger for member in members), abandoned=earlier.abandoned if earlier else 0)
    verdict = control.verdict()
    stream = log.stream
    outcome = GroupOutcome(
        group=Group(
            id=gate.group_id,
            size=gate.size,
            rollouts=tuple(member.rollout for member in members),
            task_id=task.id,
            attempt=log.attempt,
            metadata=task.metadata,
        ),
        decisions=gate.checks,
        ledger=ledger,
        cut_as=shop.gate.outcome if verdict.stopped else None,
        cut_at=verdict.cut_at,
        would_cut_at=would_cut_at(gate.fired, verdict.cut_at),
        stream_decisions=stream.checks if stream is not None else (),
        stream_cut_at=verdict.stream_cut_at,
        stream_would_cut_at=would_cut_at(stream.fired if stream is not None else None, verdict.stream_cut_at),
        audited=audited,
        late_veto=verdict.late_veto,
        survivor=verdict.survivor,
        answer=verdict.answer
        if verdict.stopped
        else full_vote(gate, {member.index: member.answer for member in members}),
    )
    log.end(
        outcome=outcome.cut_as,
        cut_at=outcome.cut_at,
        stream_cut_at=outcome.stream_cut_at,
        survivor=outcome.survivor,
        answer=outcome.answer,
        abandoned=ledger.abandoned or None,
        late_veto=outcome.late_veto,
    )
    return outcome
