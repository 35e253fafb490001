"""Answers one generation request from its engine, streamed or whole, with the faults asked for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from selective_rollout.testing.counters import Counters, RequestRecord
from selective_rollout.testing.faults import Fault, FaultKind
from selective_rollout.testing.generation import Emission, Generation
from selective_rollout.testing.http import Exchange
from selective_rollout.testing.personality import Personality
from selective_rollout.testing.requests import ApiError, GenerateRequest
from selective_rollout.testing.wire import JSON_HEADERS, Json, Wire, encode, error_body, usage

_SSE: Final = [("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache")]
_EMPTY_PROMISE: Final = [("Connection", "keep-alive"), ("Keep-Alive", "timeout=5, max=100")]
_BROKEN_JSON: Final = b'{"id":"chatcmpl-","choices":[{"ind'
_DONE: Final = b"[DONE]"
_INSIDE_CHARACTER: Final = re.compile(rb"[\x80-\xbf]")


@dataclass(frozen=True, slots=True)
class Job:
    """Everything needed to answer one request."""

    request: GenerateRequest
    generation: Generation
    wire: Wire
    profile: Personality
    record: RequestRecord
    counters: Counters
    fault: Fault | None
    details: bool
    """Whether usage tells the cached tokens."""
    framing: Literal["mixed", "plain"]

    def strikes(self, kind: FaultKind) -> bool:
        """Whether the fault is of this kind and its moment has come."""
        if self.fault is None or self.fault.kind != kind:
            return False
        return self.generation.done or self.generation.steps_done >= self.fault.after_steps

    @property
    def kept(self) -> int:
        """How many choices the answer shows."""
        n = len(self.generation.choices)
        kind = self.fault.kind if self.fault else None
        return {"empty_choices": 0, "fewer_choices": max(1, n - 1)}.get(kind or "", n)

    def usage(self, completion: int) -> Json:
        """Usage with the given completion tokens."""
        cached = self.record.cached_tokens if self.details else None
        details = self.details or self.profile.null_fields
        return usage(self.record.prompt_tokens, completion, cached, details=details)

    def total_usage(self) -> Json:
        """Usage of the request as the personality adds it up."""
        choices = self.generation.choices
        counted = choices if self.profile.usage_sums_choices else choices[:1]
        return self.usage(sum(choice.position for choice in counted))


async def answer_whole(exchange: Exchange, job: Job) -> None:
    """Generate to the end, then send one JSON document.

    Raises:
        ApiError: the fault of this request makes it fail.
    """
    while await job.generation.step() is not None:
        if job.strikes("error_event"):
            raise _engine_died()
    shown = job.generation.choices[: job.kept]
    body = encode(job.wire.body(shown, job.total_usage()))
    kind = job.fault.kind if job.fault else None
    if kind == "malformed_chunk":
        body = _BROKEN_JSON
    if kind == "reset_mid_response":
        await exchange.start(200, [*JSON_HEADERS, ("Content-Length", str(len(body)))])
        await exchange.write(body[: len(body) // 2])
        exchange.reset()
    elif await exchange.respond(200, body, JSON_HEADERS):
        job.counters.sent(job.record, sum(choice.position for choice in shown))


async def answer_stream(exchange: Exchange, job: Job) -> None:
    """Send server-sent events while generating; always with status 200, whatever goes wrong later."""
    await exchange.start(200, _SSE if job.profile.keeps_streams_alive else [*_SSE, *_EMPTY_PROMISE])
    writer = _EventWriter(exchange, job.framing)
    events = _Events(job)
    while (emissions := await job.generation.step()) is not None:
        if await writer.write(events.of_step(emissions)):
            job.counters.sent(job.record, sum(len(e.tokens) for e in emissions if e.index < job.kept))
        if job.strikes("reset_mid_response"):
            exchange.reset()
            return
        if job.strikes("error_event"):
            await writer.write([encode(error_body(_engine_died(), job.profile)), _DONE])
            await exchange.end()
            return
    exchange.on_disconnect = None  # all is generated: a client that closes after [DONE] leaves nothing behind
    await writer.write(events.closing())
    await exchange.end()


def _engine_died() -> ApiError:
    return ApiError(500, "the engine died in the middle of a generation (injected fault)")


class _Events:
    """Turns emissions into the payloads of events."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._kept = job.kept
        self._opened: set[int] = set()
        self._broken = False

    def of_step(self, emissions: list[Emission]) -> list[bytes]:
        """Payloads of one step."""
        payloads: list[bytes] = []
        if self._job.profile.roles_first:
            payloads += self._open(range(self._kept))
        for emission in emissions:
            if emission.index < self._kept:
                payloads += self._of_emission(emission)
        if not self._broken and self._job.strikes("malformed_chunk"):
            self._broken = True
            payloads.append(_BROKEN_JSON)
        return payloads

    def closing(self) -> list[bytes]:
        """Payloads after the last step."""
        job = self._job
        if job.request.include_usage and not job.profile.usage_chunk_per_choice:
            return [encode(job.wire.usage_chunk(job.total_usage())), _DONE]
        return [_DONE]

    def _of_emission(self, emission: Emission) -> Iterator[bytes]:
        job = self._job
        yield from self._open([emission.index])
        plan = job.generation.choices[emission.index].plan
        for chunk in job.wire.chunks(emission, plan):
            yield self._encode(chunk, emission.completion_tokens)
        per_choice = job.request.include_usage and job.profile.usage_chunk_per_choice
        if per_choice and emission.finish_reason is not None:
            yield encode(job.wire.usage_chunk(job.usage(emission.completion_tokens)))

    def _open(self, indices: range | list[int]) -> Iterator[bytes]:
        for index in indices:
            if index not in self._opened:
                self._opened.add(index)
                if (chunk := self._job.wire.role_chunk(index)) is not None:
                    yield self._encode(chunk, 0)

    def _encode(self, chunk: Json, completion: int) -> bytes:
        if self._job.request.continuous_usage:
            chunk["usage"] = self._job.usage(completion)
        return encode(chunk)


class _EventWriter:
    """Frames events and decides how they fall into writes.

    A network joins and splits events as it likes; "mixed" does both on purpose, and splits inside a character
    where there is one.
    """

    def __init__(self, exchange: Exchange, framing: Literal["mixed", "plain"]) -> None:
        self._exchange = exchange
        self._framing = framing
        self._batches = 0

    async def write(self, payloads: list[bytes]) -> bool:
        """Send the events of one step; False if the client is gone."""
        self._batches += 1
        for data in self._frame([b"data: " + payload + b"\n\n" for payload in payloads]):
            if not await self._exchange.write(data):
                return False
            await asyncio.sleep(0)
        return self._exchange.connected

    def _frame(self, events: list[bytes]) -> list[bytes]:
        turn = self._batches % 3 if self._framing == "mixed" else 1
        if turn == 1 or not events:
            return events
        joined = b"".join(events)
        return [joined] if turn == 2 else list(_split(joined))


def _split(data: bytes) -> tuple[bytes, bytes]:
    found = _INSIDE_CHARACTER.search(data)
    at = found.start() if found else len(data) // 2
    return data[:at], data[at:]
