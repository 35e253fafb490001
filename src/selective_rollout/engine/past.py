"""What a rule reads of a prompt's earlier groups when the next one opens, and what is kept of each."""

from __future__ import annotations

from dataclasses import dataclass

from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory


@dataclass(frozen=True, slots=True)
class Past:
    """The facts that the rule reads; None is one that it does not, or that nobody knows."""

    rewards: tuple[float, ...] | None = None
    """The last ones, for `history_mixed`."""
    p_zero_variance: float | None = None
    """For a score."""


def past_of(history: PromptHistory | None, rule: GateConfig, task_id: str, group_size: int) -> Past:
    """Look up what a group of this prompt is judged by beside its own rollouts."""
    if history is None:
        return Past()
    reads_p = rule.score is not None and rule.score.reads_history
    return Past(
        history.last(task_id, rule.history_mixed) if rule.history_mixed else None,
        history.p_zero_variance(task_id, group_size) if reads_p else None,
    )


def remember(history: PromptHistory | None, outcome: GroupOutcome, *, policy_version: int = 0) -> None:
    """Keep what a group that has ended was rewarded, where a history is kept at all."""
    if history is not None:
        rewards = [rollout.reward for rollout in outcome.group.rollouts]
        history.record(
            outcome.group.task_id,
            outcome.group.id,
            rewards,
            was_cut=not outcome.trainable,
            policy_version=policy_version,
        )
