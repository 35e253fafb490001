"""An event loop in a thread of its own, where everything that a group knows is kept.

Rollouts may run as tasks of one loop, in threads, or in loops of other threads: all of them ask here. A
loop of the user's that is blocked, by a synchronous call inside a coroutine for instance, cannot block the
group with it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

T = TypeVar("T")

_WIND_UP_S: Final = 1.0


class GroupLoop:
    """Runs work one piece at a time until it is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._serve, name="selective-rollout-group", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether it takes no more work."""
        return self._closed

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T] | None:
        """Start work that may wait; None if the loop is closed."""
        with self._lock:  # what is let in before the end is answered, or cancelled, but never forgotten
            if self._closed:
                return None
            return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def call(self, work: Callable[[], T]) -> T | None:
        """Run work that does not wait, and return its result; None if the loop is closed."""

        async def coroutine() -> T:
            return work()

        future = self.submit(coroutine)
        return None if future is None else future.result()

    def close(self) -> None:
        """Let what is under way come to its end, for it has been released, and wait for the thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            asyncio.run_coroutine_threadsafe(self._wind_up(), self._loop)
        self._thread.join()

    async def _wind_up(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        if rest:
            await asyncio.wait(rest, timeout=_WIND_UP_S)
        self._loop.stop()

    def _serve(self) -> None:
        with self._runner:
            self._loop.run_forever()
