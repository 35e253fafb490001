"""A real HTTP server on loopback that speaks the OpenAI API, for tests of everything that calls a model."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Final, Self

from selective_rollout.errors import ConfigError, PrerequisiteError
from selective_rollout.testing.app import App
from selective_rollout.testing.counters import CounterSnapshot
from selective_rollout.testing.http import HttpServer
from selective_rollout.testing.options import ServerOptions

_POLL_S: Final = 0.002
_STOP_S: Final = 10.0


class LoopbackServer(ServerOptions):
    """Serves a brain over HTTP from a thread of its own; a context manager, for one use.

    Real servers differ in how they count, stream, cancel and fail, and a client that works against one kind
    breaks on another; `personality` chooses the kind. Requests may carry `x-rollout-group` and
    `x-rollout-id` headers, by which the counters can be asked.

    Example:
        with LoopbackServer(EchoBrain(), "vllm", step_delay_s=0.01) as server:
            client = openai.AsyncOpenAI(base_url=server.base_url, api_key=server.api_key)
            ...
            assert server.counters.for_group("g1").tokens_after_disconnect == 0
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._app = App(self)
        self._thread: threading.Thread | None = None
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = Future()

    @property
    def bound_port(self) -> int:
        """Port that the server listens on."""
        if self._thread is None:
            raise ConfigError("the server is not started: use it as a context manager, or call start()")
        return self._started.result()[2]

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as `base_url`."""
        return f"{self.root_url}/v1"

    @property
    def root_url(self) -> str:
        """Without `/v1`: the base of /health, /metrics and the abort endpoint."""
        return f"http://127.0.0.1:{self.bound_port}"

    @property
    def counters(self) -> CounterSnapshot:
        """What the server did so far.

        A client can hold the end of a response before the server has booked it: wait for `in_flight == 0`.
        """
        return self._app.counters.snapshot()

    def wait_until(
        self, condition: Callable[[CounterSnapshot], bool], timeout_s: float = 30.0
    ) -> CounterSnapshot:
        """Block until the counters fulfil a condition, and return them.

        Raises:
            TimeoutError: they did not within `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        while (counters := self._reached(condition, deadline)) is None:
            time.sleep(_POLL_S)
        return counters

    async def until(
        self, condition: Callable[[CounterSnapshot], bool], timeout_s: float = 30.0
    ) -> CounterSnapshot:
        """Like `wait_until`, without blocking the caller's event loop."""
        deadline = time.monotonic() + timeout_s
        while (counters := self._reached(condition, deadline)) is None:  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(_POLL_S)
        return counters

    def start(self) -> None:
        """Listen.

        Raises:
            PrerequisiteError: the port cannot be bound.
            ConfigError: the server was started before.
        """
        if self._thread is not None:
            raise ConfigError("a loopback server serves once: make a new one")
        self._thread = threading.Thread(target=self._run, name="loopback-server", daemon=True)
        self._thread.start()
        try:
            self._started.result()
        except BaseException:
            self._thread.join(_STOP_S)
            raise

    def stop(self) -> None:
        """Break open connections and wait until the thread has ended; harmless if it has."""
        if self._thread is None or not self._thread.is_alive():
            return
        loop, stopping, _ = self._started.result()
        loop.call_soon_threadsafe(stopping.set)
        self._thread.join(_STOP_S)
        if self._thread.is_alive():
            raise RuntimeError(f"the loopback server did not stop within {_STOP_S:g} s: its brain blocks")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _reached(
        self, condition: Callable[[CounterSnapshot], bool], deadline: float
    ) -> CounterSnapshot | None:
        counters = self.counters
        if condition(counters):
            return counters
        if time.monotonic() > deadline:
            raise TimeoutError(f"the counters never fulfilled the condition: {counters}")
        return None

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        http = HttpServer(self._app.handle, self.limits)
        try:
            port = await http.start(self.port)
        except OSError as error:
            text = f"cannot listen on 127.0.0.1:{self.port} ({error}): choose another port, or 0 for any"
            self._started.set_exception(PrerequisiteError(text))
            return
        stopping = asyncio.Event()
        self._started.set_result((asyncio.get_running_loop(), stopping, port))
        await stopping.wait()
        await http.close()
