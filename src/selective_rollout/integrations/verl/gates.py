"""The gate of a run, and the way to it: an actor that all workers share, or one in each worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ray.exceptions import RayActorError

from selective_rollout.engine.training import TrainingGate
from selective_rollout.engine.training.remote import Coordinator, Link
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.ray_registry import NAME, ray_link, start_coordinator
from selective_rollout.trace.recorder import Recorder

GateMaker = Callable[[], TrainingGate]


@dataclass(frozen=True, slots=True)
class GateSettings:
    """The gate's part of an entry in the agent loop file.

    Attributes:
        gate: path of a gate file, absolute, since workers have folders of their own; None: the default rule.
        mode: observe or enforce.
        audit_rate: share of groups whose would-be cut runs on.
        trace: file to record into.
        shared: whether all workers share one gate, in a named actor of Ray. Without it each worker has its
            own, for trainers that keep a group in one worker.
        actor: the actor's name; gates that differ need names that differ.
        lease_s: how long a group waits for a worker that is silent, or for a reward.

    Raises:
        ConfigError: the mode is neither, or workers were to record into one file.
    """

    gate: str | None = None
    mode: str = "observe"
    audit_rate: float = 0.0
    trace: str | None = None
    shared: bool = True
    actor: str = NAME
    lease_s: float = 300.0

    def __post_init__(self) -> None:
        if self.mode not in ("observe", "enforce"):
            raise ConfigError(f"mode must be observe or enforce, not {self.mode!r}")
        if self.trace is not None and not self.shared:
            raise ConfigError("trace needs shared: true, else all workers would write one file")

    def make(self) -> TrainingGate:
        """Make the gate."""
        return TrainingGate(
            self.gate or GateConfig(),
            mode="enforce" if self.mode == "enforce" else "observe",
            audit_rate=self.audit_rate,
            recorder=Recorder(self.trace) if self.trace is not None else None,
        )


_LINKS: Final[dict[str, Link]] = {}
"""By the actor's name. verl makes an agent loop for every rollout; what outlives it stands here."""


def link_to(settings: GateSettings, make: GateMaker) -> Link:
    """The link to the gate, which is made if this process is the first to ask."""
    if settings.actor not in _LINKS:
        if settings.shared:
            _LINKS[settings.actor] = _shared(settings, make)
        else:
            _LINKS[settings.actor] = partial(_call, Coordinator(make(), lease_s=settings.lease_s))
    return _LINKS[settings.actor]


def _shared(settings: GateSettings, make: GateMaker) -> Link:
    actor = start_coordinator(make, name=settings.actor, lease_s=settings.lease_s, get_if_exists=True)
    return _SharedGate(actor, ray_link(settings.actor))


class _SharedGate:
    """The link to the actor. It holds a handle as well, since an actor ends with the last one."""

    def __init__(self, actor: Any, link: Link) -> None:
        self._actor = actor
        self._link = link
        self._began = False

    async def __call__(self, method: str, *arguments: Any) -> Any:
        if not self._began:
            await self._begin()
        return await self._link(method, *arguments)

    async def _begin(self) -> None:
        """Hear of a gate that could not be made; one that dies later is none of our errors."""
        try:
            await self._actor.metrics.remote()
        except RayActorError as error:
            if error.actor_init_failed:
                raise ConfigError(f"the gate cannot be made: {str(error).strip().splitlines()[-1]}") from None
        self._began = True


async def _call(coordinator: Coordinator, method: str, *arguments: Any) -> Any:
    return await getattr(coordinator, method)(*arguments)
