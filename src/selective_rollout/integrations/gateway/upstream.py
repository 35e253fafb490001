"""The one model server behind the gateway."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

from selective_rollout.integrations.gateway.config import Limits
from selective_rollout.integrations.gateway.headers import Headers
from selective_rollout.integrations.gateway.wire import Connection, ConnectionBroke, Pool
from selective_rollout.policy.endpoint import Endpoint

_CONNECT_S: Final = 10.0
_PORTS: Final = {"http": 80, "https": 443}
_KEPT: Final = 256


class Answering:
    """An answer whose status and headers are here."""

    def __init__(self, connection: Connection, silence_s: float) -> None:
        self.status = connection.status
        self.headers = connection.headers
        self._connection = connection
        self._silence_s = silence_s

    @property
    def complete(self) -> bool:
        """Whether nothing more comes; see `Connection.complete`."""
        return self._connection.complete

    def body(self) -> AsyncIterator[bytes]:
        """Iterate over the body as it comes; see `Connection.body`."""
        return self._connection.body(self._silence_s)

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([chunk async for chunk in self.body()])


class Upstream:
    """Sends requests to one server; on one event loop.

    Args:
        endpoint: its address, up to and including /v1.
        limits: how long it may be silent.
    """

    def __init__(self, endpoint: Endpoint, limits: Limits) -> None:
        parts = urlsplit(endpoint.base_url)
        self.host = parts.netloc.encode("ascii")
        """For the Host header."""
        self._prefix = parts.path.rstrip("/").encode("ascii")
        self._silence_s = limits.silence_s
        self._pool = Pool(
            parts.hostname or "",
            parts.port or _PORTS[parts.scheme],
            ssl.create_default_context() if parts.scheme == "https" else None,
            connect_s=_CONNECT_S,
            most_idle=_KEPT,
        )

    @asynccontextmanager
    async def send(
        self,
        method: str,
        path: bytes,
        query: bytes,
        headers: Headers,
        body: bytes,
        on_sent: Callable[[], None] = lambda: None,
    ) -> AsyncIterator[Answering]:
        """Send a request; leaving the block gives back its connection, or closes it if the answer goes on.

        Args:
            method: the HTTP method.
            path: raw path from /v1 on.
            query: raw query, without the question mark.
            headers: all of them, the host included.
            body: the whole body.
            on_sent: called each time the request has been sent, before its answer is waited for.

        Raises:
            WireError: the server cannot be reached, or breaks off.
        """
        target = self._prefix + path.removeprefix(b"/v1") + (b"?" + query if query else b"")
        lines = [method.encode("ascii") + b" " + target + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in headers]
        request = b"\r\n".join([*lines, b"", body])
        connection = await self._asked(request, on_sent, head_only=method == "HEAD")
        try:
            yield Answering(connection, self._silence_s)
        finally:
            self._pool.give_back(connection)

    def close(self) -> None:
        """Close all connections that lie idle."""
        self._pool.close()

    async def _asked(self, request: bytes, on_sent: Callable[[], None], *, head_only: bool) -> Connection:
        """Send a request and wait for the head of its answer.

        A kept connection may have been closed by the server in this very moment; then another one is made,
        once, since nothing had come back.
        """
        connection = await self._pool.take()
        try:
            return await self._ask(connection, request, on_sent, head_only=head_only)
        except ConnectionBroke:
            if not connection.reused or connection.answered:
                raise
        return await self._ask(await self._pool.take(fresh=True), request, on_sent, head_only=head_only)

    async def _ask(
        self, connection: Connection, request: bytes, on_sent: Callable[[], None], *, head_only: bool
    ) -> Connection:
        try:
            connection.send(request, head_only=head_only)
            on_sent()
            await connection.head(self._silence_s)
        except BaseException:
            connection.close()
            raise
        return connection
