"""One group of a training run while somebody else's loop samples it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from selective_rollout.engine.closing import decided, write_end
from selective_rollout.engine.hold import GateControl
from selective_rollout.engine.ledger import Ledger
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.record import RolloutRecord
from selective_rollout.errors import GroupError
from selective_rollout.gate.decision import GateDecision
from selective_rollout.gate.group import GroupGate
from selective_rollout.rewards import parse_reward
from selective_rollout.trace.group_log import GroupLog, observation_hash
from selective_rollout.types import Group, Hold, RolloutFailure, RolloutStatus, Step, Usage


class Facts(TypedDict, total=False):
    """What may be told of a step beside its action; see `types.Step`."""

    completion: str | None
    observation: str | None
    is_error: bool | None
    state_key: str | None
    usage: Usage | None
    finish_reason: str | None


@dataclass(slots=True)
class _Member(RolloutRecord):
    overrun: int = 0
    on_stop: Callable[[], None] | None = None


class TrainingGroup:
    """Made by `TrainingGate.open`; use it from one thread, and close it whatever happens.

    Attributes:
        id: the group id.
        size: rollouts of the group, numbered from 0.
        task_id: the independent unit of statistics.
    """

    def __init__(
        self,
        gate: GroupGate,
        log: GroupLog,
        *,
        task_id: str,
        policy_version: str | None,
        metadata: Mapping[str, Any],
        enforce: bool,
        audited: bool,
        hold: Hold,
        hold_timeout_s: float,
        on_close: Callable[[GroupOutcome], None],
    ) -> None:
        self.id = gate.group_id
        self.size = gate.size
        self.task_id = task_id
        self._gate = gate
        self._log = log
        self._policy_version = policy_version
        self._metadata = metadata
        self._audited = audited
        self._on_close = on_close
        self._outcome: GroupOutcome | None = None
        self._members = [_Member(i) for i in range(gate.size)]
        self._control = GateControl(
            gate,
            hold=hold,
            enforce=enforce and not audited,
            on_stop=self._stop,
            timeout_s=hold_timeout_s,
        )

    @property
    def stopped(self) -> bool:
        """Whether the gate has cut the group: its members must not go on."""
        return self._control.verdict().stopped

    @property
    def decisions(self) -> tuple[GateDecision, ...]:
        """Every decision at a check position so far."""
        return self._gate.checks

    def step(self, rollout: int, action: str, **facts: Unpack[Facts]) -> bool:
        """Record one step of a running rollout and let the gate look.

        A step that comes after the cut was generated in vain: it is recorded and booked as overrun.

        Returns:
            Whether the rollout may go on; False once the group is cut.

        Raises:
            GroupError: unknown rollout, or one that has already ended.
        """
        member = self._running(rollout)
        self._book(rollout, member, action, facts)
        if not self.stopped:
            self._note(self._log.report(rollout, action))
        return not self.stopped

    def finish(
        self,
        rollout: int,
        reward: object = None,
        answer: str | None = None,
        *,
        truncated: bool = False,
        action: str | None = None,
        **facts: Unpack[Facts],
    ) -> None:
        """The rollout ended normally; one that ends after the cut stays unscored.

        Args:
            rollout: 0-based index.
            reward: its reward if already known; None: scored later, by `score` or `close`.
            answer: its answer if it has one.
            truncated: it ran into a limit.
            action: its last action, if that was not reported by `step`. Passing it here makes action and end
                one event, so that a check at this very step sees both.
            facts: of that last action.

        Raises:
            GroupError: unknown rollout, or one that has already ended.
            RewardError: the reward is no number.
        """
        member = self._running(rollout)
        value = parse_reward(reward, where=self._name(rollout))
        if action is not None:
            self._book(rollout, member, action, facts)
        if self.stopped:
            self._cut(rollout, member)
            return
        member.status = RolloutStatus.TRUNCATED if truncated else RolloutStatus.FINISHED
        member.answer, member.reward = answer, value
        decision = self._log.finish(rollout, value, answer, truncated=truncated, last_action=action)
        self._control.ended(rollout, failed=False, answer=answer)
        self._note(decision)

    def fail(self, rollout: int, kind: str, message: str = "") -> None:
        """Infrastructure broke this rollout; after the cut that is no news.

        Raises:
            GroupError: unknown rollout, or one that has already ended.
        """
        member = self._running(rollout)
        if self.stopped:
            self._cut(rollout, member)
            return
        member.status, member.failure = RolloutStatus.FAILED, RolloutFailure(kind, message)
        decision = self._log.fail(rollout, kind, message)
        self._control.ended(rollout, failed=True, answer=None)
        self._note(decision)

    def score(self, rollout: int, reward: object) -> None:
        """Take in the reward of a rollout that has ended.

        Raises:
            GroupError: it has not ended normally.
            RewardError: the reward is no number.
        """
        member = self._member(rollout)
        if not member.status.ended_normally:
            raise GroupError(f"{self._name(rollout)} is {member.status.value}: it has no reward")
        member.reward = self._log.reward(rollout, reward)

    async def permit(self, rollout: int) -> bool:
        """Wait, if the hold asks for it, until the rollout may take its next step; False: it is cut."""
        return await self._control.permit(rollout)

    def on_stop(self, rollout: int, callback: Callable[[], None] | None) -> None:
        """Have a function called when the group is cut while this rollout runs; None takes it back."""
        self._member(rollout).on_stop = callback

    def close(self, rewards: Sequence[object] | None = None) -> GroupOutcome:
        """End the group. Members still running are cut if it was cut, else they failed.

        Args:
            rewards: rewards[g] of the members, for those that ended normally and have none yet. What stands
                for a member that was cut or failed is ignored, so a trainer's stand-in never gets in.

        Returns:
            The outcome; closing again returns the same.

        Raises:
            RewardError: a reward is no number.
            GroupError: not one reward per rollout.
        """
        if self._outcome is not None:
            return self._outcome
        if rewards is not None and len(rewards) != self.size:
            raise GroupError(f"group {self.id!r}: {len(rewards)} rewards for {self.size} rollouts")
        for rollout, member in enumerate(self._members):
            if member.status is RolloutStatus.RUNNING:
                self._end_left(rollout, member)
            elif rewards is not None and member.status.ended_normally and member.reward is None:
                self.score(rollout, rewards[rollout])
        self._outcome = outcome = self._result()
        write_end(self._log, outcome)
        self._on_close(outcome)
        return outcome

    def _book(self, rollout: int, member: _Member, action: str, facts: Facts) -> None:
        step = Step(
            index=len(member.steps) + 1,
            action=action,
            observation_hash=observation_hash(facts.get("observation")),
            **facts,
        )
        member.steps.append(step)
        usage = step.usage or Usage()
        overrun = (usage.completion or 0) if self.stopped else 0
        member.overrun += overrun
        member.ledger.add(usage, overrun=overrun)
        self._log.write_step(rollout, step)

    def _note(self, decision: GateDecision | None) -> None:
        if decision is not None:
            self._control.note(decision)

    def _stop(self, rollout: int) -> None:
        member = self._members[rollout]
        if member.status is RolloutStatus.RUNNING and member.on_stop is not None:
            member.on_stop()

    def _cut(self, rollout: int, member: _Member) -> None:
        member.status = RolloutStatus.CUT
        self._log.cut(rollout, overrun=member.overrun)

    def _end_left(self, rollout: int, member: _Member) -> None:
        if self.stopped:
            self._cut(rollout, member)
        else:
            self._note(self._gate.disable())
            self.fail(rollout, "left", "the group was closed while this rollout was running")

    def _result(self) -> GroupOutcome:
        return GroupOutcome(
            group=Group(
                id=self.id,
                size=self.size,
                rollouts=tuple(member.rollout for member in self._members),
                task_id=self.task_id,
                policy_version=self._policy_version,
                metadata=self._metadata,
            ),
            ledger=Ledger.of(member.ledger for member in self._members),
            audited=self._audited,
            **decided(self._gate, self._control.verdict()),
        )

    def _member(self, rollout: int) -> _Member:
        if not 0 <= rollout < self.size:
            raise GroupError(f"group {self.id!r} has rollouts 0 to {self.size - 1}, and no rollout {rollout}")
        return self._members[rollout]

    def _running(self, rollout: int) -> _Member:
        member = self._member(rollout)
        if member.status is not RolloutStatus.RUNNING:
            raise GroupError(f"{self._name(rollout)} has already ended")
        return member

    def _name(self, rollout: int) -> str:
        return f"rollout {rollout} of group {self.id!r}"
