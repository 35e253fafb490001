"""One end of an HTTP/1.1 connection that carries small whole messages, with bounds on size and time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import h11

_READ: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one end may cost the other."""

    head_bytes: int = 16 * 1024
    body_bytes: int = 4 * 1024 * 1024
    connections: int = 4096
    body_s: float = 10.0
    """Longest wait for the rest of a message that has begun."""


class TooLarge(Exception):
    """A message is larger than its bound."""


class Connection:
    """Sends and receives whole messages.

    All methods raise ConnectionError if the other end is gone or does not speak HTTP, and TimeoutError if the
    rest of a message takes too long.
    """

    def __init__(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        role: type[h11.CLIENT] | type[h11.SERVER],
        limits: Limits,
    ) -> None:
        self._reader, self._writer = streams
        self._limits = limits
        self._h11 = h11.Connection(role, max_incomplete_event_size=limits.head_bytes)

    @property
    def reusable(self) -> bool:
        """Whether both sides of the last exchange are complete, and another one may follow."""
        return self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE

    def reuse(self) -> None:
        """Begin the next exchange."""
        self._h11.start_next_cycle()

    async def send(self, head: h11.Request | h11.Response, body: bytes) -> None:
        """Send a message."""
        events = (head, h11.Data(data=body), h11.EndOfMessage())
        try:
            self._writer.write(b"".join(self._h11.send(event) or b"" for event in events))
        except h11.LocalProtocolError as error:
            raise ConnectionError(str(error)) from error
        await self._writer.drain()

    async def receive(self) -> tuple[h11.Request | h11.Response, bytes] | None:
        """Wait for a message; None if the other end has closed instead.

        Raises:
            TooLarge: its body is larger than its bound.
        """
        head = await self._event()
        if not isinstance(head, h11.Request | h11.Response):
            return None
        body = bytearray()
        async with asyncio.timeout(self._limits.body_s):
            while isinstance(event := await self._event(), h11.Data):
                body += event.data
                if len(body) > self._limits.body_bytes:
                    raise TooLarge(f"the message is larger than {self._limits.body_bytes} bytes")
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionError("closed in the middle of a message")
        return head, bytes(body)

    def abort(self) -> None:
        """Close at once."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close once all is sent."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _event(self) -> object:
        data = b"-"
        try:
            while (event := self._h11.next_event()) is h11.NEED_DATA:
                data = await self._reader.read(_READ)
                self._h11.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise ConnectionError(str(error) if data else "the other end closed the connection") from error
        return event
