"""`GroupGate`: the decision for one group, as its members' actions arrive in any order.

Everything a decision reads is taken at a position k, never at a moment: a member is *finished at k* if it
ended normally with at most k actions, *absent at k* if it failed with fewer than k, and otherwise *running at
k*. A check is evaluated once every member has reached k or ended, so any order of arrival gives the decision
that lockstep gives. The class is synchronous, thread-safe and does no I/O; a report costs microseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from threading import Lock

from selective_rollout.errors import ConfigError, GroupError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import GateDecision, GateFacts, Reason, judge, known_difference
from selective_rollout.gate.evidence import Evidence
from selective_rollout.gate.measure import make_measure
from selective_rollout.gate.sampling import identical_sampling
from selective_rollout.rewards import parse_reward, scored_only
from selective_rollout.types import SamplingInfo


@dataclass(slots=True)
class _Member:
    """What is known of one rollout."""

    actions: int = 0
    first_action: int | None = None
    """Step of the first non-empty action."""
    finished: bool = False
    failed: bool = False
    reward: float | None = None
    answer: str | None = None
    dropped: bool = False

    @property
    def ended(self) -> bool:
        return self.finished or self.failed

    def arrived(self, k: int) -> bool:
        return self.actions >= k or self.ended

    def absent(self, k: int) -> bool:
        return self.failed and self.actions < k

    def finished_at(self, k: int) -> bool:
        return self.finished and self.actions <= k


class GroupGate:
    """Decides for one group of `size` rollouts, numbered from 0.

    Args:
        config: the rule.
        size: rollouts requested (the paper's G). A group of one never fires.
        group_id: named in error messages.
        sampling: declared sampling facts, one per rollout, for the `identical_sampling` veto.
        history: the prompt's earlier rewards, newest last, for the `history_mixed` veto.
        history_p: the prompt's `PromptHistory.p_zero_variance`, for a score that reads it.
        tau: this group's own threshold (schedule, per prompt); clipped at `config.tau`, never above it.
        exact: compute the exact distance at every check, not only at start_step and on a fire.

    Raises:
        ConfigError: size below 1, tau outside [0, 1], or a score with an unknown feature.
    """

    def __init__(
        self,
        config: GateConfig,
        size: int,
        *,
        group_id: str = "",
        sampling: Sequence[SamplingInfo] | None = None,
        history: Sequence[float] | None = None,
        history_p: float | None = None,
        tau: float | None = None,
        exact: bool = False,
    ) -> None:
        if size < 1:
            raise ConfigError(f"group {group_id!r}: group_size must be at least 1, not {size}")
        if tau is not None and not 0.0 <= tau <= 1.0:
            raise ConfigError(f"group {group_id!r}: tau must be a number in [0, 1], not {tau!r}")
        self.config = config
        self.size = size
        self.group_id = group_id
        self.tau = config.tau if tau is None else min(tau, config.tau)
        self.sampling_verdict = identical_sampling(sampling)
        """Why the members are equal by construction, or None; known from the start."""
        self._history = tuple(scored_only(history)) if history is not None and config.history_mixed else None
        self._members = [_Member() for _ in range(size)]
        self._measure = make_measure(config, size)
        self._evidence = (
            Evidence(config.score, size, config.start_step, history_p) if config.score is not None else None
        )
        self._exact = exact
        self._lock = Lock()
        self._checks: list[GateDecision] = []
        self._fired: GateDecision | None = None
        self._verdict: GateDecision | None = None
        self._next_check: int | None = config.start_step
        self._waiting = size
        self._idle = {
            reason: GateDecision(False, reason, tau=self.tau)
            for reason in (Reason.BEFORE_START_STEP, Reason.WAITING, Reason.CHECKED)
        }

    @property
    def checks(self) -> tuple[GateDecision, ...]:
        """Every decision made at a check position so far, in increasing k."""
        return tuple(self._checks)

    @property
    def fired(self) -> GateDecision | None:
        """The decision that fired, also if a late veto turned it into keep afterwards."""
        return self._fired

    @property
    def next_check(self) -> int | None:
        """The next position to be checked, or None when the gate has said its last word."""
        return self._next_check

    def actions_of(self, rollout: int) -> int:
        """Number of actions reported for a rollout."""
        return self._member(rollout).actions

    def report(
        self,
        rollout: int,
        action: Hashable,
        *,
        observation: str | None = None,
        state_key: str | None = None,
        is_error: bool | None = None,
    ) -> GateDecision:
        """Append one action (at level `token`: one token id) of a running rollout.

        What the environment answered is read by a score only.

        Args:
            rollout: 0-based index.
            action: the canonical action.
            observation: the reply, or a hash of it; it is compared for equality only.
            state_key: identity of the state reached; stands in for an observation that is not given.
            is_error: whether the reply is an error; None if nobody can say.

        Returns:
            The decision that this report made possible; without one, a decision that does not fire and says
            why there is none yet. Once the group has fired every further report returns that decision.

        Raises:
            GroupError: unknown rollout, or one that has already ended.
        """
        with self._lock:
            member = self._running_member(rollout)
            was_there = self._is_there(member)
            self._append(member, rollout, action, observation, state_key, is_error)
            return self._settle(member, was_there)

    def extend(self, rollout: int, symbols: Collection[Hashable]) -> GateDecision:
        """Append several symbols of a running rollout: what reporting them one by one would do, in one call.

        For streams, whose symbols come by the dozen; see `gate.streaming`. What the environment answered
        cannot be told of a chunk, so a rule with a score takes single actions only.

        Args:
            rollout: 0-based index.
            symbols: token ids, characters or actions, oldest first; none of them None.

        Raises:
            ConfigError: the rule has a score.
            GroupError: unknown rollout, or one that has already ended.
        """
        if self.config.score is not None:
            raise ConfigError(f"group {self.group_id!r}: a rule with a score takes single actions, no chunks")
        with self._lock:
            member = self._running_member(rollout)
            was_there = self._is_there(member)
            self._measure.push_all(rollout, symbols)
            if member.first_action is None:
                filled = (place for place, symbol in enumerate(symbols, member.actions + 1) if symbol != "")
                member.first_action = next(filled, None)
            member.actions += len(symbols)
            return self._settle(member, was_there)

    def finish(
        self,
        rollout: int,
        reward: object = None,
        answer: str | None = None,
        *,
        action: Hashable | None = None,
        observation: str | None = None,
        state_key: str | None = None,
        is_error: bool | None = None,
    ) -> GateDecision:
        """The rollout ended normally (its own end, or max_steps).

        Args:
            rollout: 0-based index.
            reward: its reward if already known; see `rewards.parse_reward`. None: unscored so far.
            answer: its answer if it has one.
            action: its last action, when that has not been reported yet. Passing it here makes action and end
                one event, so that a check at this very step sees both.
            observation: the reply to that action, as in `report`; likewise the next two.
            state_key: identity of the state reached.
            is_error: whether the reply is an error.

        Raises:
            GroupError: unknown rollout, or one that has already ended.
            RewardError: the reward is no number.
        """
        value = parse_reward(reward, where=f"group {self.group_id!r} rollout {rollout}")
        with self._lock:
            member = self._running_member(rollout)
            was_there = self._is_there(member)
            if action is not None:
                self._append(member, rollout, action, observation, state_key, is_error)
            member.finished, member.reward, member.answer = True, value, answer
            self._measure.finish(rollout)
            if self._evidence is not None:
                self._evidence.finish(rollout)
            return self._settle(member, was_there)

    def fail(self, rollout: int) -> GateDecision:
        """Infrastructure broke this rollout: it is absent from every check beyond its recorded actions.

        Raises:
            GroupError: unknown rollout, or one that has already ended.
        """
        with self._lock:
            member = self._running_member(rollout)
            was_there = self._is_there(member)
            member.failed = True
            return self._settle(member, was_there)

    def score(self, rollout: int, reward: object = None, answer: str | None = None) -> None:
        """Add a reward or answer that became known after the rollout's end.

        Such a fact may veto checks still to come, and turns a fired cut into keep if it arrives before
        `confirm`; it never makes a group fire.

        Raises:
            GroupError: unknown rollout, or one that has not finished.
            RewardError: the reward is no number.
        """
        value = parse_reward(reward, where=f"group {self.group_id!r} rollout {rollout}")
        with self._lock:
            member = self._member(rollout)
            if not member.finished:
                raise GroupError(f"{self._name(rollout)} has not finished: report its end before its reward")
            member.reward = value if value is not None else member.reward
            member.answer = answer if answer is not None else member.answer

    def confirm(self) -> GateDecision:
        """The last look before a cut is carried out.

        Returns:
            The fired decision, or a LATE_VETO that does not fire if rewards or answers known by now, of any
            finished member, differ. A late veto is final for the group. Without a fire: the latest decision.
        """
        with self._lock:
            if self._fired is None or self._verdict is not self._fired:
                return self._latest()
            finished = [member for member in self._members if member.finished]
            rewards, answers = [m.reward for m in finished], [m.answer for m in finished]
            if known_difference(self.config, rewards, answers) is not None:
                self._verdict = GateDecision(False, Reason.LATE_VETO, self._fired.step, tau=self.tau)
            return self._latest()

    def disable(self) -> GateDecision:
        """Switch the gate off for this group: it never fires from here on; a fired cut becomes keep."""
        with self._lock:
            self._next_check = None
            self._verdict = GateDecision(False, Reason.DISABLED, tau=self.tau)
            return self._verdict

    def _append(
        self,
        member: _Member,
        rollout: int,
        action: Hashable,
        observation: str | None,
        state_key: str | None,
        is_error: bool | None,
    ) -> None:
        action = "" if action is None else action
        self._measure.push(rollout, action)  # first, for it refuses what cannot be compared
        member.actions += 1
        if member.first_action is None and action != "":
            member.first_action = member.actions
        if self._evidence is not None:
            reply = observation if observation is not None else state_key
            self._evidence.push(rollout, str(action), reply, is_error)

    def _is_there(self, member: _Member) -> bool:
        return self._next_check is None or member.arrived(self._next_check)

    def _settle(self, member: _Member, was_there: bool) -> GateDecision:
        """Evaluate every check that this event made decidable, in increasing k; the first fire wins."""
        if not was_there and self._is_there(member):
            self._waiting -= 1
        made = None
        while self._next_check is not None and self._waiting == 0:
            if self._checks and all(m.ended and m.actions < self._next_check for m in self._members):
                self._next_check = None
                break
            made = self._check(self._next_check)
        return made if made is not None else self._latest()

    def _check(self, k: int) -> GateDecision:
        for rollout, member in enumerate(self._members):
            if member.absent(k) and not member.dropped:
                member.dropped = True
                self._measure.drop(rollout)
        self._measure.advance_to(k)
        pairs = self._present(k) >= 2
        features = self._evidence.features() if self._evidence is not None else ()
        p_signal = self.config.score.p_signal(features) if self.config.score is not None else None
        facts = self._facts(k, self._below_tau(p_signal) if pairs else None, features)
        reason = judge(self.config, facts)
        exact = self._exact or reason is Reason.FIRED or k == self.config.start_step
        decision = GateDecision(
            fires=reason is Reason.FIRED,
            reason=reason,
            step=k,
            distance=self._measure.mean if exact and pairs else None,
            bounds=self._measure.bounds() if pairs else None,
            tau=self.tau,
            facts=facts,
            p_signal=p_signal,
        )
        self._checks.append(decision)
        self._schedule_after(k, decision)
        return decision

    def _below_tau(self, p_signal: float | None) -> bool | None:
        if self.config.score is None:
            return self._measure.decide(self.tau)
        return None if p_signal is None else p_signal < self.tau

    def _schedule_after(self, k: int, decision: GateDecision) -> None:
        if decision.fires:
            self._fired = self._verdict = decision
            self._next_check = None
        elif self.config.check_every is None:
            self._next_check = None
        else:
            self._next_check = k + self.config.check_every
            self._waiting = sum(not member.arrived(self._next_check) for member in self._members)

    def _facts(self, k: int, below_tau: bool | None, features: tuple[float | None, ...]) -> GateFacts:
        present = [i for i, member in enumerate(self._members) if not member.absent(k)]
        finished = [self._members[i] for i in present if self._members[i].finished_at(k)]
        return GateFacts(
            step=k,
            group_size=self.size,
            members=tuple(present),
            running=tuple(i for i in present if not self._members[i].finished_at(k)),
            has_actions=any((self._members[i].first_action or k + 1) <= k for i in present),
            below_tau=below_tau,
            rewards=tuple(member.reward for member in finished),
            answers=tuple(member.answer for member in finished),
            sampling=self.sampling_verdict,
            history=self._history,
            features=features,
        )

    def _latest(self) -> GateDecision:
        if self._verdict is not None:
            return self._verdict
        if self._next_check is None:
            return self._idle[Reason.CHECKED]
        if not self._checks and max(member.actions for member in self._members) < self._next_check:
            return self._idle[Reason.BEFORE_START_STEP]
        return self._idle[Reason.WAITING]

    def _present(self, k: int) -> int:
        return sum(not member.absent(k) for member in self._members)

    def _member(self, rollout: int) -> _Member:
        if isinstance(rollout, bool) or not isinstance(rollout, int) or not 0 <= rollout < self.size:
            raise GroupError(
                f"group {self.group_id!r} has rollouts 0 to {self.size - 1}; there is no rollout {rollout!r}"
            )
        return self._members[rollout]

    def _running_member(self, rollout: int) -> _Member:
        member = self._member(rollout)
        if member.ended:
            raise GroupError(
                f"{self._name(rollout)} has already {'finished' if member.finished else 'failed'}"
            )
        return member

    def _name(self, rollout: int) -> str:
        return f"rollout {rollout} of group {self.group_id!r}"
