"""What a rule says about a recorded group at every position, whatever its distance.

The rule's own `judge` is asked, once for each stretch of positions over which nothing it reads changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import GateFacts, Reason, judge
from selective_rollout.gate.sampling import identical_sampling
from selective_rollout.types import Group, Rollout


def reason_changes(
    group: Group, rule: GateConfig, history: Sequence[float] | None = None
) -> list[tuple[int, Reason]]:
    """Tell what keeps the group at k = 1 .. the longest rollout, given a distance below tau.

    The same as the checks of `replay`, at every position; the rule's positions and tau play no part.

    Args:
        group: the group as recorded.
        rule: the rule.
        history: the prompt's earlier rewards, newest last, if the rule reads them.

    Returns:
        (k, reason) where the reason changes, the first at k = 1; FIRED where the rule would cut. Empty for a
        group without steps.
    """
    longest = max((len(rollout.steps) for rollout in group.rollouts), default=0)
    members = [_Member.of(rollout) for rollout in group.rollouts]
    sampling = identical_sampling(group.sampling)
    past = None if history is None else tuple(history)
    points = {1, *(member.changes_at for member in members), *(member.first_action for member in members)}
    changes: list[tuple[int, Reason]] = []
    for k in sorted(k for k in points if k is not None and k <= longest):
        reason = judge(rule, _facts(members, group.size, sampling, past, k))
        if not changes or changes[-1][1] is not reason:
            changes.append((k, reason))
    return changes


def open_positions(group: Group, rule: GateConfig) -> list[bool]:
    """Tell for k = 1 .. the longest rollout whether the rule would fire at k, given a distance below tau.

    `open_positions(...)[k - 1]` belongs to step k.
    """
    longest = max((len(rollout.steps) for rollout in group.rollouts), default=0)
    changes = reason_changes(group, rule)
    ends = [*(k for k, _ in changes), longest + 1][1:]
    positions: list[bool] = []
    for (begin, reason), end in zip(changes, ends, strict=True):
        positions += [reason is Reason.FIRED] * (end - begin)
    return positions


@dataclass(frozen=True, slots=True)
class _Member:
    """What a decision reads of a recorded rollout."""

    index: int
    actions: int
    ended: bool
    first_action: int | None
    """Step of the first non-empty action."""
    reward: float | None
    answer: str | None

    @classmethod
    def of(cls, rollout: Rollout) -> _Member:
        return cls(
            index=rollout.index,
            actions=len(rollout.steps),
            ended=rollout.status.ended_normally,
            first_action=next((step.index for step in rollout.steps if step.action), None),
            reward=None if rollout.late_reward else rollout.reward,
            answer=rollout.answer,
        )

    @property
    def changes_at(self) -> int:
        """First position at which the member is finished, or absent."""
        return max(1, self.actions) if self.ended else self.actions + 1

    def finished_at(self, k: int) -> bool:
        return self.ended and self.actions <= k


def _facts(
    members: Sequence[_Member], size: int, sampling: str | None, history: tuple[float, ...] | None, k: int
) -> GateFacts:
    present = [member for member in members if member.ended or member.actions >= k]
    finished = [member for member in present if member.finished_at(k)]
    return GateFacts(
        step=k,
        group_size=size,
        members=tuple(member.index for member in present),
        running=tuple(member.index for member in present if not member.finished_at(k)),
        has_actions=any(member.first_action is not None and member.first_action <= k for member in present),
        below_tau=True,
        rewards=tuple(member.reward for member in finished),
        answers=tuple(member.answer for member in finished),
        sampling=sampling,
        history=history,
    )
