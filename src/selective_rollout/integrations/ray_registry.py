"""The coordinator of `engine.training.remote` as a named actor of Ray, for groups that span its workers.

start_coordinator(partial(TrainingGate, "gate.toml", mode="enforce"))       # once, in the driver

async with RemoteMember(ray_link(), uid, rollout, size) as member:          # in any worker
    async with member.guarded():
        ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from selective_rollout.errors import MissingExtraError, SelectiveRolloutError

try:
    import ray
except ModuleNotFoundError as error:
    raise MissingExtraError("openrlhf", "ray") from error

from ray.exceptions import RayActorError

from selective_rollout.engine.training import TrainingGate
from selective_rollout.engine.training.remote import Coordinator, Link

NAME: Final = "selective-rollout-gate"
_MOST_CALLS: Final = 20_000
"""Each member has one question open all the time."""


class _Actor(Coordinator):
    def __init__(self, gate: Callable[[], TrainingGate], lease_s: float) -> None:
        super().__init__(gate(), lease_s=lease_s)

    async def metrics(self) -> dict[str, float]:
        """See `Meter.metrics`."""
        return self.gate.meter.metrics()


def start_coordinator(
    gate: Callable[[], TrainingGate], *, name: str = NAME, lease_s: float = 60.0, **options: Any
) -> Any:
    """Start the actor; it lives as long as the handle that is returned, or the driver.

    Args:
        gate: makes the gate in the actor's process; has to pickle.
        name: by which workers find it.
        lease_s: see `Coordinator`.
        options: further ones of Ray for the actor.
    """
    settings = {"name": name, "num_cpus": 0, "max_concurrency": _MOST_CALLS, **options}
    return ray.remote(_Actor).options(**settings).remote(gate, lease_s)


def ray_link(name: str = NAME) -> Link:
    """Call the actor of this name from anywhere in the cluster."""
    actor: Any = None

    async def call(method: str, *arguments: Any) -> Any:
        nonlocal actor
        try:
            actor = actor or ray.get_actor(name)
            return await getattr(actor, method).remote(*arguments)
        except (ValueError, RayActorError) as error:
            if isinstance(error, SelectiveRolloutError):
                raise
            raise ConnectionError(str(error).splitlines()[0]) from error

    return call
