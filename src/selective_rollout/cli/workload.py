"""From what the user named to tasks, environments, policies and scorers.

`module:function` values are code: they are taken from the command line only, never from a trace or gate file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from selective_rollout.env import HouseholdEnvironment, household_tasks, load_factory
from selective_rollout.env.base import EnvironmentFactory
from selective_rollout.env.loading import load_function
from selective_rollout.env.prompt import PromptEnvironment
from selective_rollout.errors import ConfigError, TraceError
from selective_rollout.policy.base import Policy
from selective_rollout.policy.endpoint import Endpoint
from selective_rollout.testing.household import SimulatedPolicy
from selective_rollout.types import Task

MAX_TASK_BYTES = 8 * 2**20

_TOKEN_IDS: Final = {"return_token_ids": True, "logprobs": True}
"""Asks for the ids of what is generated, as vLLM and as llama.cpp want to be asked."""


@dataclass(frozen=True, slots=True)
class HouseholdTasks:
    """Parameters of the built-in workload."""

    count: int
    workload: str = "standard"
    epochs: int = 1
    seed: int = 0


def read_tasks(path: Path) -> Iterator[Task]:
    """Read tasks, one JSON object a line: {"id": ..., "prompt": ..., anything else}.

    A missing or empty id becomes the line number; other keys become the task's metadata.

    Raises:
        TraceError: a line is no such object; the message starts with file:line.
    """
    try:
        file = path.open(encoding="utf-8-sig", errors="strict")
    except OSError as error:
        raise TraceError(f"{path}: cannot read the tasks ({error.strerror})") from None
    try:
        with file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _task(f"{path}:{number}", line, number)
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 ({error.reason}); save it as UTF-8") from None


def _task(where: str, line: str, number: int) -> Task:
    if len(line) > MAX_TASK_BYTES:
        raise TraceError(f"{where}: the task is longer than {MAX_TASK_BYTES // 2**20} MiB")
    try:
        values: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: not JSON ({error})") from None
    if not isinstance(values, dict) or not isinstance(values.get("prompt"), str):
        raise TraceError(
            f'{where}: a task is an object with a text "prompt", e.g. {{"id": "1", "prompt": "..."}}'
        )
    metadata = {key: value for key, value in values.items() if key not in ("id", "prompt")}
    return Task(_id(where, values.get("id"), number), values["prompt"], metadata)


def _id(where: str, value: Any, number: int) -> str:
    if value is None or value == "":
        return str(number)
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    raise TraceError(f'{where}: the "id" of a task is text or a whole number, not {json.dumps(value)[:40]}')


def tasks_of(path: Path | None, environment: str, household: HouseholdTasks) -> Iterator[Task]:
    """The tasks of a run: a file, or the built-in workload."""
    if path is not None:
        return read_tasks(path)
    if environment != "household":
        raise ConfigError("name a tasks file (JSONL); only --env household makes its own tasks")
    return household_tasks(household.count, household.seed, household.workload, household.epochs)


def shared_prompts(tasks: Iterable[Task]) -> str | None:
    """What to say of tasks that share a prompt under different ids; None: of none."""
    ids: dict[str, set[str]] = {}
    for task in tasks:
        ids.setdefault(task.prompt, set()).add(task.id)
    sharing = sum(len(same) for same in ids.values() if len(same) > 1)
    if not sharing:
        return None
    return (
        f"{sharing} tasks share a prompt but not an id, and will count as independent: give the tasks of one "
        'prompt one "id"'
    )


def environment_of(name: str) -> EnvironmentFactory:
    """A built-in environment, or the user's `module:factory`."""
    if name == "household":
        return HouseholdEnvironment
    if name == "prompt":
        return PromptEnvironment
    if ":" not in name:
        raise ConfigError(f"--env {name!r}: use household, prompt, or module:factory")
    _look_in_current_folder()
    return load_factory(name)


def score_of(reference: str | None) -> Any:
    """The user's scorer, called as `score(task, rollout)`; None without one."""
    if reference is None:
        return None
    _look_in_current_folder()
    return load_function(reference, "reward function")


def policy_of(simulated: bool, environment: str, endpoint: Endpoint | None, **options: Any) -> Policy:
    """The simulated household agent, or a client of the endpoint."""
    if not simulated:
        assert endpoint is not None
        from selective_rollout.policy.openai_client import OpenAIPolicy  # noqa: PLC0415 (takes 400 ms)
        from selective_rollout.policy.options import SamplingParams  # noqa: PLC0415

        sampling = SamplingParams(
            temperature=options["temperature"],
            max_tokens=options["max_tokens"],
            extra_body=_TOKEN_IDS if options["token_ids"] else {},
        )
        return OpenAIPolicy(
            endpoint,
            sampling,
            constrain=options["constrain"],
            concurrency=options["concurrency"],
            first_step=options["first_step"],
        )
    if environment != "household":
        raise ConfigError("--simulated plays the household world only: use --env household")
    return SimulatedPolicy()


def _look_in_current_folder() -> None:
    """A console script does not look for modules in the current folder by itself."""
    if "" not in sys.path:
        sys.path.insert(0, "")
