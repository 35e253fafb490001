"""Read-only pictures of the gateway, for people and programs that look on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from selective_rollout.gate.decision import GateDecision
from selective_rollout.integrations.gateway.config import GatewayConfig
from selective_rollout.integrations.gateway.desk import Desk
from selective_rollout.integrations.gateway.member import Member

MOST_SHOWN: Final = 500
_MOST_TEXT: Final = 300


@dataclass(frozen=True, slots=True)
class MemberView:
    """One rollout."""

    rollout: int
    status: str
    """running, finished, truncated, failed or cut."""
    steps: int
    last_action: str | None
    """Shortened; written by a model, so never to be read as markup."""
    in_flight: int
    """Requests being served."""
    held: bool
    """Whether it waits at a check."""
    reward: float | None
    answer: str | None
    failure: str | None
    completion_tokens: int
    """Known tokens only; `unknown_requests` says how many answers they leave out."""
    unknown_requests: int


@dataclass(frozen=True, slots=True)
class DecisionView:
    """One look of the gate."""

    step: int
    fires: bool
    reason: str
    distance: float | None
    bounds: tuple[float, float] | None
    tau: float | None
    p_signal: float | None


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group."""

    group: str
    """Its id, as its owner says it."""
    task_id: str
    size: int
    mode: str
    audited: bool
    state: str
    """running, held, cut or ended."""
    step: int
    """Position that every member has reached or ended before."""
    next_check: int | None
    tau: float
    decisions: tuple[DecisionView, ...]
    fired_at: int | None
    """Position k of the decision that fired, carried out or not."""
    cut_as: str | None
    cut_at: int | None
    survivor: int | None
    late_veto: bool
    completion_tokens: int
    tokens_after_fire: int
    """Known tokens of answers that came after the gate had fired: what a cut avoids, where none was made."""
    unknown_requests: int
    idle_s: float
    """Seconds since the last request, end or reward."""
    members: tuple[MemberView, ...]


@dataclass(frozen=True, slots=True)
class GatewayView:
    """All groups of one client, or of all clients."""

    mode: str
    outcome: str
    tau: float
    start_step: int
    upstream: str
    open_groups: int
    ended_groups: int
    held: int
    completion_tokens: int
    tokens_after_fire: int
    unknown_requests: int
    groups: tuple[GroupView, ...]
    """Open groups first, then those that ended, the most recent first; at most 500."""


def gateway_view(
    desks: Iterable[Desk], config: GatewayConfig, now: float, *, scope: str | None = None
) -> GatewayView:
    """Take a picture.

    Args:
        desks: the groups, in the order in which they are shown.
        config: how the gateway is set up.
        now: seconds of the gateway's clock.
        scope: show the groups of one client only; None: of all.
    """
    shown = [desk for desk in desks if scope is None or desk.facts.scope == scope]
    return GatewayView(
        mode=config.run.mode,
        outcome=config.rule.outcome,
        tau=config.rule.tau,
        start_step=config.rule.start_step,
        upstream=config.upstream.base_url,
        open_groups=sum(not desk.ended for desk in shown),
        ended_groups=sum(desk.ended for desk in shown),
        held=sum(member.waiting for desk in shown for member in desk.members),
        completion_tokens=sum(_tokens(desk.members) for desk in shown),
        tokens_after_fire=sum(desk.tokens_after_fire for desk in shown),
        unknown_requests=sum(m.ledger.unknown_requests for desk in shown for m in desk.members),
        groups=tuple(group_view(desk, now) for desk in shown[:MOST_SHOWN]),
    )


def group_view(desk: Desk, now: float) -> GroupView:
    """Take a picture of one group."""
    verdict, fired = desk.control.verdict(), desk.gate.fired
    return GroupView(
        group=desk.facts.name,
        task_id=desk.facts.task_id,
        size=desk.facts.size,
        mode=desk.facts.mode,
        audited=desk.facts.audited,
        state=state_of(desk),
        step=position_of(desk.members),
        next_check=desk.gate.next_check,
        tau=desk.gate.tau,
        decisions=tuple(map(_decision_view, desk.gate.checks)),
        fired_at=fired.step if fired is not None else None,
        cut_as=desk.cut_as,
        cut_at=verdict.cut_at,
        survivor=verdict.survivor,
        late_veto=verdict.late_veto,
        completion_tokens=_tokens(desk.members),
        tokens_after_fire=desk.tokens_after_fire,
        unknown_requests=sum(member.ledger.unknown_requests for member in desk.members),
        idle_s=now - desk.touched_at,
        members=tuple(map(_member_view, desk.members)),
    )


def _member_view(member: Member) -> MemberView:
    return MemberView(
        rollout=member.index,
        status=member.status.value,
        steps=member.steps,
        last_action=_short(member.last_action),
        in_flight=len(member.flights),
        held=member.waiting > 0,
        reward=member.reward,
        answer=_short(member.answer),
        failure=_short(member.failure.message) if member.failure is not None else None,
        completion_tokens=member.ledger.completion,
        unknown_requests=member.ledger.unknown_requests,
    )


def _decision_view(decision: GateDecision) -> DecisionView:
    return DecisionView(
        step=decision.step or 0,
        fires=decision.fires,
        reason=decision.reason.value,
        distance=decision.distance,
        bounds=decision.bounds,
        tau=decision.tau,
        p_signal=decision.p_signal,
    )


def state_of(desk: Desk) -> str:
    """How a group is doing: running, held, cut or ended."""
    if desk.ended:
        return "ended"
    if desk.cut_as is not None:
        return "cut"
    return "held" if any(member.waiting for member in desk.members) else "running"


def position_of(members: Sequence[Member]) -> int:
    """The position that every member has reached or ended before."""
    running = [member.steps for member in members if member.running]
    return min(running) if running else max((member.steps for member in members), default=0)


def _tokens(members: Iterable[Member]) -> int:
    return sum(member.ledger.completion for member in members)


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 3] + "..."
