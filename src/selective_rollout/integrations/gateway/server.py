"""Running the gateway: one process, one event loop, one trace file."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn

from selective_rollout.errors import PrerequisiteError
from selective_rollout.integrations.gateway.app import Gateway
from selective_rollout.integrations.gateway.protocol import bounded

_KEEP_ALIVE_S: Final = 75
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class GatewayServer(uvicorn.Server):
    """Serves one gateway, and lets it finish what is under way before it stops.

    Args:
        gateway: the application.
        drain_s: longest wait for that; then what is left is broken off.
        on_ready: called when the first request can come.
    """

    def __init__(
        self, gateway: Gateway, *, drain_s: float = 30.0, on_ready: Callable[[], None] = lambda: None
    ) -> None:
        limits = gateway.config.limits
        super().__init__(
            uvicorn.Config(
                gateway,
                lifespan="on",
                http=bounded(limits),
                loop="auto",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=round(drain_s),
                limit_concurrency=limits.connections,
            )
        )
        self._gateway = gateway
        self._on_ready = on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM begin the end, which is not an error: they are not raised again after it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Send held requests away, wait for the others, close."""
        self._gateway.drain()
        await super().shutdown(sockets)


def listen_on(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        PrerequisiteError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(2048)
    except OSError as error:
        made.close()
        raise PrerequisiteError(
            f"cannot listen on {host} port {port} ({error.strerror}): choose another --port, or 0 for any"
        ) from None
    return made


def serve(gateway: Gateway, listening: socket.socket, *, on_ready: Callable[[], None] = lambda: None) -> None:
    """Serve until Ctrl-C or SIGTERM; returns once everything is closed.

    Args:
        gateway: the application.
        listening: where, made by `listen_on`; closed at the end.
        on_ready: called when the first request can come.
    """
    try:
        server = GatewayServer(gateway, on_ready=on_ready)
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(server.serve([listening]))
    finally:
        listening.close()
