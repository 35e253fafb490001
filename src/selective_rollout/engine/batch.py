"""`run_groups`: many tasks, in bounded memory, resumable."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.past import past_of, remember
from selective_rollout.engine.resume import EndedGroup, ResumePoint
from selective_rollout.engine.rule import warn_about, warn_of_alarm
from selective_rollout.engine.runner import Workshop, run_in
from selective_rollout.engine.watch import observing, seen_of
from selective_rollout.errors import ConfigError
from selective_rollout.gate.audit import Alarm
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.types import Task


@dataclass(frozen=True, slots=True)
class _Work:
    task: Task
    group_id: str
    place: int
    """In the order in which the run begins its groups, those of its interrupted parts included."""


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
    tau_of: Callable[[Task], float | None] | None = None,
    alarm: Alarm | None = None,
) -> AsyncGenerator[GroupOutcome, None]:
    """Run one group per task and yield the outcomes as they come.

    At most `config.open_groups` groups are under way, so a thousand tasks need no more memory than a few, and
    tasks are drawn from the iterable only when a place is free.

    Args:
        tasks: a task that recurs is another visit of the same prompt.
        shop: policy, environment, rule and settings.
        history: the prompts' earlier rewards; read by the rule, and added to as groups end (and, on resume,
            from the groups that had ended).
        skip_probability: chance of skipping a prompt whose last `gate.history_mixed` rewards were all equal;
            always below 1.
        capacity: environments that can be open at once; None is unlimited.
        resume: where an earlier run stopped.
        certified: the rule comes with an accepted certificate.
        tau_of: each task's own threshold (strata, a schedule), clipped at the rule's; None: the rule's.
        alarm: watches the audits of an enforcing run, those of its interrupted parts included; once it has
            rung, groups begun later are only observed.

    Raises:
        ConfigError: fewer environments than a group needs, or a score that reads a history without one.
    """
    if alarm is not None and alarm.rung:
        shop = _observing(shop)
    config = shop.config
    _check(shop.gate, config, capacity, certified, history)
    slots = config.open_groups if capacity is None else min(config.open_groups, capacity // config.group_size)
    pending: set[asyncio.Task[GroupOutcome]] = set()
    places: dict[asyncio.Task[GroupOutcome], int] = {}
    resume = resume or ResumePoint()
    waiting = _due(tasks, shop, history, skip_probability, resume, alarm)
    try:
        while True:
            while len(pending) < slots and (work := next(waiting, None)) is not None:
                shop = _heeding(alarm, shop)
                tau = tau_of(work.task) if tau_of is not None else None
                running = asyncio.create_task(_run_one(shop, work, history, resume, tau), name=work.group_id)
                places[running] = work.place
                pending.add(running)
            if not pending:
                return
            finished, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                outcome = task.result()
                _watch(outcome, places.pop(task), shop, alarm)
                shop = _heeding(alarm, shop)
                remember(history, outcome)
                yield outcome
    finally:
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)


def _check(
    gate: GateConfig,
    config: RunConfig,
    capacity: int | None,
    certified: bool,
    history: PromptHistory | None,
) -> None:
    if capacity is not None and capacity < config.group_size:
        raise ConfigError(
            f"a group needs {config.group_size} environments at once, but only {capacity} can be open; "
            "lower group_size or raise the capacity"
        )
    if history is None and gate.score is not None and gate.score.reads_history:
        raise ConfigError("the gate's score reads the prompts' earlier rewards: pass a PromptHistory")
    warn_about(gate, config, certified)


def _due(
    tasks: Iterable[Task],
    shop: Workshop,
    history: PromptHistory | None,
    skip_probability: float,
    resume: ResumePoint,
    alarm: Alarm | None,
) -> Iterator[_Work]:
    """The groups to run, in order; those that ended before are told of in their place."""
    place = 0
    for task, group_id in group_ids(tasks):
        ended = resume.ended.get(group_id)
        if ended is not None:
            _recall(ended, task, group_id, place, history, alarm)
            place += 1
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
        yield _Work(task, group_id, place)
        place += 1


async def _run_one(
    shop: Workshop,
    work: _Work,
    history: PromptHistory | None,
    resume: ResumePoint,
    tau: float | None,
) -> GroupOutcome:
    return await run_in(
        shop,
        work.task,
        work.group_id,
        past=past_of(history, shop.gate, work.task.id, shop.config.group_size),
        tau=tau,
        earlier=resume.unfinished.get(work.group_id),
    )


def _recall(
    ended: EndedGroup,
    task: Task,
    group_id: str,
    place: int,
    history: PromptHistory | None,
    alarm: Alarm | None,
) -> None:
    """Tell history and alarm of a group that ended before the run was taken up."""
    if history is not None:
        history.record(task.id, group_id, ended.rewards, was_cut=ended.was_cut)
    if alarm is not None and not alarm.rung:
        alarm.note(place, ended.seen)


def _watch(outcome: GroupOutcome, place: int, shop: Workshop, alarm: Alarm | None) -> None:
    """Tell the alarm of a group."""
    if alarm is None or shop.config.mode != "enforce":
        return
    alarm.note(place, seen_of(outcome, shop.gate.reward_tolerance))


def _heeding(alarm: Alarm | None, shop: Workshop) -> Workshop:
    """The shop for groups still to begin, which only observes once the alarm has rung."""
    if alarm is None or not alarm.rung or shop.config.mode != "enforce":
        return shop
    warn_of_alarm(alarm, stacklevel=3)
    return _observing(shop)


def _observing(shop: Workshop) -> Workshop:
    return replace(shop, config=observing(shop.config))
