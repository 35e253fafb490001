"""A request under way at the model server, which its client or the gate may end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

Receive = Callable[[], Awaitable[Any]]


class Flight:
    """The part of a request's life in which it can be stopped."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self.stopped = False
        """The gate ended the last attempt."""

    @property
    def active(self) -> bool:
        """Whether an attempt is under way."""
        return self._task is not None and not self._task.done()

    def stop(self) -> None:
        """End the attempt that is under way, if one is; the connection to the model server is closed."""
        if self._task is not None and self.active:
            self.stopped = True
            self._task.cancel()

    async def run(self, attempt: Coroutine[Any, Any, None]) -> bool:
        """Run one attempt.

        Returns:
            False if `stop` ended it.
        """
        self.stopped = False
        self._task = asyncio.create_task(attempt)
        try:
            await asyncio.wait({self._task})
        except asyncio.CancelledError:
            await _end(self._task)
            raise
        finally:
            task, self._task = self._task, None
        if task.cancelled() and self.stopped:
            return False
        task.result()
        return True


async def while_connected(
    work: Coroutine[Any, Any, None], receive: Receive, is_complete: Callable[[], bool]
) -> bool:
    """Do the work of a request as long as its client is there.

    Args:
        work: ends by itself, or is cancelled when the client leaves.
        receive: the ASGI channel, whose body has been read.
        is_complete: whether the whole answer has been sent, after which a client may well leave.

    Returns:
        False if the client left.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if is_complete():
            await asyncio.wait({task})
        if task.done():
            task.result()
            return True
        return False
    finally:
        gone.cancel()
        if not task.done():
            await _end(task)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has let go of everything; what it says then is of no interest."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
