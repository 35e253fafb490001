"""Listening to an answer on its way to the client, without changing it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, Protocol

from selective_rollout.integrations.gateway.answer import Answer, read_stream, read_whole
from selective_rollout.integrations.gateway.conversation import Api

OnAnswer = Callable[[Answer | None], None]

_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LAST: Final = (b"[DONE]", b'"response.completed"', b'"response.incomplete"')
_EVENT: Final = re.compile(rb".*?(?:\r\n\r\n|\n\n|\r\r)", re.DOTALL)
_NO_CHOICES: Final = re.compile(rb'"choices"\s*:\s*\[\s*\]')


class Listener(Protocol):
    """Sees every byte of an answer before the client does, and reads it as soon as the client has it.

    Nothing is awaited between the sending and the reading, so whatever a client sends because of an answer
    finds that answer read; and nobody waits for it.
    """

    def feed(self, chunk: bytes) -> bytes:
        """Take in a part; returns what may go to the client now."""

    def end(self) -> bytes:
        """The answer is complete; returns what is left for the client."""

    def sent(self) -> None:
        """What `feed` returned is on its way to the client."""

    def close(self) -> None:
        """Nothing more comes, and all has been sent: the answer is complete, broke off, or was ended."""


class WholeListener:
    """Holds a JSON answer back until it is complete, so that the client cannot go on with half of it.

    Args:
        api: the endpoint.
        n: choices asked for.
        most: a longer answer is let through unread.
        on_answer: told once what came of the request.
    """

    def __init__(self, api: Api, n: int, most: int, on_answer: OnAnswer) -> None:
        self._api, self._n, self._most = api, n, most
        self._on_answer = on_answer
        self._parts: list[bytes] = []
        self._size = 0
        self._given_up = False
        self._whole: bytes | None = None

    def feed(self, chunk: bytes) -> bytes:
        """See `Listener.feed`."""
        if self._given_up:
            return chunk
        self._parts.append(chunk)
        self._size += len(chunk)
        if self._size <= self._most:
            return b""
        self._given_up = True
        return b"".join(self._parts)

    def end(self) -> bytes:
        """See `Listener.end`."""
        if self._given_up:
            return b""
        self._whole = b"".join(self._parts)
        return self._whole

    def sent(self) -> None:
        """See `Listener.sent`."""

    def close(self) -> None:
        """See `Listener.close`."""
        whole = self._whole
        self._on_answer(read_whole(self._api, whole, self._n) if whole is not None else None)


class StreamListener:
    """Lets whole events through as they come, and reads the answer behind its last event.

    Args:
        api: the endpoint.
        n: choices asked for.
        most: a longer stream is let through unread.
        on_answer: told once what came of the request.
        hide_usage: take out the usage chunks that the client did not ask for.
    """

    def __init__(self, api: Api, n: int, most: int, on_answer: OnAnswer, *, hide_usage: bool) -> None:
        self._api, self._n, self._most = api, n, most
        self._on_answer: OnAnswer | None = on_answer
        self._hide_usage = hide_usage
        self._seen: list[bytes] = []
        self._size = 0
        self._open = b""
        """The beginning of an event that has not come whole."""
        self._has_last = False

    def feed(self, chunk: bytes) -> bytes:
        """See `Listener.feed`."""
        buffer = self._open + chunk
        end = len(buffer) if buffer.endswith(_ENDS) else max(_behind(buffer, mark) for mark in _ENDS)
        if len(buffer) - end > self._most:
            end = len(buffer)
        events, self._open = buffer[:end], buffer[end:]
        return self._let_through(events) if events else b""

    def end(self) -> bytes:
        """See `Listener.end`."""
        rest, self._open = self._open, b""
        return self._let_through(rest) if rest else b""

    def sent(self) -> None:
        """See `Listener.sent`; clients go on at the last event, before the end of the body."""
        if self._has_last:
            self.close()

    def close(self) -> None:
        """See `Listener.close`."""
        tell, self._on_answer = self._on_answer, None
        if tell is not None:
            whole = self._size <= self._most
            tell(read_stream(self._api, b"".join(self._seen), self._n) if whole else None)
            self._seen.clear()

    def _let_through(self, events: bytes) -> bytes:
        self._size += len(events)
        if self._size <= self._most:
            self._seen.append(events)
        self._has_last = self._has_last or any(word in events for word in _LAST)
        return without_usage(events) if self._hide_usage and _NO_CHOICES.search(events) else events


def without_usage(events: bytes) -> bytes:
    """Whole events without those that only tell the usage."""
    kept = [found[0] for found in _EVENT.finditer(events) if not _tells_usage_only(found[0])]
    return b"".join(kept)


def with_usage(body: bytes) -> bytes:
    """A request body that also asks for the usage of its stream; all other bytes stay as they are."""
    inside = body.lstrip(b" \t\r\n")
    return b'{"stream_options":{"include_usage":true},' + inside[1:]


def _tells_usage_only(event: bytes) -> bool:
    lines = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("choices") == [] and bool(value.get("usage"))


def _behind(buffer: bytes, mark: bytes) -> int:
    at = buffer.rfind(mark)
    return at + len(mark) if at >= 0 else 0
