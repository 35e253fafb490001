"""`GatedTask`: the hook as a method of the task, for environments that one can change."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, TypeVar

from verifiers.v1 import Task, Trace, stop

from selective_rollout.integrations.verifiers.keyed import KeyedGroups
from selective_rollout.integrations.verifiers.seat import STOP_CONDITION, seat_of

TaskT = TypeVar("TaskT", bound=Task)


class GatedTask:
    """Mixin for a task class: `class Mine(GatedTask, vf.Task[...])`. Stands before the task in the bases.

    Rollouts that were cut are not scored: they cost no judge, and their rewards stay empty.

    Attributes:
        groups: how rollouts find their groups where `run_group` does not say; None: they are not gated.
    """

    groups: ClassVar[KeyedGroups | None] = None

    @stop
    async def group_gate(self, trace: Trace) -> bool:
        """Stop rollouts of groups that were cut; runs before every model call."""
        seat = seat_of(trace)
        if seat is not None:
            return await seat.refuses()
        return self.groups is not None and await self.groups.group_gate(trace)

    async def score(self, trace: Trace, runtime: Any = None) -> None:
        """Score a rollout, unless it was cut."""
        if trace.stop_condition != STOP_CONDITION:
            await super().score(trace, runtime)  # type: ignore[misc]


def gated(task: TaskT) -> TaskT:
    """Return the task with the hook; it keeps its type's name, its data and its key."""
    if isinstance(task, GatedTask):
        return task
    kind: Any = type(task)
    clone: TaskT = object.__new__(_gated_class(kind))
    vars(clone).update(vars(task))
    return clone


@functools.cache
def _gated_class(kind: Any) -> Any:
    return type(kind.__name__, (GatedTask, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})
