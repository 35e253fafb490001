"""Find-the-object tasks that a model of 135 million parameters can do, and fail at, in various ways.

Such a model cannot follow the whole household task, and on a CPU reading is what costs: every rollout reads
every observation. So the task is only to find an object in the room where the agent starts, the plan of the
house is left out, and one worked example, which the server reads once per slot, shows the commands.
Completions have to be constrained to the admissible actions (`OpenAIPolicy(constrain="grammar")`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from selective_rollout.env.base import Observation, StepResult
from selective_rollout.env.household import HouseholdEnvironment
from selective_rollout.env.household_scenario import draw_scenario, household_tasks
from selective_rollout.errors import ConfigError
from selective_rollout.policy.base import Message
from selective_rollout.policy.options import SamplingParams
from selective_rollout.types import Task

SMALL_AGENT_SAMPLING: Final = SamplingParams(temperature=0.3, max_tokens=24)
"""Cool enough for rollouts to agree at times; the longest action has about ten tokens."""
SMALL_AGENT_TEMPLATE: Final = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
"""Chat template of plain lines: the model's own one spends as many tokens on framing a step as the world on
describing it. Only for constrained completions, since nothing in it teaches the model where to end."""

_MANY: Final = 1_000_000
_SYSTEM: Final = "Do household tasks with one command per turn."
_EXAMPLE: Final = (
    ("Find the drum. You stand in the cave.", "go to cave table"),
    ("You stand at the cave table. You see: nothing.", "go to cave desk"),
    ("You stand at the cave desk. You see: drum, rope.", "take drum"),
)


def find_tasks(n: int, seed: int = 0) -> Iterator[Task]:
    """Yield `n` tasks "Find the <object>.": household tasks whose object lies open in the first room.

    Raises:
        ConfigError: n is negative.
    """
    if n < 0:
        raise ConfigError(f"find_tasks needs n >= 0, not n={n}")
    return islice((find for task in household_tasks(_MANY, seed) if (find := _as_find_task(task))), n)


def _as_find_task(task: Task) -> Task | None:
    scenario = draw_scenario(task.metadata["seed"])
    first_room = next(iter(scenario.rooms.values()))
    if scenario.source not in first_room or scenario.source in scenario.doors:
        return None
    metadata = {"seed": task.metadata["seed"], "target": scenario.target}
    return Task(id=f"find-{task.id}", prompt=f"Find the {scenario.target}.", metadata=metadata)


class FindEnvironment:
    """A household world that ends with reward 1.0 once the object is taken; an `EnvironmentFactory`.

    Args:
        task: one of `find_tasks`.
        rollout: not used, since all rollouts of a task live in equal worlds.

    Raises:
        ConfigError: the task is none of `find_tasks`.
    """

    replayable: Final = True

    def __init__(self, task: Task, rollout: int = 0) -> None:
        if "target" not in task.metadata:
            raise ConfigError(f"task {task.id!r} has no metadata['target']: use find_tasks()")
        self._house = HouseholdEnvironment(task, rollout)
        self._success = f"take {task.metadata['target']}"

    def start(self) -> Observation:
        """Say where the agent stands."""
        seen = self._house.start()
        return replace(seen, admissible=_without_answers(seen.admissible))

    def step(self, action: str) -> StepResult:
        """Perform one command.

        Raises:
            EnvironmentFault: the agent had answered already.
        """
        result = self._house.step(action)
        found = action == self._success and not result.is_error
        return replace(
            result,
            admissible=_without_answers(result.admissible),
            reward=float(found),
            terminated=found or result.terminated,
        )

    def close(self) -> None:
        """Nothing is held."""
        self._house.close()


def _without_answers(actions: tuple[str, ...] | None) -> tuple[str, ...]:
    return tuple(action for action in actions or () if not action.startswith("answer("))


def small_agent_opening(task: Task, observation: Observation) -> list[Message]:
    """First messages of a rollout, an `opening` for the engine: the example, then task and observation."""
    turns = [{"role": "system", "content": _SYSTEM}]
    for seen, done in _EXAMPLE:
        turns += [{"role": "user", "content": seen}, {"role": "assistant", "content": done}]
    return [*turns, {"role": "user", "content": f"{task.prompt} {observation.text}"}]
