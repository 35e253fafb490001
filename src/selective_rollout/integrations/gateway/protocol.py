"""Limits on the head of a request, which uvicorn's fast parser leaves to its user."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from selective_rollout.integrations.gateway.config import Limits


class HeadTooLarge(Exception):
    """More than a head may have; the parser turns it into a 400 and the connection ends."""


class BoundedProtocol(HttpToolsProtocol):
    """HTTP of one connection: a head that is too large, or takes too long, ends it."""

    limits = Limits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._in_head = True
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Give the first head a deadline."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the deadline."""
        self._head_came()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Begin to count."""
        self._head_bytes, self._in_head = 0, True
        self._expect_head()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count the target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header; trailers behind a body are no headers, and came too late to be checked."""
        self._count(len(name) + len(value))
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is here."""
        self._in_head = False
        self._head_came()
        super().on_headers_complete()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self.limits.header_bytes:
            raise HeadTooLarge

    def _expect_head(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.limits.body_s, self._give_up)

    def _head_came(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        self.transport.close()


def bounded(limits: Limits) -> type[BoundedProtocol]:
    """The protocol with the limits of one gateway."""
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits})
