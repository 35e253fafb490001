"""An event loop for callers that have none: `invoke` and `stream` run the same coroutines as `ainvoke`."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

T = TypeVar("T")

_JOIN_S: Final = 5.0


class LoopThread:
    """An event loop in a thread of its own.

    It starts on first use and ends with this object, so that a policy that belongs to one loop serves every
    synchronous run of a graph.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine there, in a copy of the calling thread's context."""
        return asyncio.run_coroutine_threadsafe(work, self._running_loop())

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
                self._loop = runner.get_loop()
                thread = threading.Thread(
                    target=_serve, args=(runner,), name="selective-rollout-loop", daemon=True
                )
                thread.start()
                weakref.finalize(self, _stop, self._loop, thread)
            return self._loop


def _serve(runner: asyncio.Runner) -> None:
    with runner:  # cancels, on leaving, what is still under way
        runner.get_loop().run_forever()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    if thread.is_alive():
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(_JOIN_S)
