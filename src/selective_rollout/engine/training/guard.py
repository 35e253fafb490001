"""`guarded`: the end of a coroutine when its group is cut, and no other cancellation touched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from selective_rollout.engine.training.group import TrainingGroup


class GroupCut(Exception):
    """The group was cut, so this rollout stops here; catch it where the rollout's result is made."""

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.group_id = group_id

    def __str__(self) -> str:
        return f"group {self.group_id!r} was cut"


@asynccontextmanager
async def guarded(group: TrainingGroup, rollout: int) -> AsyncIterator[None]:
    """Run a rollout's work in the current task until it is done or its group is cut.

    A cut cancels what the block is waiting for, so that a request in flight closes its connection. Only that
    cancellation becomes `GroupCut`; one from outside passes through, also if both come at once.

    Raises:
        GroupCut: the group was cut, before or while the block ran.
    """
    if group.stopped:
        raise GroupCut(group.id)
    task = asyncio.current_task()
    assert task is not None
    loop, before = task.get_loop(), task.cancelling()
    cancelled = False

    def stop() -> None:
        nonlocal cancelled
        # The task that brought the cut about learns of it from `step`; it is not waiting for anything.
        if not cancelled and asyncio.current_task(loop) is not task:
            cancelled = True
            task.cancel()

    group.on_stop(rollout, stop)
    try:
        yield
    except asyncio.CancelledError:
        if task.cancelling() - cancelled > before or not cancelled:
            raise
    finally:
        group.on_stop(rollout, None)
        if cancelled:
            task.uncancel()
    if group.stopped:
        raise GroupCut(group.id)
