"""The small requests from which `doctor` draws its findings, each measured where it can be measured."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar
from uuid import uuid4

from selective_rollout.errors import PolicyError
from selective_rollout.policy.abort import Aborter
from selective_rollout.policy.cancellation import finish_cleanup
from selective_rollout.policy.constrain import constraint_body, unwrap_action
from selective_rollout.policy.endpoint import Endpoint
from selective_rollout.policy.failures import Failure
from selective_rollout.policy.request import Request
from selective_rollout.policy.server_metrics import ServerCounters, read_counters, read_when_idle
from selective_rollout.policy.stream import Assembly
from selective_rollout.policy.transport import REQUEST_ERRORS, Transport
from selective_rollout.types import Usage

T = TypeVar("T")
Way: TypeAlias = Literal["choice", "grammar", "json_schema", "guided_choice"]

SHORT: Final = 16
"""Tokens of a probe that only looks at the form of an answer."""
REUSES: Final = 10
"""Streams sent over one connection."""
_CLOSE: Final = {"Connection": "close"}
"""llama.cpp drops a connection after each stream that it had promised to keep."""
_TALK: Final = "Write a long list of random words."
_WORDS: Final = ("zebra seventeen", "quartz forty")
_READ_BEFORE_CUT: Final = 8
_LONG_S: Final = 4.0
_FEWEST, _MOST = 64, 400
_IDLE_WITHIN_S: Final = 30.0
_STARTED_WITHIN_S: Final = 10.0
_POLL_S: Final = 0.01
_PROMPT_WORDS: Final = 100


@dataclass(frozen=True, slots=True)
class StreamFinding:
    """One short stream."""

    text: str
    pieces: int
    """Chunks that carried anything generated."""
    usage: Usage
    first_token_s: float | None
    tokens_per_s: float | None
    """After the first token; None if the answer came in one piece."""


@dataclass(frozen=True, slots=True)
class StopFinding:
    """What a long answer came to after its client had gone, by the server's own counters."""

    stopped: bool
    """False: it was generated to its end."""
    idle_after_s: float
    """From leaving to the moment when nothing was being generated."""
    tokens_after: int | None
    """Tokens generated beyond those received; None if none could be received."""


@dataclass(frozen=True, slots=True)
class AbortFinding:
    """What aborting a long answer by its id did."""

    offered: bool
    ended_after_s: float | None = None
    """From the order to the end of the answer; None if the answer ran on."""
    exact_usage: bool = False
    """The answer still brought its usage."""
    tokens_after: int | None = None
    """Completion tokens by that usage, beyond those received when the order went out."""


class Probe:
    """Sends the requests; each raises one of REQUEST_ERRORS where the server answers with an error."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self.transport = Transport(endpoint)
        self.model = endpoint.model
        self._timeout_s = timeout_s

    async def attempt(self, request: Awaitable[T]) -> T | Failure:
        """Await a request, and return why it failed if it does."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await request
        except REQUEST_ERRORS as error:
            return self.transport.describe(error)

    async def version(self) -> str | None:
        """What the server calls its version: vLLM at /version, llama.cpp in /props."""
        for path, name in (("/version", "version"), ("/props", "build_info")):
            answer = await self.attempt(self.transport.get_root(path))
            try:
                fields = json.loads(answer) if isinstance(answer, str) else None
            except ValueError:
                continue
            if isinstance(fields, Mapping) and isinstance(fields.get(name), str):
                return str(fields[name])
        return None

    async def stream(self, seed: int) -> StreamFinding:
        """Stream one short answer to its end."""
        assembly, times = Assembly(), [time.monotonic()]
        body = self._body(seed=seed, stream=True, stream_options={"include_usage": True})
        async with self.transport.stream(body, _CLOSE) as chunks:
            async for chunk in chunks:
                if assembly.add_chunk(chunk):
                    times.append(time.monotonic())
        (choice,) = assembly.finish()
        pieces = len(times) - 1
        took = times[-1] - times[1] if pieces > 1 else 0.0
        return StreamFinding(
            str(choice.message),
            pieces,
            assembly.usage(),
            times[1] - times[0] if pieces else None,
            (pieces - 1) / took if took else None,
        )

    async def fetch(self, **fields: object) -> Mapping[str, Any]:
        """Fetch one whole answer with these fields in the request."""
        answer = await self.transport.fetch(self._body(**fields), _CLOSE)
        if not isinstance(answer, Mapping):
            raise PolicyError("the answer is no chat completion", "protocol")
        return answer

    async def keeps_to(self, way: Way) -> bool:
        """Whether an answer keeps to two odd texts; a field that a server does not know is ignored."""
        fields = {"guided_choice": list(_WORDS)} if way == "guided_choice" else constraint_body(way, _WORDS)
        assembly = Assembly()
        assembly.add_response(await self.fetch(max_tokens=2 * SHORT, **fields))
        (choice,) = assembly.finish()
        return unwrap_action(choice.message, _WORDS).get("content") in _WORDS

    async def cached_tokens(self) -> Usage:
        """Usage of a prompt that was sent just before; a salt keeps earlier probes out of it."""
        prompt = f"{uuid4()} " + " ".join(f"word{i % 7}" for i in range(_PROMPT_WORDS))
        messages = [{"role": "user", "content": prompt}]
        assembly = Assembly()
        for _ in range(2):
            assembly = Assembly()
            assembly.add_response(await self.fetch(messages=messages, max_tokens=1))
        return assembly.usage()

    async def dropped_connections(self) -> int:
        """Of `REUSES` streams on kept connections, those that met a connection already closed."""
        dropped = 0
        body = self._body(max_tokens=1, stream=True)
        for _ in range(REUSES):
            try:
                async with self.transport.stream(body, {}) as chunks:
                    async for _chunk in chunks:
                        pass
            except REQUEST_ERRORS as error:
                failure = self.transport.describe(error)
                if not failure.unanswered:
                    raise
                dropped += 1
        return dropped

    async def stop_stream(self, before: ServerCounters, tokens_per_s: float | None) -> StopFinding | None:
        """Leave a long stream after a few tokens, and watch the server; None if it had ended by then."""
        length, received = _length(tokens_per_s), 0
        assembly = Assembly()
        async with self.transport.stream(self._long(length, stream=True), _CLOSE) as chunks:
            async for chunk in chunks:
                received += assembly.add_chunk(chunk)
                if received >= _READ_BEFORE_CUT:
                    break
        return await self._after_leaving(before, length, received)

    async def stop_whole(self, before: ServerCounters, tokens_per_s: float | None) -> StopFinding | None:
        """Leave a long answer that is not streamed while it is generated; None if that was missed."""
        length = _length(tokens_per_s)
        answer = asyncio.create_task(finish_cleanup(self.transport.fetch(self._long(length), _CLOSE)))
        try:
            if not await self._is_generating(answer):
                return None
            await asyncio.sleep(_LONG_S / 8)
            if answer.done():
                return None
        finally:
            answer.cancel()
            await asyncio.wait([answer])
            if not answer.cancelled():
                answer.exception()
        return await self._after_leaving(before, length, None)

    async def abort(self, tokens_per_s: float | None) -> AbortFinding:
        """Abort a long stream by its id after a few tokens."""
        aborter = Aborter(self.transport)
        # Never an empty list: another server's path of this kind takes that for "abort everything".
        if not await aborter.order(["chatcmpl-nobody"]):
            return AbortFinding(offered=False)
        length = _length(tokens_per_s)
        request = Request(self._long(length, stream=True, stream_options={"include_usage": True}), {**_CLOSE})
        request_id = aborter.name(request)
        assembly, received, ordered_at = Assembly(), 0, None
        async with self.transport.stream(request.body, request.headers) as chunks:
            async for chunk in chunks:
                if ordered_at is None:
                    received += assembly.add_chunk(chunk)
                    if received >= _READ_BEFORE_CUT:
                        ordered_at = time.monotonic()
                        await aborter.order([request_id])
                else:
                    assembly.add_chunk(chunk)
        (choice,) = assembly.finish()
        usage = assembly.usage()
        if ordered_at is None or choice.finish_reason != "abort":
            return AbortFinding(offered=True)
        exact = usage.source == "server"
        after = usage.completion - received if exact and usage.completion is not None else None
        return AbortFinding(True, time.monotonic() - ordered_at, exact, after)

    async def _is_generating(self, answer: asyncio.Task[object]) -> bool:
        """Wait until the counters show that an answer has been begun; False if it is over before."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + _STARTED_WITHIN_S
        while clock() < deadline and not answer.done():
            counters = await read_counters(self.transport)
            if counters is not None and counters.running:
                return True
            await asyncio.sleep(_POLL_S)
        return False

    async def _after_leaving(
        self, before: ServerCounters, length: int, received: int | None
    ) -> StopFinding | None:
        left_at = time.monotonic()
        after = await read_when_idle(self.transport, _IDLE_WITHIN_S)
        idle_after_s = time.monotonic() - left_at
        generated = after.since(before).completion if after is not None else None
        if after is None or generated is None:
            return None
        stopped = not after.running and generated < length
        return StopFinding(stopped, idle_after_s, None if received is None else generated - received)

    def _body(self, **fields: object) -> dict[str, object]:
        messages = [{"role": "user", "content": _TALK}]
        plain = {"model": self.model, "messages": messages, "max_tokens": SHORT, "temperature": 1.0}
        return {**plain, **fields}

    def _long(self, length: int, **fields: object) -> dict[str, object]:
        # Only servers whose counters are read get this; both of them know the field.
        return self._body(max_tokens=length, ignore_eos=True, **fields)


def _length(tokens_per_s: float | None) -> int:
    """Tokens of an answer that takes a few seconds at this speed."""
    return round(min(_MOST, max(_FEWEST, _LONG_S * (tokens_per_s or 0.0))))
