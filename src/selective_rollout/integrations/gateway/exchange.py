"""One request of a client, with its body read, and the channel back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from selective_rollout.integrations.gateway.address import RawHeaders
from selective_rollout.integrations.gateway.config import Limits
from selective_rollout.integrations.gateway.flight import Receive
from selective_rollout.integrations.gateway.headers import Headers, first
from selective_rollout.integrations.gateway.refusal import Refusal, Refused

Send = Callable[[Any], Awaitable[None]]


class ClientGone(Exception):
    """The client left before its request was complete."""


@dataclass(slots=True)
class Exchange:
    """A request and its answer, as far as it has been sent."""

    method: str
    path: bytes
    """Raw path; behind the gateway's own prefix, from /v1 on."""
    query: bytes
    headers: RawHeaders
    """Names in lower case."""
    body: bytes
    send: Send
    started: bool = False
    ended: bool = False

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers."""
        self.started = True
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Send a part of the body."""
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last part of the body."""
        self.ended = True
        await self.send({"type": "http.response.body", "body": data, "more_body": False})

    async def refuse(self, refusal: Refusal) -> None:
        """Answer with a refusal, as the whole answer."""
        await self.start(refusal.status, refusal.headers)
        await self.end(refusal.body)


async def read_request_body(receive: Receive, headers: RawHeaders, limits: Limits) -> bytes:
    """Read a request's body.

    Raises:
        Refused: it is too large, or takes too long.
        ClientGone: the client left.
    """
    declared = first(headers, b"content-length")
    if declared is not None and int(declared) > limits.body_bytes:
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.body_s):
            return await _parts(receive, limits)
    except TimeoutError:
        raise Refused(Refusal(408, "body_timeout", "the request's body did not come in time")) from None


async def _parts(receive: Receive, limits: Limits) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientGone
        part = event.get("body", b"")
        size += len(part)
        if size > limits.body_bytes:
            raise _too_large(limits)
        parts.append(part)
        if not event.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limits: Limits) -> Refused:
    return Refused(Refusal(413, "body_too_large", f"the body is larger than {limits.body_bytes} bytes"))
