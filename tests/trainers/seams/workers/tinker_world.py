"""The reader's own builder of environments, and a sampling client; importable in other processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tinker
from seam_world import Bytes, World
from tinker.types import SampledSequence, SampleResponse
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, StepResult

tokenizer = Bytes()


class Talk(Env):
    """Says ok a few times; in a task with "?" rollout 1 breaks in its second turn."""

    def __init__(self, task: str, rollout: int) -> None:
        self.task, self.rollout, self.turn = task, rollout, 0
        self.heard = tokenizer.encode(f"{task}#{rollout}:")

    async def initial_observation(self) -> tuple[tinker.ModelInput, list[int]]:
        return tinker.ModelInput.from_ints(self.heard), [0]

    async def step(self, action: list[int], *, extra: Any = None) -> StepResult:
        self.turn += 1
        if "?" in self.task and self.rollout == 1 and self.turn == 2:
            raise OSError("the tool is gone")
        self.heard = [*self.heard, *action, *tokenizer.encode("ok")]
        done = self.turn == World().turns_of(self.task, self.rollout)
        return StepResult(
            reward=World.reward(self.task, self.rollout) if done else 0.0,
            episode_done=done,
            next_observation=tinker.ModelInput.from_ints(self.heard),
            next_stop_condition=[0],
        )


@dataclass(frozen=True)
class Builder(EnvGroupBuilder):
    """Makes the environments of one problem."""

    task_id: str
    training: bool = True

    async def make_envs(self) -> Sequence[Env]:
        return [Talk(self.task_id, rollout) for rollout in range(World.size)]


@dataclass
class Client:
    """As much of a sampling client as the cookbook calls."""

    world: World = field(default_factory=World)

    async def sample(self, prompt: tinker.ModelInput, **others: Any) -> SampleResponse:
        said = [*tokenizer.encode(await self.world.say(tokenizer.decode(prompt.to_ints()))), 0]
        sequence = SampledSequence("stop", "one", np.array(said), np.full(len(said), -0.5))
        return SampleResponse([sequence])
