"""Which calls are training groups, and who belongs to one: OpenRLHF hands the executor neither.

The rollouts of a group are one `generate_responses` call in one engine actor, which starts them side by side
with the very same objects; Ray makes new ones for every call. So members know each other by the identity of
the sampling parameters, and all of them are there once each has let the event loop go round once.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from selective_rollout.engine.training import TrainingGate, TrainingGroup
from selective_rollout.errors import ConfigError
from selective_rollout.types import SamplingInfo

TaskOf: TypeAlias = Callable[[Any, Any], str]
"""Names the task of a prompt and its label."""


class NotGatedWarning(UserWarning):
    """Rollouts of a kind that was not declared run without a gate."""


def digest(prompt: Any, label: Any) -> str:
    """The task's identity where nobody names one: the same prompt and label are the same task."""
    return hashlib.sha256(repr((prompt, label)).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(slots=True)
class Call:
    """One call of the engine actor: rollouts of one prompt."""

    held: tuple[object, ...]
    """The objects it is known by; as long as they are held, nothing else can have their addresses."""
    size: int = 0
    sealed: bool = False
    group: TrainingGroup | None = None
    """None: not gated."""
    skipped: bool = False
    """The prompt is passed by this time: nothing is generated for it."""
    _left: int = 0
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    def leave(self, rollout: int, error: BaseException | None = None) -> None:
        """A member has ended; the last one closes the group."""
        self._left += 1
        if self.group is None:
            return
        if error is not None:
            self.group.fail(rollout, type(error).__name__, str(error))
        if self._left == self.size:
            self.group.close()
            self._ended.set()

    async def all_ended(self) -> None:
        """Wait until no member runs any more."""
        await self._ended.wait()


class Calls:
    """The calls under way in one engine actor.

    Args:
        gate: opens groups.
        group_size: rollouts per prompt in training.
        temperature: of training; calls of another one are evaluation.
        without_images: leave prompts with images alone.
        task_of: names tasks.
        planned_groups: groups this actor will see in the whole training, for a schedule; None: unknown.

    Raises:
        ConfigError: a group of fewer than two has nothing to compare.
    """

    def __init__(
        self,
        gate: TrainingGate,
        *,
        group_size: int,
        temperature: float,
        without_images: bool,
        task_of: TaskOf,
        planned_groups: int | None,
    ) -> None:
        if group_size < 2:
            raise ConfigError(f"group_size must be at least 2, not {group_size}: a gate compares rollouts")
        self._gate = gate
        self._group_size = group_size
        self._temperature = temperature
        self._without_images = without_images
        self._task_of = task_of
        self._planned = planned_groups
        self._open: dict[tuple[int, ...], Call] = {}
        self._run = uuid.uuid4().hex[:8]
        self._numbered = 0
        self._told: set[str] = set()

    async def join(self, prompt: Any, label: Any, sampling_params: Any, images: Any) -> tuple[Call, int]:
        """Be one of the rollouts of a call, and wait for all of them to be there."""
        held = (sampling_params, prompt, label)
        call = self._open.setdefault(tuple(map(id, held)), Call(held))
        rollout, call.size = call.size, call.size + 1
        try:
            await asyncio.sleep(0)
        except BaseException as error:
            self._seal(call, images)
            call.leave(rollout, error)
            raise
        self._seal(call, images)
        return call, rollout

    def _seal(self, call: Call, images: Any) -> None:
        """Nobody else will join; the first who says so opens the group, if it is one."""
        if call.sealed:
            return
        call.sealed = True
        del self._open[tuple(map(id, call.held))]
        sampling_params, prompt, label = call.held
        temperature = getattr(sampling_params, "temperature", None)
        if self._is_gated(call.size, temperature, images):
            seed = getattr(sampling_params, "seed", None)
            self._begin(call, self._task_of(prompt, label), SamplingInfo(seed=seed, temperature=temperature))

    def _begin(self, call: Call, task_id: str, sampling: SamplingInfo) -> None:
        self._numbered += 1
        group_id = f"{self._run}-{self._numbered}"
        if self._planned:
            self._gate.at(progress=min(1.0, self._gate.begun / self._planned))
        if self._gate.skips(task_id, group_id):
            call.skipped = True
        else:
            call.group = self._gate.open(
                group_id, call.size, task_id=task_id, sampling=[sampling] * call.size
            )

    def _is_gated(self, size: int, temperature: float | None, images: Any) -> bool:
        declared = f"group_size={self._group_size}, temperature={self._temperature:g}"
        alike = temperature is not None and math.isclose(temperature, self._temperature, abs_tol=1e-9)
        if size != self._group_size or not alike:
            self._tell(
                f"{size} rollouts a prompt at temperature {temperature} run without a gate, which is for "
                f"{declared}. Fine for evaluation; otherwise declare what training uses"
            )
            return False
        if images and self._without_images:
            self._tell("prompts with images are gated with dynamic filtering only")
            return False
        return True

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            warnings.warn(message, NotGatedWarning, stacklevel=4)
