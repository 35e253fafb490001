"""One group behind the gateway: its gate, its trace, who is held, and what each member is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from selective_rollout.engine.hold import GateControl
from selective_rollout.errors import GroupError
from selective_rollout.gate.decision import Reason
from selective_rollout.gate.group import GroupGate
from selective_rollout.gate.sampling import identical_sampling
from selective_rollout.integrations.gateway.answer import Answer
from selective_rollout.integrations.gateway.config import GatewayConfig
from selective_rollout.integrations.gateway.conversation import Api, Body, Reader
from selective_rollout.integrations.gateway.member import Member
from selective_rollout.integrations.gateway.refusal import Refusal, cut_as_drop, cut_as_survivor
from selective_rollout.integrations.gateway.threads import Thread
from selective_rollout.rewards import parse_reward
from selective_rollout.trace.group_log import GroupLog
from selective_rollout.trace.schema import DecisionEvent, Event
from selective_rollout.types import Mode, RolloutStatus

Write = Callable[[Event], None]
_IDLE: Final = "no request came for too long"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """What is known of a group when it begins."""

    scope: str
    """Whose it is."""
    name: str
    """Its id, as its owner says it."""
    size: int
    task_id: str
    mode: Mode
    audited: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    attempt: int = 1
    place: int = 0
    """In the order in which this process began its groups."""

    @property
    def trace_id(self) -> str:
        """Its id in the trace; a slash cannot occur in either part."""
        return f"{self.scope}/{self.name}" if self.scope else self.name


class Desk:
    """Keeps one group, on the gateway's event loop.

    Args:
        facts: what it is.
        config: how the gateway is set up.
        write: takes the events of its trace.
        now: seconds of the gateway's clock.
    """

    def __init__(self, facts: GroupFacts, config: GatewayConfig, write: Write, now: float) -> None:
        self.facts = facts
        self.touched_at = now
        """When the last request began or ended, or a reward came."""
        self.ended_at: float | None = None
        self.tokens_after_fire = 0
        """Completion tokens of answers that came after the gate had fired."""
        self._config = config
        self._begun = False
        tau = config.tau_of(facts.metadata) if config.tau_of is not None else None
        self.gate = GroupGate(config.rule, facts.size, group_id=facts.trace_id, tau=tau)
        self._write = self._begin_and(write)
        self._off = False
        self.log = GroupLog(
            self._write,
            facts.trace_id,
            attempt=facts.attempt,
            gate=self.gate,
            record_observations=config.record_observations,
            record_completions=config.record_completions,
        )
        self.enforced: Final = facts.mode == "enforce" and not facts.audited
        self.control = GateControl(
            self.gate,
            hold=config.run.hold_for(config.rule.outcome),
            enforce=self.enforced,
            on_stop=lambda rollout: self.members[rollout].stop(),
            timeout_s=config.run.hold_timeout_s,
        )
        self.members = [
            Member(i, self.log, self.control, Reader(config.run.actions, config.limits.messages))
            for i in range(facts.size)
        ]

    @property
    def ended(self) -> bool:
        """Whether every member has ended."""
        return self.ended_at is not None

    @property
    def cut_as(self) -> str | None:
        """How the gate stopped the group; None if it did not."""
        return self._config.rule.outcome if self.control.verdict().stopped else None

    def hear(self, rollout: int, api: Api, raw: bytes, body: Body, now: float) -> Thread | None:
        """Take in a request of a running member; see `Member.hear`."""
        member = self.members[rollout]
        thread = member.hear(api, raw, body)
        member.seen_at = self.touched_at = now
        if not self.gate.checks:  # after the first check it is too late for declarations
            self.gate.sampling_verdict = identical_sampling([m.sampling for m in self.members])
        self.settle(now)
        return thread

    async def permit(self, rollout: int) -> Refusal | None:
        """Wait until a member may go on; a refusal is its end."""
        member = self.members[rollout]
        if not self.enforced or member.status not in (RolloutStatus.RUNNING, RolloutStatus.CUT):
            return None
        check = self.gate.next_check
        member.waiting += 1
        try:
            allowed = member.running and await self.control.permit(rollout)
        finally:
            member.waiting -= 1
        if check is not None:
            self._note_off(check)
        return None if allowed and member.status is not RolloutStatus.CUT else self.refusal()

    def switch_off(self) -> None:
        """The gate is off for this group, as its trace says."""
        self._off = True
        self.gate.disable()

    def answered(
        self, rollout: int, thread: Thread | None, answer: Answer | None, *, offered_tools: bool, now: float
    ) -> None:
        """Take in what came of a request."""
        member = self.members[rollout]
        complete = answer is not None and answer.message is not None and self.gate.fired is not None
        late = (answer.usage.completion or 0) if answer is not None and complete else 0
        self.tokens_after_fire += late
        survivor = self.control.verdict().survivor == rollout
        cut_late = late if self.cut_as is not None and not survivor else 0
        member.answered(thread, answer, offered_tools=offered_tools, overrun=cut_late)
        member.seen_at = self.touched_at = now

    def finish(
        self, rollout: int, reward: object, answer: str | None, *, truncated: bool = False, now: float
    ) -> None:
        """A running member ended normally.

        Raises:
            RewardError: the reward is no number.
        """
        value = parse_reward(reward, where=f"rollout {rollout} of group {self.facts.name!r}")
        self.members[rollout].finish(value, answer, truncated=truncated)
        self.members[rollout].reward = value
        self.settle(now)

    def fail(self, rollout: int, kind: str, message: str, now: float) -> None:
        """A running member broke."""
        self.members[rollout].fail(kind, message)
        self.settle(now)

    def score(self, rollout: int, reward: object, now: float) -> bool:
        """Take in the reward of a member that has ended.

        Returns:
            False for a member that has none: the gate stopped it, or it failed.

        Raises:
            RewardError: the reward is no number.
            GroupError: it has another reward already.
        """
        member = self.members[rollout]
        value = parse_reward(reward, where=f"rollout {rollout} of group {self.facts.name!r}")
        if not member.status.ended_normally:
            return False
        if member.reward is not None and value != member.reward:
            raise GroupError(f"rollout {rollout} of group {self.facts.name!r} has another reward already")
        if member.reward is None and value is not None:
            member.reward = self.log.reward(rollout, value)
        self.touched_at = now
        return True

    def sweep(self, now: float) -> None:
        """End members that have fallen silent; none of them may keep its group waiting."""
        limits = self._config.limits
        for member in self.members:
            if not member.running or member.flights:
                continue
            silent = now - (member.seen_at if member.seen_at is not None else self.touched_at)
            pending = member.pending
            final = pending is not None and pending.looks_final
            if final and pending is not None and pending.offered_tools and silent >= limits.final_s:
                self.finish(member.index, None, None, now=now)
            elif silent >= limits.idle_s:
                self._give_up(member, final, now)

    def close(self, kind: str, message: str, now: float) -> None:
        """End the group: members that still run have failed."""
        for member in self.members:
            if member.running:
                self.fail(member.index, kind, message, now)

    def refusal(self) -> Refusal:
        """What a member is told that the gate stopped."""
        verdict = self.control.verdict()
        if self._config.rule.outcome == "drop":
            return cut_as_drop(self.facts.name, verdict.cut_at)
        return cut_as_survivor(self.facts.name, verdict.cut_at, verdict.survivor, verdict.answer)

    def settle(self, now: float) -> None:
        """Draw the consequences of what the members have done.

        A member whose request is just being ended is cut when that is done, so that its tokens count.
        """
        verdict = self.control.verdict()
        answered = verdict.survivor is None or self.members[verdict.survivor].status.ended_normally
        if verdict.stopped and answered:
            for member in self.members:
                if member.running and not any(flight.active for flight in member.flights):
                    member.cut()
        if self.ended_at is None and not any(member.running for member in self.members):
            self.ended_at = now
            self.log.end(
                outcome=self._config.rule.outcome if verdict.stopped else None,
                cut_at=verdict.cut_at,
                survivor=verdict.survivor,
                answer=verdict.answer,
                late_veto=verdict.late_veto,
            )

    def _note_off(self, check: int) -> None:
        """Record once that a hold at a check took too long: the gate stays off after a restart."""
        if self._off or self.gate.fired is not None or self.gate.confirm().reason is not Reason.DISABLED:
            return
        self._off = True
        self._write(
            DecisionEvent(
                group=self.facts.trace_id,
                attempt=self.facts.attempt,
                step=check,
                fires=False,
                reason=Reason.DISABLED.value,
                tau=self.gate.tau,
            )
        )

    def _give_up(self, member: Member, final: bool, now: float) -> None:
        if final:
            self.finish(member.index, None, None, now=now)
        else:
            self.fail(member.index, "idle", _IDLE if member.seen_at is not None else "never came", now)

    def _begin_and(self, write: Write) -> Write:
        """Write the group's first event no sooner than there is a second one.

        By then the members have told how they are sampled, and a group that was only announced leaves no
        trace.
        """

        def begun(event: Event) -> None:
            if not self._begun:
                self._begun = True
                known = any(
                    m.sampling.temperature is not None or m.sampling.seed is not None for m in self.members
                )
                GroupLog(write, self.facts.trace_id, attempt=self.facts.attempt, gate=self.gate).begin(
                    size=self.facts.size,
                    task_id=self.facts.task_id,
                    mode=self.facts.mode,
                    sampling=[m.sampling for m in self.members] if known else None,
                    audit=self.facts.audited if self.facts.mode == "enforce" else None,
                    metadata=self.facts.metadata,
                )
            write(event)

        return begun
