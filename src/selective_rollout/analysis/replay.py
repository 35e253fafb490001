"""What a gate would have done to a recorded group, at every threshold at once.

A recorded group is put through the very `GroupGate` that runs live, with the threshold left open; what
remains to be told for any tau is the first check whose distance lies below it. Rewards that arrived after
their rollout's end are not read, as no decision may have read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import Reason, judge
from selective_rollout.gate.evidence import reply_to
from selective_rollout.gate.group import GroupGate
from selective_rollout.types import Group, Rollout


@dataclass(frozen=True, slots=True)
class Check:
    """One check position of a replayed group."""

    step: int
    distance: float | None
    """What tau is held against: the exact mean pairwise distance at the position, or P(signal-bearing) by the
    rule's score; None if unknown."""
    reason: Reason
    """FIRED if the rule would cut here given a distance below tau, else what keeps the group whatever tau."""


@dataclass(frozen=True, slots=True)
class Replay:
    """All checks of one group under one rule, tau left open."""

    group: Group
    checks: tuple[Check, ...]

    def fires_at(self, tau: float) -> int | None:
        """Position k of the first check that fires at this tau, strictly below it; None if none does."""
        for check in self.checks:
            if check.reason is Reason.FIRED and check.distance is not None and check.distance < tau:
                return check.step
        return None

    @property
    def smallest_tau(self) -> float | None:
        """The group is cut by every tau above this distance and by none at or below it; None: by no tau."""
        open_checks = [c.distance for c in self.checks if c.reason is Reason.FIRED and c.distance is not None]
        return min(open_checks, default=None)


def replay(
    group: Group,
    config: GateConfig,
    *,
    history: Sequence[float] | None = None,
    history_p: float | None = None,
) -> Replay:
    """Put a recorded group through a rule.

    Rollouts that never ended on record, or were stopped by a gate, count as absent beyond what they recorded.

    Args:
        group: the group as recorded.
        config: the rule; its tau plays no part.
        history: the prompt's earlier rewards, if the rule reads them.
        history_p: their `PromptHistory.p_zero_variance`, if the rule's score reads it.

    Raises:
        ConfigError: the rule compares tokens, which no trace records.
    """
    if config.level == "token":
        raise ConfigError('a trace records actions, not tokens: a rule at level "token" cannot be replayed')
    gate = GroupGate(
        replace(config, tau=0.0),
        group.size,
        group_id=group.id,
        sampling=group.sampling,
        history=history,
        history_p=history_p,
        exact=True,
    )
    _feed(gate, group)
    return Replay(
        group,
        tuple(
            Check(facts.step, decision.compared, judge(config, replace(facts, below_tau=True)))
            for decision in gate.checks
            if (facts := decision.facts) is not None
        ),
    )


def _feed(gate: GroupGate, group: Group) -> None:
    for index in set(range(group.size)) - {rollout.index for rollout in group.rollouts}:
        gate.fail(index)
    only_check = gate.config.start_step if gate.config.check_every is None else None
    for rollout in group.rollouts:
        if only_check is not None and len(rollout.steps) > only_check:
            # It runs on at the only check, and nothing that comes later may be read there.
            for step in rollout.steps[: only_check + 1]:
                gate.report(rollout.index, step.action, **reply_to(step))
        else:
            _feed_whole(gate, rollout)


def _feed_whole(gate: GroupGate, rollout: Rollout) -> None:
    ended = rollout.status.ended_normally
    last = rollout.steps[-1] if ended and rollout.steps else None
    for step in rollout.steps[:-1] if last is not None else rollout.steps:
        gate.report(rollout.index, step.action, **reply_to(step))
    if not ended:
        gate.fail(rollout.index)
        return
    reward = None if rollout.late_reward else rollout.reward
    if last is None:
        gate.finish(rollout.index, reward, rollout.answer)
    else:
        gate.finish(rollout.index, reward, rollout.answer, action=last.action, **reply_to(last))
