"""The gateway as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Final

from selective_rollout.errors import TraceError
from selective_rollout.integrations.gateway.address import Address, BadAddress, RawHeaders, read_address
from selective_rollout.integrations.gateway.book import Book
from selective_rollout.integrations.gateway.config import GatewayConfig
from selective_rollout.integrations.gateway.control_api import ControlApi
from selective_rollout.integrations.gateway.desk import Write
from selective_rollout.integrations.gateway.exchange import ClientGone, Exchange, Send, read_request_body
from selective_rollout.integrations.gateway.flight import Receive
from selective_rollout.integrations.gateway.guard import check_request, scope_of
from selective_rollout.integrations.gateway.live_view import LiveView
from selective_rollout.integrations.gateway.metrics import Counts, counted
from selective_rollout.integrations.gateway.proxy import Proxy
from selective_rollout.integrations.gateway.refusal import Refusal, Refused
from selective_rollout.integrations.gateway.relay import Relay
from selective_rollout.integrations.gateway.state import GatewayView, gateway_view
from selective_rollout.integrations.gateway.upstream import Upstream
from selective_rollout.trace.schema import Event

Scope = MutableMapping[str, Any]
_SWEEP_S: Final = 1.0
_log: Final = logging.getLogger(__name__)


class Gateway:
    """Serves one upstream server to many agents.

    Args:
        config: where requests go and what is done with their groups.
        write: takes the events of the trace, usually `Recorder.write`.
        clock: seconds that never go backwards.
    """

    def __init__(
        self, config: GatewayConfig, write: Write, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config = config
        self.counts = Counts()
        self._write = counted(self.counts, write)
        self.book = Book(config, self.write, clock)
        self._upstream = Upstream(config.upstream, config.limits)
        relay = Relay(config.upstream, self._upstream, self.counts, holds_key=config.holds_key)
        self._proxy = Proxy(config, self.book, relay, self.counts)
        self._control = ControlApi(config, self.book, self.counts, LiveView(config, self.book)).app()

    def write(self, event: Event) -> None:
        """Record an event. Once that fails, all requests pass unrecorded: no agent breaks for a full disk."""
        if self.book.closed:
            return
        try:
            self._write(event)
        except (OSError, TraceError) as error:
            self.book.closed = True
            _log.error("recording failed (%s): requests pass unrecorded from here on", error)

    def view(self, scope: str | None = None) -> GatewayView:
        """A picture of the groups of one client scope, or of all (None)."""
        return gateway_view(self.book, self.config, self.book.clock(), scope=scope)

    def drain(self) -> None:
        """Take no more requests for the model server, so that what is under way can end."""
        self._proxy.drain()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection as ASGI asks for it."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            self.counts.in_flight += 1
            try:
                await self._serve(scope, receive, send)
            finally:
                self.counts.in_flight -= 1

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        sweeper = asyncio.create_task(self._sweep())
        await send({"type": "lifespan.startup.complete"})
        try:
            await receive()
        finally:
            sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sweeper
            self._upstream.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.book.sweep()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, headers = scope["raw_path"], scope["headers"]
        exchange = Exchange(scope["method"], path, scope["query_string"], headers, b"", send)
        try:
            check_request(self.config, exchange.method, path, headers)
            owner = scope_of(self.config.clients, path, headers)
            address, exchange.path = self._address(path, headers)
            exchange.body = await read_request_body(receive, headers, self.config.limits)
            if exchange.path.startswith(b"/v1/"):
                await self._proxy.serve(exchange, receive, owner, address)
            else:
                inner = {**scope, "state": {"owner": owner}}
                await self._control(inner, _told_again(exchange.body), send)
        except Refused as refused:
            await self._refuse(exchange, refused.refusal)
        except ClientGone:
            self.counts.requests["client_gone"] += 1

    def _address(self, path: bytes, headers: RawHeaders) -> tuple[Address | None, bytes]:
        try:
            return read_address(path, headers, self.config.group_size)
        except BadAddress as error:
            raise Refused(Refusal(400, "bad_group_address", str(error))) from None

    async def _refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        self.counts.requests["refused"] += 1
        self.counts.refused[refusal.code] += 1
        if not exchange.started:
            await exchange.refuse(refusal)


def _told_again(body: bytes) -> Receive:
    """An ASGI channel whose body has been read before."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
