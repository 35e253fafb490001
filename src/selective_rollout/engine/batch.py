"""`run_groups`: many tasks, in bounded memory, resumable."""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.resume import ResumePoint
from selective_rollout.engine.runner import Workshop, run_in
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.types import Task


class UncertifiedGateWarning(UserWarning):
    """A gate stops groups although no certificate bounds the harm."""


@dataclass(frozen=True, slots=True)
class _Work:
    task: Task
    group_id: str


def group_ids(tasks: Iterable[Task]) -> Iterator[tuple[Task, str]]:
    """Pair each task with its group id: the task id, and from its second visit on `id@2`, `id@3`, ..."""
    visits: Counter[str] = Counter()
    for task in tasks:
        visits[task.id] += 1
        visit = visits[task.id]
        yield task, task.id if visit == 1 else f"{task.id}@{visit}"


async def run_groups(
    tasks: Iterable[Task],
    shop: Workshop,
    *,
    history: PromptHistory | None = None,
    skip_probability: float = 0.0,
    capacity: int | None = None,
    resume: ResumePoint | None = None,
    certified: bool = False,
) -> AsyncGenerator[GroupOutcome, None]:
    """Run one group per task and yield the outcomes as they come.

    At most `config.open_groups` groups are under way, so a thousand tasks need no more memory than a few, and
    tasks are drawn from the iterable only when a place is free.

    Args:
        tasks: a task that recurs is another visit of the same prompt.
        shop: policy, environment, rule and settings.
        history: the prompts' earlier rewards; read by the rule, and added to as groups end.
        skip_probability: chance of skipping a prompt whose last `gate.history_mixed` rewards were all equal;
            always below 1.
        capacity: environments that can be open at once; None is unlimited.
        resume: where an earlier run stopped.
        certified: the rule comes with an accepted certificate.

    Raises:
        ConfigError: fewer environments than a group needs.
    """
    config = shop.config
    _check(shop.gate, config, capacity, certified)
    slots = config.open_groups if capacity is None else min(config.open_groups, capacity // config.group_size)
    pending: set[asyncio.Task[GroupOutcome]] = set()
    waiting = _due(tasks, shop, history, skip_probability, resume or ResumePoint())
    try:
        while True:
            while len(pending) < slots and (work := next(waiting, None)) is not None:
                pending.add(asyncio.create_task(_run_one(shop, work, history, resume), name=work.group_id))
            if not pending:
                return
            finished, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                yield _remembered(task.result(), history)
    finally:
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)


def _check(gate: GateConfig, config: RunConfig, capacity: int | None, certified: bool) -> None:
    if capacity is not None and capacity < config.group_size:
        raise ConfigError(
            f"a group needs {config.group_size} environments at once, but only {capacity} can be open; "
            "lower group_size or raise the capacity"
        )
    if config.max_steps < gate.start_step:
        warnings.warn(
            f"max_steps {config.max_steps} is below start_step {gate.start_step}: this gate can never fire",
            stacklevel=3,
        )
    if config.mode == "enforce" and gate.outcome != "vote" and not certified:
        warnings.warn(
            "enforcing a gate without a certificate: nothing bounds how many signal-bearing groups it stops",
            UncertifiedGateWarning,
            stacklevel=3,
        )


def _due(
    tasks: Iterable[Task],
    shop: Workshop,
    history: PromptHistory | None,
    skip_probability: float,
    resume: ResumePoint,
) -> Iterator[_Work]:
    for task, group_id in group_ids(tasks):
        if group_id in resume.done:
            continue
        last = shop.gate.history_mixed
        if (
            history is not None
            and skip_probability
            and last
            and history.should_skip(
                task.id, group_id, last=last, probability=skip_probability, seed=shop.config.seed
            )
        ):
            continue
        yield _Work(task, group_id)


async def _run_one(
    shop: Workshop, work: _Work, history: PromptHistory | None, resume: ResumePoint | None
) -> GroupOutcome:
    last = shop.gate.history_mixed
    return await run_in(
        shop,
        work.task,
        work.group_id,
        history=history.last(work.task.id, last) if history is not None and last else None,
        earlier=resume.unfinished.get(work.group_id) if resume else None,
    )


def _remembered(outcome: GroupOutcome, history: PromptHistory | None) -> GroupOutcome:
    if history is not None:
        group = outcome.group
        rewards = [rollout.reward for rollout in group.rollouts]
        history.record(group.task_id, group.id, rewards, was_cut=not outcome.trainable)
    return outcome
