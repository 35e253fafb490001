"""HTTP/1.1 connections on asyncio and h11, with the one thing test servers usually lack.

While a response is being made, the connection keeps reading, so that a client that leaves is noticed at once
and not at the next write.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, TypeAlias

import h11

_READ: Final = 64 * 1024
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER value that makes closing send RST."""

Headers: TypeAlias = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one client may cost; defaults suit tests."""

    head_bytes: int = 32 * 1024
    body_bytes: int = 8 * 1024 * 1024
    connections: int = 1024
    idle_s: float = 30.0
    """Longest wait for the next request on a connection."""
    read_s: float = 10.0
    """Longest wait for the rest of a request that has begun."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request, fully read."""

    method: str
    path: str
    """Without the query."""
    headers: Mapping[str, str]
    """Lower-case names."""
    body: bytes


class Exchange:
    """One request and the response being made to it."""

    def __init__(self, request: HttpRequest, connection: Connection) -> None:
        self.request = request
        self.connected = True
        """False once the client has left or the connection was reset."""
        self.status: int | None = None
        """Status sent; None as long as nothing was."""
        self.keep_alive = True
        """Set to False to close the connection after the response, without saying so."""
        self.on_disconnect: Callable[[], None] | None = None
        """Called once when the client leaves before the response is complete."""
        self._connection = connection

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers."""
        if await self._send(_head(status, headers)):
            self.status = status

    async def write(self, data: bytes) -> bool:
        """Send a part of the body; False if nobody is there any more."""
        return await self._send(h11.Data(data=data))

    async def end(self) -> None:
        """Complete the response."""
        await self._send(h11.EndOfMessage())

    async def respond(self, status: int, body: bytes, headers: Headers) -> bool:
        """Send a whole response; a HEAD request gets its head only."""
        head = _head(status, [*headers, ("Content-Length", str(len(body)))])
        shown = b"" if self.request.method == "HEAD" else body
        delivered = await self._send(head, h11.Data(data=shown), h11.EndOfMessage())
        if delivered:
            self.status = status
        return delivered

    def reset(self) -> None:
        """Break the connection with RST, as a crashed server or an impatient proxy does."""
        self.connected = False
        self._connection.reset()

    def left(self) -> None:
        """Note that the client has gone."""
        if self.connected:
            self.connected = False
            if self.on_disconnect is not None:
                self.on_disconnect()

    async def _send(self, *events: h11.Event) -> bool:
        if self.connected:
            try:
                await self._connection.send(*events)
            except ConnectionError:
                self.left()
        return self.connected


Handler: TypeAlias = Callable[[Exchange], Awaitable[None]]


class _Refused(Exception):
    """The request breaks HTTP or a limit."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Connection:
    """One client connection: reads requests one by one and lets the handler answer them."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler, limits: Limits
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._limits = limits
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)

    async def serve(self) -> None:
        """Answer requests until either side has had enough."""
        try:
            while await self._serve_one():
                self._h11.start_next_cycle()
        except (TimeoutError, ConnectionError):
            self._writer.transport.abort()
        finally:
            self._writer.close()
            with suppress(ConnectionError):
                await self._writer.wait_closed()

    async def send(self, *events: h11.Event) -> None:
        """Write h11 events together."""
        self._writer.write(b"".join(self._h11.send(event) or b"" for event in events))
        await self._writer.drain()

    def reset(self) -> None:
        """Close with RST."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._writer.transport.abort()

    async def _serve_one(self) -> bool:
        """Answer one request; True if the connection can take another."""
        try:
            request = await self._read_request()
        except (_Refused, h11.RemoteProtocolError) as error:
            await self._refuse(error)
            return False
        if request is None:
            return False
        exchange = Exchange(request, self)
        await self._handle(exchange)
        return exchange.connected and exchange.keep_alive and self._h11.our_state is h11.DONE

    async def _read_request(self) -> HttpRequest | None:
        """Read a request, or None if the client closed instead."""
        async with asyncio.timeout(self._limits.idle_s):
            head = await self._next_event()
        if not isinstance(head, h11.Request):
            return None
        body = bytearray()
        async with asyncio.timeout(self._limits.read_s):
            if self._h11.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            while isinstance(event := await self._next_event(), h11.Data):
                body += event.data
                if len(body) > self._limits.body_bytes:
                    raise _Refused(413, f"the body is larger than {self._limits.body_bytes} bytes")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        path = head.target.decode("latin-1").partition("?")[0]
        return HttpRequest(head.method.decode("latin-1"), path, headers, bytes(body))

    async def _next_event(self) -> object:
        while (event := self._h11.next_event()) is h11.NEED_DATA:
            self._h11.receive_data(await self._reader.read(_READ))
        return event

    async def _handle(self, exchange: Exchange) -> None:
        """Run the handler while watching for the client to leave."""
        watcher = asyncio.create_task(self._watch(exchange))
        try:
            await self._handler(exchange)
        finally:
            watcher.cancel()
            await asyncio.wait({watcher})

    async def _watch(self, exchange: Exchange) -> None:
        """Read on during a response: an early next request is kept, the end of the stream is a client gone.

        A client that only closes its sending side is taken as gone too, as uvicorn does.
        """
        early = 0
        try:
            while early <= self._limits.head_bytes and (data := await self._reader.read(_READ)):
                early += len(data)
                self._h11.receive_data(data)
        except ConnectionError:
            pass
        self._writer.transport.abort()
        exchange.left()

    async def _refuse(self, error: Exception) -> None:
        status = error.status if isinstance(error, _Refused) else getattr(error, "error_status_hint", 400)
        body = str(error).encode()
        headers = [
            ("Content-Length", str(len(body))),
            ("Content-Type", "text/plain"),
            ("Connection", "close"),
        ]
        await self.send(_head(status, headers), h11.Data(data=body), h11.EndOfMessage())


def _head(status: int, headers: Headers) -> h11.Response:
    return h11.Response(status_code=status, headers=list(headers), reason=HTTPStatus(status).phrase)


class HttpServer:
    """Listens on 127.0.0.1 and keeps track of its connections."""

    def __init__(self, handler: Handler, limits: Limits) -> None:
        self._handler = handler
        self._limits = limits
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self._closing = False

    async def start(self, port: int) -> int:
        """Listen, and return the port that was bound.

        Raises:
            OSError: the port cannot be bound.
        """
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port, limit=_READ, backlog=512)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening, break what is open, and wait until nothing is left."""
        if self._server is None:
            return
        self._closing = True
        self._server.close()
        for task, writer in self._open.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closing or len(self._open) >= self._limits.connections:
            writer.transport.abort()
            return
        task = asyncio.create_task(Connection(reader, writer, self._handler, self._limits).serve())
        self._open[task] = writer
        task.add_done_callback(self._open.pop)
