"""What the live page shows: a line for each group, and totals that keep measured and estimated apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from selective_rollout.integrations.gateway.config import GatewayConfig
from selective_rollout.integrations.gateway.desk import Desk
from selective_rollout.integrations.gateway.state import position_of, state_of
from selective_rollout.types import RolloutStatus

_MOST_MARKS: Final = 32
_MARKS: Final = {
    RolloutStatus.RUNNING: "r",
    RolloutStatus.FINISHED: "f",
    RolloutStatus.TRUNCATED: "t",
    RolloutStatus.FAILED: "x",
    RolloutStatus.CUT: "c",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One group."""

    group: str
    task_id: str
    size: int
    mode: str
    state: str
    """running, held, cut or ended."""
    audited: bool
    resumed: bool
    """Whether an earlier process began it."""
    members: str
    """One letter a rollout, at most 32: r running, h held, f finished, t truncated, x failed, c cut."""
    step: int
    """Position that every member has reached or ended before."""
    next_check: int | None
    checked_at: int | None
    """Position of the latest decision; the next three are what it said."""
    reason: str | None
    compared: float | None
    """What was held against tau, if it was computed exactly."""
    bounds: tuple[float, float] | None
    tau: float
    fired_at: int | None
    late_veto: bool
    cut_as: str | None
    cut_at: int | None
    survivor: int | None
    held: int
    """Requests that wait at a check."""
    answers: int
    unknown_requests: int
    """Those of the answers without a token count."""
    completion_tokens: int
    tokens_after_fire: int
    touched_at: float
    """When the last request, end or reward came; compare with the snapshot's `now`."""


@dataclass(frozen=True, slots=True)
class Avoided:
    """Completion tokens that cuts make needless, in groups that have ended and are still known.

    What a stopped group would have gone on to generate is never seen. Groups in which the gate fired and
    nobody was stopped show it, in observe mode and in audits; the estimate rests on the audits. Groups of an
    earlier process take no part: which of their tokens came after the decision is no longer known.
    """

    ran_on: int
    """Groups in which the gate fired, not stopped."""
    measured: int | None
    """Known tokens that those generated after the gate had fired; None if no answer of theirs was counted."""
    uncounted: int
    """Answers of those groups without a token count."""
    cuts: int
    """Groups stopped."""
    audits: int
    """Audited would-be cuts whose tokens are all known."""
    estimate: float | None
    """Tokens the cuts avoided if stopped groups are like the audited ones on average; None without audits."""
    low: float | None
    """The same if all were like the audited group that had the least to go."""
    high: float | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All groups of one client."""

    now: float
    """Seconds of the gateway's clock."""
    mode: str
    outcome: str
    tau: float
    start_step: int
    check_every: int | None
    scored: bool
    """Whether a fitted score is held against tau, instead of the distance."""
    audit_rate: float
    upstream: str
    alarm: str | None
    """What the audits' alarm says once it has rung: groups begun since then are only observed."""
    recording: bool
    """False once the trace could not be written."""
    open_groups: int
    ended_groups: int
    """Those that are still known."""
    other_groups: int
    """Groups that belong to other keys."""
    held: int
    decided: int
    """Groups with a decision."""
    fired: int
    cut: int
    audited: int
    """Would-be cuts that run on for the audit."""
    late_vetoes: int
    completion_tokens: int | None
    """Known tokens; None if there were answers and none was counted."""
    unknown_requests: int
    avoided: Avoided
    groups: tuple[Line, ...]
    """Open groups, then those that ended, the most recent first."""
    left_out: int
    """Groups that are not in that list."""


@dataclass(slots=True)
class Totals:
    """Adds up lines."""

    groups: int = 0
    ended: int = 0
    held: int = 0
    decided: int = 0
    fired: int = 0
    cut: int = 0
    audited: int = 0
    late_vetoes: int = 0
    tokens: int = 0
    tokens_after_fire: int = 0
    answers: int = 0
    unknown: int = 0
    _ran_on: list[Line] = field(default_factory=list)
    _cuts: list[Line] = field(default_factory=list)

    def add(self, line: Line) -> None:
        """Count a group."""
        self.groups += 1
        self.ended += line.state == "ended"
        self.held += line.held
        self.decided += line.checked_at is not None
        self.tokens += line.completion_tokens
        self.tokens_after_fire += line.tokens_after_fire
        self.answers += line.answers
        self.unknown += line.unknown_requests
        if line.fired_at is not None:
            self._add_fired(line)

    def snapshot(
        self, config: GatewayConfig, shown: tuple[Line, ...], *, now: float, recording: bool, others: int
    ) -> Snapshot:
        """The picture.

        Args:
            config: how the gateway is set up.
            shown: the lines that go with it.
            now: seconds of the gateway's clock.
            recording: whether the trace is still written.
            others: groups of other clients.
        """
        alarm = config.alarm
        return Snapshot(
            now=now,
            mode=config.run.mode,
            outcome=config.rule.outcome,
            tau=config.rule.tau,
            start_step=config.rule.start_step,
            check_every=config.rule.check_every,
            scored=config.rule.score is not None,
            audit_rate=config.run.audit_rate,
            upstream=config.upstream.base_url,
            alarm=alarm.describe() if alarm is not None and alarm.rung else None,
            recording=recording,
            open_groups=self.groups - self.ended,
            ended_groups=self.ended,
            other_groups=others,
            held=self.held,
            decided=self.decided,
            fired=self.fired,
            cut=self.cut,
            audited=self.audited,
            late_vetoes=self.late_vetoes,
            completion_tokens=None if self.answers and self.answers == self.unknown else self.tokens,
            unknown_requests=self.unknown,
            avoided=self._avoided(),
            groups=shown,
            left_out=self.groups - len(shown),
        )

    def _add_fired(self, line: Line) -> None:
        self.fired += 1
        self.cut += line.cut_as is not None
        self.audited += line.audited
        self.late_vetoes += line.late_veto
        if line.state != "ended" or line.resumed:
            return
        if line.cut_as is not None:
            self._cuts.append(line)
        elif not line.late_veto:
            self._ran_on.append(line)

    def _avoided(self) -> Avoided:
        cuts, ran_on = self._cuts, self._ran_on
        audits = [line.tokens_after_fire for line in ran_on if line.audited and not line.unknown_requests]
        after_cuts = sum(line.tokens_after_fire for line in cuts)

        def if_each_had(tokens: float) -> float | None:
            return len(cuts) * tokens - after_cuts if cuts and audits else None

        measured = sum(line.tokens_after_fire for line in ran_on)
        uncounted = sum(line.unknown_requests for line in ran_on)
        return Avoided(
            ran_on=len(ran_on),
            measured=None if uncounted and not measured else measured,
            uncounted=uncounted,
            cuts=len(cuts),
            audits=len(audits),
            estimate=if_each_had(sum(audits) / len(audits) if audits else 0.0),
            low=if_each_had(min(audits, default=0)),
            high=if_each_had(max(audits, default=0)),
        )


def line_of(desk: Desk) -> Line:
    """Describe a group as it is now."""
    gate, verdict = desk.gate, desk.control.verdict()
    latest = gate.checks[-1] if gate.checks else None
    marks, held, answers, unknown, tokens = [], 0, 0, 0, 0
    for member in desk.members:
        marks.append("h" if member.waiting and member.running else _MARKS[member.status])
        held += member.waiting
        ledger = member.ledger
        answers += ledger.requests
        unknown += ledger.unknown_requests
        tokens += ledger.completion
    return Line(
        group=desk.facts.name,
        task_id=desk.facts.task_id,
        size=desk.facts.size,
        mode=desk.facts.mode,
        state=state_of(desk),
        audited=desk.facts.audited,
        resumed=desk.facts.place < 0,
        members="".join(marks[:_MOST_MARKS]),
        step=position_of(desk.members),
        next_check=gate.next_check,
        checked_at=latest.step if latest is not None else None,
        reason=latest.reason.value if latest is not None else None,
        compared=latest.compared if latest is not None else None,
        bounds=latest.bounds if latest is not None else None,
        tau=gate.tau,
        fired_at=gate.fired.step if gate.fired is not None else None,
        late_veto=verdict.late_veto,
        cut_as=desk.cut_as,
        cut_at=verdict.cut_at,
        survivor=verdict.survivor,
        held=held,
        answers=answers,
        unknown_requests=unknown,
        completion_tokens=tokens,
        tokens_after_fire=desk.tokens_after_fire,
        touched_at=desk.touched_at,
    )
