"""The vocabulary of the package as frozen, slotted dataclasses.

One word per thing: a *group* is `group_size` rollouts of one task; a *rollout* is one sampled attempt; a
*step* is one agent action plus the environment's reply, numbered from 1, so step k is `actions[g][k - 1]`.
An *action* is the canonical symbol taken from a *completion* (the raw model text). Unknown numbers are None,
never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias, final

Level: TypeAlias = Literal["action", "token", "char"]
Padding: TypeAlias = Literal["end", "none"]
Mode: TypeAlias = Literal["observe", "enforce"]
Outcome: TypeAlias = Literal["drop", "survivor", "vote"]
Hold: TypeAlias = Literal["none", "all", "followers"]
Stop: TypeAlias = Literal["safe", "drain", "cancel"]
UsageSource: TypeAlias = Literal["server", "client", "estimated", "unknown"]


@final
class _End:
    """Type of END, the padding symbol after a finished rollout; equal to nothing but itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "END"

    def __reduce__(self) -> str:
        return "END"


END: Final = _End()
"""Padding symbol of a finished rollout. An object, so that no action text can collide with it."""


class RolloutStatus(StrEnum):
    """How a rollout stands or ended."""

    RUNNING = "running"
    """Still taking steps, or recorded without an end."""
    FINISHED = "finished"
    """The agent or the environment ended it."""
    TRUNCATED = "truncated"
    """It ran into a limit: max_steps, or a completion cut off by its token limit."""
    FAILED = "failed"
    """Infrastructure broke (endpoint, environment, worker): no behaviour of the policy, no reward."""
    CUT = "cut"
    """Stopped by the gate."""

    @property
    def ended_normally(self) -> bool:
        """True for an end that the policy's own behaviour brought about."""
        return self in (RolloutStatus.FINISHED, RolloutStatus.TRUNCATED)


@dataclass(frozen=True, slots=True)
class SamplingInfo:
    """What is declared about how one rollout is sampled; None means not known.

    Only these facts may tell the gate that siblings are equal by construction; equal text is no evidence.
    """

    seed: int | None = None
    """Explicit sampling seed sent to the server."""
    temperature: float | None = None
    response_id: str | None = None
    """Identity of the sample at the server: response id, with the choice index if it carried several."""
    cached: bool | None = None
    """True if the answer came out of a response cache."""
    choices_requested: int | None = None
    choices_returned: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; None is unknown and is never added up as 0.

    `prompt` includes `cached`; `completion` includes `reasoning`.
    """

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    reasoning: int | None = None
    source: UsageSource = "unknown"
    """Who counted: the server, this client while streaming, or an estimate."""


@dataclass(frozen=True, slots=True)
class RolloutFailure:
    """Why a rollout failed, as data that crosses process and file borders."""

    kind: str
    """One word for accounting: "timeout", "connection", "environment", ..."""
    message: str


@dataclass(frozen=True, slots=True)
class Step:
    """One agent action plus the environment's reply."""

    index: int
    """1-based: step k holds `actions[g][k - 1]`."""
    action: str
    """Canonical action; the empty string means that none could be extracted."""
    completion: str | None = None
    observation: str | None = None
    observation_hash: str | None = None
    is_error: bool | None = None
    """Whether the environment answered with an error; None if nobody said."""
    state_key: str | None = None
    usage: Usage | None = None
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled attempt."""

    index: int
    """0-based place in its group."""
    steps: tuple[Step, ...] = ()
    status: RolloutStatus = RolloutStatus.RUNNING
    reward: float | None = None
    """None: unscored. A rollout stopped by the gate is unscored, never 0."""
    late_reward: bool = False
    """The reward arrived after the rollout's end, so no decision may have read it."""
    answer: str | None = None
    failure: RolloutFailure | None = None

    @property
    def actions(self) -> tuple[str, ...]:
        """Canonical actions; `actions[k - 1]` belongs to step k."""
        return tuple(step.action for step in self.steps)


@dataclass(frozen=True, slots=True)
class Group:
    """`size` rollouts of one task."""

    id: str
    size: int
    """As requested; fewer rollouts may be recorded."""
    rollouts: tuple[Rollout, ...]
    task_id: str
    """The independent unit of every statistic; groups of one prompt share it."""
    attempt: int = 1
    policy_version: str | None = None
    sampling: tuple[SamplingInfo, ...] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt to roll out `group_size` times."""

    id: str
    prompt: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Declared facts about the task (seed, type, ...) for the environment and for strata."""
