"""An event loop in a thread of its own.

It serves callers that have no loop, and keeps a group's state in one place for members in tasks of one loop,
in threads, or in loops of other threads. A loop of the user's that is blocked, by a synchronous call inside a
coroutine for instance, cannot block a group with it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

T = TypeVar("T")

_WIND_UP_S: Final = 1.0
_JOIN_S: Final = 5.0


class LoopThread:
    """Runs coroutines in its thread, which starts on first use and ends with `close` or with this object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def closed(self) -> bool:
        """Whether it takes no more work."""
        return self._is_closed

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine there, in a copy of the calling thread's context.

        Raises:
            RuntimeError: it is closed.
        """
        future = self.offer(work)
        if future is None:
            raise RuntimeError("this loop has been closed")
        return future

    def offer(self, work: Coroutine[Any, Any, T]) -> Future[T] | None:
        """Like `submit`; None, with the coroutine closed, if it takes no more work.

        What is let in is answered or cancelled, but never forgotten.
        """
        with self._lock:
            if self._is_closed:
                work.close()
                return None
            return asyncio.run_coroutine_threadsafe(work, self._running_loop())

    def call(self, work: Callable[[], T]) -> T | None:
        """Run work that does not wait, and return its result; None if it is closed."""
        future = self.offer(_done(work))
        return None if future is None else future.result()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for its result; whatever ends the waiting cancels it.

        Raises:
            RuntimeError: it is closed, or is asked from within, where it would wait for itself.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "a synchronous call from a coroutine of another one's run would wait for itself: "
                "await the asynchronous method instead"
            )
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Let what is under way come to its end, at most a second long, and wait for the thread."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(_wind_up(loop), loop)
            thread.join()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            self._loop = runner.get_loop()
            self._thread = threading.Thread(
                target=_serve, args=(runner,), name="selective-rollout-loop", daemon=True
            )
            self._thread.start()
            weakref.finalize(self, _stop, self._loop, self._thread)
        return self._loop


def shared_loop() -> LoopThread:
    """The loop of this process for callers that have none and own nothing that would need one of its own.

    Clients of HTTP servers stay bound to the loop that used them first, so one that is handed from caller to
    caller must meet the same loop again.
    """
    global _shared
    with _sharing:
        if _shared is None:
            _shared = LoopThread()
        return _shared


def _forget_shared() -> None:
    """A forked child has the object but not its thread."""
    global _shared, _sharing
    _shared, _sharing = None, threading.Lock()


_shared: LoopThread | None = None
_sharing = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_shared)


async def _done(work: Callable[[], T]) -> T:
    return work()


async def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    if rest:
        await asyncio.wait(rest, timeout=_WIND_UP_S)
    loop.stop()


def _serve(runner: asyncio.Runner) -> None:
    with runner:  # cancels, on leaving, what is still under way
        runner.get_loop().run_forever()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    if thread.is_alive():
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(_JOIN_S)
