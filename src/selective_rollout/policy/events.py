"""Reading a stream of server-sent events (WHATWG HTML, section 9.2) as the JSON it carries.

The SDK's own reader leaves its generators half read, so that the garbage collector closes them and, where the
event loop has gone by then, not without noise. What is begun here is always read to its end.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import anyio
import openai

from selective_rollout.errors import PolicyError

_DONE: Final = b"[DONE]"
_MOST_EVENT_BYTES: Final = 64 * 1024 * 1024
_TAIL_TIMEOUT_S: Final = 0.1
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")
_BOM: Final = b"\xef\xbb\xbf"


class EventParser:
    """Splits a stream of bytes, which may break anywhere, into the data of its events.

    Lines other than `data:` carry nothing that chat completions need. An event that the stream's end cuts off
    is dropped, as the standard wants.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0
        self._at_start = True
        self._after_return = False

    def feed(self, part: bytes) -> list[bytes]:
        """Take in the next bytes and return the data of the events that they complete.

        Raises:
            PolicyError: kind "protocol" if one event is larger than 64 MiB.
        """
        if not part:
            return []
        if self._after_return:
            part = part.removeprefix(b"\n")
        self._after_return = part.endswith(b"\r")
        head, *lines = _LINE_END.split(part)
        self._line.append(head)
        events = []
        for line in lines:
            if (event := self._take(b"".join(self._line))) is not None:
                events.append(event)
            self._line = [line]
        self._size += len(self._line[-1])
        if self._size > _MOST_EVENT_BYTES:
            raise PolicyError("one event of the answer is larger than 64 MiB", "protocol")
        return events

    def _take(self, line: bytes) -> bytes | None:
        if self._at_start:
            line, self._at_start = line.removeprefix(_BOM), False
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
                self._size += len(value)
            return None
        data, self._data, self._size = self._data, [], 0
        return b"\n".join(data) if data else None


class ChunkStream(AsyncIterator[object]):
    """The decoded chunks of one streamed answer; `aclose` must be awaited whatever happened.

    Iterating raises openai.APIError for an error event, PolicyError of kind "protocol" for what is no JSON,
    and what the SDK's HTTP client raises.
    """

    def __init__(self, answer: openai.AsyncStream[object]) -> None:
        self._response: Any = answer.response  # of httpx or of httpx2
        self._parts: AsyncIterator[bytes] = self._response.aiter_bytes()
        self._parser = EventParser()
        self._events: deque[bytes] = deque()
        self._done = False

    async def __anext__(self) -> object:
        while not self._events:
            if self._done:
                raise StopAsyncIteration
            self._events.extend(self._parser.feed(await anext(self._parts)))
        event = self._events.popleft()
        if event.startswith(_DONE):
            await self._read_tail()
            raise StopAsyncIteration
        with reading_json():
            chunk = json.loads(event)
        if isinstance(chunk, dict) and chunk.get("error"):
            error = chunk["error"]
            message = error.get("message") if isinstance(error, dict) else None
            raise openai.APIError(
                str(message or "an error inside the stream"), self._response.request, body=error
            )
        return chunk

    async def aclose(self) -> None:
        """Close the connection unless the answer was read whole, and end the reading of it."""
        with anyio.CancelScope(shield=True):
            await self._response.aclose()
            with suppress(Exception):  # on a closed connection the end is an error, one way or another
                async for _ in self._parts:
                    pass

    async def _read_tail(self) -> None:
        """Read what follows the last event if it comes at once: only then is the connection used again."""
        self._done = True
        self._events.clear()
        with suppress(Exception):  # a complete answer stays one
            async with asyncio.timeout(_TAIL_TIMEOUT_S):
                async for _ in self._parts:
                    pass


@contextmanager
def reading_json() -> Iterator[None]:
    """Name what a server sent that Python's JSON reader gives up on: bad syntax, endless numbers or depth."""
    try:
        yield
    except UnicodeEncodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"a part of the answer cannot be read as JSON ({error})", "protocol") from None
