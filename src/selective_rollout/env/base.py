"""The environment protocol: single-use worlds that an agent acts in, one per rollout.

An environment is started once and never reset; a new rollout gets a new one from the factory. `terminated`
and `truncated` follow Gymnasium: terminated means that the task reached its own end, truncated that a limit
was hit. A reply that tells the agent it did something wrong is `is_error=True`; an environment that itself
broke raises (the engine turns that into a failed rollout).
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

from selective_rollout.types import Task


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent sees before it acts."""

    text: str
    admissible: tuple[str, ...] | None = None
    """Actions that the environment will understand now, sorted; None if it does not say."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The environment's reply to one action."""

    observation: str
    admissible: tuple[str, ...] | None = None
    reward: float | None = None
    """Final reward; only read when the rollout ends, None if scored elsewhere."""
    terminated: bool = False
    truncated: bool = False
    is_error: bool | None = None
    answer: str | None = None
    """Final answer for a vote; only read when the rollout ends."""
    state_key: str | None = None
    """Optional identity of the world's state, for signals that compare states."""


class Environment(Protocol):
    """A single-use world.

    `start` and `step` may be plain functions or coroutines; the engine awaits what is awaitable. Blocking
    engines that are not thread-safe belong into `env.worker.ProcessEnvironment`.
    """

    @property
    def replayable(self) -> bool:
        """True if re-stepping recorded actions in a fresh instance reproduces every observation."""

    def start(self) -> Observation | Awaitable[Observation]:
        """Begin; called exactly once."""

    def step(self, action: str) -> StepResult | Awaitable[StepResult]:
        """Perform one action."""

    def close(self) -> None:
        """Release what the environment holds; called exactly once, also after a failure."""


class EnvironmentFactory(Protocol):
    """Makes the world of one rollout; `module:factory` on the command line."""

    def __call__(self, task: Task, rollout: int) -> Environment:
        """Make a fresh environment for the given task and 0-based rollout index."""
