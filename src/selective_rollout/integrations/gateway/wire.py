"""HTTP/1.1 to the model server: one request at a time on a connection, bytes in and out as they are.

A client library would read environment variables, follow redirects, keep cookies, unpack answers and rewrite
addresses; a gateway must do none of that, and has under a millisecond for everything. llhttp parses.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from typing import Final, cast

import httptools

from selective_rollout.integrations.gateway.headers import Headers, first

_HIGH_WATER: Final = 2**18
_MOST_HEADER_BYTES: Final = 2**18
_CONTINUE, _SWITCHING, _FIRST_FINAL = 100, 101, 200


class WireError(Exception):
    """The exchange with the server failed; the text is fit for a client."""


class ConnectionBroke(WireError):
    """The server closed the connection, or spoke something else than HTTP."""


class Connection(asyncio.Protocol):
    """A connection to the server, and the answer that is coming in on it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.reused = False
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._head_only = False
        self._has_head = False
        self._complete = False
        self._broken = False
        self._header_bytes = 0
        self._chunks: list[bytes] = []
        self._waiting_bytes = 0
        self._paused = False
        self._changed: asyncio.Future[None] | None = None

    @property
    def answered(self) -> bool:
        """Whether anything of an answer has come."""
        return self._has_head or self._header_bytes > 0 or self.status > 0

    @property
    def complete(self) -> bool:
        """Whether the whole answer has come, and all of its body was handed out."""
        return self._complete and not self._chunks

    @property
    def reusable(self) -> bool:
        """Whether another request can follow the last one."""
        return self.complete and not self._broken and self._is_open()

    def send(self, request: bytes, *, head_only: bool) -> None:
        """Send a request.

        Args:
            request: all of its bytes.
            head_only: the answer has no body, whatever its headers say.
        """
        self.status, self.headers, self._header_bytes = 0, [], 0
        self._has_head = self._complete = False
        self._head_only = head_only
        assert self._transport is not None
        self._transport.write(request)

    async def head(self, silence_s: float) -> None:
        """Wait for status and headers.

        Raises:
            WireError: they do not come.
        """
        while not self._has_head:
            await self._change(silence_s)

    async def body(self, silence_s: float) -> AsyncIterator[bytes]:
        """Iterate over the body as it comes; chunks that came together stay together.

        Raises:
            WireError: it breaks off.
        """
        while True:
            while self._chunks:
                chunk = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
                self._chunks.clear()
                self._waiting_bytes = 0
                self._resume()
                yield chunk
            if self._complete:
                return
            await self._change(silence_s)

    def close(self) -> None:
        """Close at once; the server sees that nobody reads on."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not derived from it

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._break()

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`; a body without a length ends with its connection."""
        endless = first(self.headers, b"content-length") is None and b"chunked" not in (
            first(self.headers, b"transfer-encoding") or b""
        )
        if self._has_head and not self._complete and endless and error is None:
            self._complete = True
        self._broken = True
        self._wake()

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools; trailers are of no interest."""
        if self._has_head:
            return
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MOST_HEADER_BYTES:
            raise ConnectionBroke
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """See httptools."""
        self.status = self._parser.get_status_code()
        if _CONTINUE <= self.status < _FIRST_FINAL:
            if self.status == _SWITCHING:
                raise ConnectionBroke
            self.headers = []
            return
        self._has_head = True
        if self._head_only:
            self._complete = self._broken = True  # the parser waits for a body that will not come
        self._wake()

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._chunks.append(body)
        self._waiting_bytes += len(body)
        if self._waiting_bytes > _HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        """See httptools."""
        if self._has_head:
            self._complete = True
            self._broken |= not self._parser.should_keep_alive()
            self._wake()

    def _break(self) -> None:
        self._broken = True
        self.close()
        self._wake()

    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def _resume(self) -> None:
        if self._paused and self._waiting_bytes < _HIGH_WATER // 2 and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    async def _change(self, silence_s: float) -> None:
        if self._broken:
            raise ConnectionBroke("the connection broke")
        self._changed = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(silence_s):
                await self._changed
        except TimeoutError:
            raise WireError("no answer in time") from None
        finally:
            self._changed = None

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


class Pool:
    """Connections to one server; those that lie idle are used again, the most recent first.

    Args:
        host: name or address.
        port: its port.
        tls: how to secure connections; None: plain.
        connect_s: longest wait for one.
        most_idle: more are closed.
    """

    def __init__(
        self, host: str, port: int, tls: ssl.SSLContext | None, *, connect_s: float, most_idle: int
    ) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._connect_s = connect_s
        self._most_idle = most_idle
        self._idle: list[Connection] = []

    async def take(self, *, fresh: bool = False) -> Connection:
        """A connection that nobody else uses.

        Args:
            fresh: make a new one.

        Raises:
            WireError: the server cannot be reached.
        """
        while self._idle and not fresh:
            connection = self._idle.pop()
            if connection.reusable:
                connection.reused = True
                return connection
            connection.close()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    Connection, self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            raise WireError("no connection in time") from None
        except OSError:
            raise WireError("no connection; is it running?") from None
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection whose answer has been read to its end, and close any other."""
        if connection.reusable and len(self._idle) < self._most_idle:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close those that lie idle."""
        while self._idle:
            self._idle.pop().close()
