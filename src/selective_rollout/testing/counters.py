"""What the server did, counted where it happens and readable from any thread."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace

from selective_rollout.errors import ConfigError


@dataclass(slots=True)
class RequestRecord:
    """One generation request; a snapshot's record changes no more."""

    ordinal: int
    """0-based, in order of arrival."""
    endpoint: str
    request_id: str
    """Response id, as in the `id` field of the answer."""
    group: str | None = None
    """Value of the `x-rollout-group` header."""
    rollout: str | None = None
    """Value of the `x-rollout-id` header."""
    fault: str | None = None
    status: int | None = None
    """HTTP status; None until the request is over, and if nothing was sent."""
    n: int = 1
    """Sequences really generated for it."""
    prompt_tokens: int = 0
    """Tokens of the prompt, counted once however many choices share it."""
    cached_tokens: int = 0
    completion_tokens: int = 0
    """Tokens generated over all choices, whether or not anybody received them."""
    tokens_sent: int = 0
    """Generated tokens handed to the connection while the client was there."""
    tokens_after_disconnect: int = 0
    """Part of `completion_tokens` generated after the client had left."""
    running: int = 0
    """Sequences being generated now."""
    disconnected: bool = False
    """The client left before the response was complete."""
    aborted: bool = False
    """Stopped through the abort endpoint."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over generation requests."""

    requests: int = 0
    prompt_tokens: int = 0
    """Each request's prompt once, as usage reports it."""
    engine_prompt_tokens: int = 0
    """Each prompt once per choice, as engine metrics count it."""
    cached_tokens: int = 0
    completion_tokens: int = 0
    tokens_sent: int = 0
    tokens_after_disconnect: int = 0
    disconnects: int = 0
    aborts: int = 0


@dataclass(frozen=True, slots=True)
class CounterSnapshot(Totals):
    """The counters at one moment."""

    in_flight: int = 0
    """Generation requests being answered."""
    peak_in_flight: int = 0
    running: int = 0
    """Sequences being generated."""
    responses: Mapping[tuple[str, int | None], int] = field(default_factory=dict)
    """(endpoint, status) -> answers to requests of any kind; status None: nothing was sent."""
    finished: Mapping[str, int] = field(default_factory=dict)
    """finish_reason -> sequences that ended by themselves; stopped ones are in `disconnects` and `aborts`."""
    records: tuple[RequestRecord, ...] = field(default=(), repr=False)
    """The latest requests, by arrival."""
    records_dropped: int = 0
    """Older requests that only the totals still know."""

    def for_group(self, group: str) -> Totals:
        """Sums over the requests that carried this `x-rollout-group` header."""
        return self._total(record for record in self.records if record.group == group)

    def for_rollout(self, group: str, rollout: str) -> Totals:
        """Sums over the requests of one rollout of a group (`x-rollout-id`)."""
        return self._total(r for r in self.records if r.group == group and r.rollout == rollout)

    def for_request(self, request_id: str) -> RequestRecord:
        """The latest record with this response id.

        Raises:
            LookupError: no kept record has it.
        """
        for record in reversed(self.records):
            if record.request_id == request_id:
                return record
        raise LookupError(f"no record of request {request_id!r} ({self.records_dropped} older ones dropped)")

    def _total(self, records: Iterable[RequestRecord]) -> Totals:
        if self.records_dropped:
            raise ConfigError(
                f"{self.records_dropped} records were dropped, so a group's sum would be too small: "
                "start the server with a larger max_records"
            )
        return _sum_up(records)


class Counters:
    """The live counters; written by the server's loop, read by `snapshot` from any thread."""

    def __init__(self, max_records: int) -> None:
        self._lock = threading.Lock()
        self._max_records = max_records
        self._live: dict[int, RequestRecord] = {}
        self._done: deque[RequestRecord] = deque()
        self._dropped = 0
        self._closed = Totals()
        self._responses: Counter[tuple[str, int | None]] = Counter()
        self._finished: Counter[str] = Counter()
        self._peak = 0

    def opened(self, record: RequestRecord) -> None:
        """A generation request arrived."""
        with self._lock:
            self._live[record.ordinal] = record
            self._peak = max(self._peak, len(self._live))

    def closed(self, record: RequestRecord, status: int | None) -> None:
        """A generation request is over, in whatever way; `status` is what was sent, if anything."""
        with self._lock:
            record.status = status
            record.running = 0
            self._responses[record.endpoint, status] += 1
            self._done.append(self._live.pop(record.ordinal))
            self._closed = _add(self._closed, _sum_up([record]))
            while len(self._done) > self._max_records:
                self._done.popleft()
                self._dropped += 1

    def answered(self, endpoint: str, status: int | None) -> None:
        """A request that generates nothing is over; `status` is what was sent, if anything."""
        with self._lock:
            self._responses[endpoint, status] += 1

    def prefilled(self, record: RequestRecord, *, prompt: int, cached: int, n: int) -> None:
        """A request's prompt was taken in."""
        with self._lock:
            record.prompt_tokens, record.cached_tokens = prompt, cached
            record.n = record.running = n

    def generated(self, record: RequestRecord, tokens: int) -> None:
        """An engine step made tokens."""
        with self._lock:
            record.completion_tokens += tokens
            if record.disconnected:
                record.tokens_after_disconnect += tokens

    def ended(self, record: RequestRecord, finish_reason: str) -> None:
        """One sequence ended by itself."""
        with self._lock:
            record.running -= 1
            self._finished[finish_reason] += 1

    def sent(self, record: RequestRecord, tokens: int) -> None:
        """Tokens were handed to a connection whose client was there."""
        with self._lock:
            record.tokens_sent += tokens

    def disconnected(self, record: RequestRecord) -> None:
        """The client left before the response was complete."""
        with self._lock:
            record.disconnected = True

    def aborted(self, record: RequestRecord) -> None:
        """The abort endpoint stopped the request."""
        with self._lock:
            record.aborted = True

    def running(self) -> int:
        """Sequences being generated now."""
        with self._lock:
            return sum(record.running for record in self._live.values())

    def snapshot(self) -> CounterSnapshot:
        """Copy everything at one moment."""
        with self._lock:
            live = [replace(record) for record in self._live.values()]
            totals = _add(self._closed, _sum_up(live))
            return CounterSnapshot(
                **asdict(totals),
                in_flight=len(live),
                peak_in_flight=self._peak,
                running=sum(record.running for record in live),
                responses=dict(self._responses),
                finished=dict(self._finished),
                records=tuple(sorted((*self._done, *live), key=lambda record: record.ordinal)),
                records_dropped=self._dropped,
            )


def _sum_up(records: Iterable[RequestRecord]) -> Totals:
    totals = Totals()
    for record in records:
        totals = _add(
            totals,
            Totals(
                requests=1,
                prompt_tokens=record.prompt_tokens,
                engine_prompt_tokens=record.prompt_tokens * record.n,
                cached_tokens=record.cached_tokens,
                completion_tokens=record.completion_tokens,
                tokens_sent=record.tokens_sent,
                tokens_after_disconnect=record.tokens_after_disconnect,
                disconnects=int(record.disconnected),
                aborts=int(record.aborted),
            ),
        )
    return totals


def _add(left: Totals, right: Totals) -> Totals:
    return Totals(**{f.name: getattr(left, f.name) + getattr(right, f.name) for f in fields(Totals)})
