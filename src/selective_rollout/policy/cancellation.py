"""Cancelling without leaving a connection open."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def finish_cleanup(work: Coroutine[Any, Any, _T]) -> _T:
    """Await work in a task of its own, which hears of the first cancellation only.

    A task that is cancelled again while it closes its connection leaves it open, and the server goes on
    generating. Here the second cancellation ends the waiting, and the closing goes on.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise
