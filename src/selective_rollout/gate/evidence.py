"""What a score reads of a group that is still running."""

from __future__ import annotations

from typing import TypedDict

from selective_rollout.gate.score import TwoSidedScore
from selective_rollout.gate.signals import GroupView, signal
from selective_rollout.types import Step


class Reply(TypedDict):
    """What a gate may be told of the environment's reply to a step, as `GroupGate.report` takes it."""

    observation: str | None
    state_key: str | None
    is_error: bool | None


def reply_to(step: Step) -> Reply:
    """The reply that a step holds."""
    return Reply(observation=step.observation_hash, state_key=step.state_key, is_error=step.is_error)


class Evidence:
    """The first steps of one group, kept for the features of a score.

    Args:
        score: names the features.
        size: rollouts of the group.
        limit: the one position that is asked for; later steps are not kept.
        history_p: the prompt's `PromptHistory.p_zero_variance`, if there is one.

    Raises:
        ConfigError: a feature is not a signal, or one that takes a declaration.
    """

    def __init__(self, score: TwoSidedScore, size: int, limit: int, history_p: float | None) -> None:
        self._signals = [signal(name) for name in score.features]
        self._limit = limit
        self._history_p = history_p
        self._actions: list[list[str]] = [[] for _ in range(size)]
        self._observations: list[list[str | None]] = [[] for _ in range(size)]
        self._errors: list[list[bool | None]] = [[] for _ in range(size)]
        self._more = [False] * size
        self._finished = [False] * size

    def push(self, member: int, action: str, observation: str | None, is_error: bool | None) -> None:
        """Append one step; observations are compared for equality only."""
        if len(self._actions[member]) >= self._limit:
            self._more[member] = True
            return
        self._actions[member].append(action)
        self._observations[member].append(observation)
        self._errors[member].append(is_error)

    def finish(self, member: int) -> None:
        """The member ended normally."""
        self._finished[member] = True

    def features(self) -> tuple[float | None, ...]:
        """The features at the limit, in the order of `score.features`; None where unknown."""
        ended = [done and not more for done, more in zip(self._finished, self._more, strict=True)]
        view = GroupView(
            actions=self._actions,
            finished_at=[len(row) if done else None for row, done in zip(self._actions, ended, strict=True)],
            observation_hashes=self._observations,
            errors=self._errors,
            history_p=self._history_p,
        )
        return tuple(feature.value(view, self._limit) for feature in self._signals)
