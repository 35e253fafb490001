"""Cancelling without leaving a connection open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import anyio

_T = TypeVar("_T")


async def finish_cleanup(
    work: Coroutine[Any, Any, _T],
    end_early: Callable[[asyncio.Task[_T]], Awaitable[None]] | None = None,
) -> _T:
    """Await work in a task of its own, which hears of the first cancellation only.

    A task that is cancelled again while it closes its connection leaves it open, and the server goes on
    generating. Here the second cancellation ends the waiting, and the closing goes on. The first one reaches
    the work through a scope of anyio, from which HTTP clients shield their closing. A task's own cancellation
    breaks their shields: connections that were being closed then stay open.

    Args:
        work: what to await. What it awaits on its way out it must shield, as HTTP clients do.
        end_early: called with the task at the first cancellation, to bring it to an end in a better way;
            where it has not ended afterwards, it is cancelled.
    """
    scope = anyio.CancelScope()
    task = asyncio.create_task(_within(scope, work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            if end_early is not None and not task.done():
                await end_early(task)
        finally:
            scope.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()
        raise


async def _within(scope: anyio.CancelScope, work: Coroutine[Any, Any, _T]) -> _T:
    with scope:
        return await work
    raise asyncio.CancelledError
