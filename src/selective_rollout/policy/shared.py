"""The first step of a group as one request with n choices, for servers that read a prompt anew per request.

All rollouts of a group begin with the same messages. Where requests that run at once do not share what they
have read (llama.cpp), n requests with a cold prompt read it n times, and one request with n choices reads it
once. Choice i belongs to rollout i: servers give it the request's seed plus i, which is the seed that rollout
i would have asked with.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, TypeAlias

from selective_rollout.policy.base import Completion, Listener, Meter, Piece, RequestInfo
from selective_rollout.policy.failures import Failure
from selective_rollout.policy.request import Request, shared_request
from selective_rollout.policy.stream import Assembly, Choice, read_pieces
from selective_rollout.types import Usage, UsageSource

STOPPED_BY_SERVER: Final = ("abort", "error")
"""Reasons to finish that leave no completion behind."""
_MOST_KEPT: Final = 64
"""Requests kept for rollouts that have not asked yet; one that comes later than that asks for itself."""


@dataclass(slots=True)
class _Seat:
    """One rollout that waits for its choice."""

    meter: Meter
    listener: Listener | None


@dataclass(slots=True)
class SharedRequest:
    """One request for the rollouts of a group, and what has come of each of its choices.

    Args of the constructor: `n`, the choices asked for.
    """

    n: int
    failure: Failure | None = None
    """Why there are no choices."""
    assembly: Assembly = field(init=False)
    meter: Meter = field(default_factory=Meter)
    """Counts the tokens of all choices together."""
    task: asyncio.Task[None] | None = None
    """Sends the request. No rollout's cancellation may end it for the others, so it is a task of its own."""
    _seats: dict[int, _Seat] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)
    _left: dict[int, int] = field(default_factory=dict)
    """Tokens that a rollout's choice had come to when it stopped waiting."""
    _pieces: dict[int, list[Piece]] = field(default_factory=dict)
    _shares: dict[int, Usage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.assembly = Assembly(self.n)

    @property
    def is_taken(self) -> bool:
        """Whether every rollout has asked for its choice."""
        return len(self._seen) == self.n

    def admits(self, rollout: int) -> bool:
        """Whether there is, or will be, a choice that this rollout has not asked for yet."""
        over = self.failure is not None or (self.task is not None and self.task.cancelling())
        return not over and rollout < self.n and rollout not in self._seen

    def sent(self) -> None:
        """The request goes out now."""
        self.meter.started = True
        for seat in self._seats.values():
            _begin(seat.meter)

    def hear(self, chunk: object) -> None:
        """Another chunk has come, which the assembly has taken in."""
        for index, piece in read_pieces(chunk):
            self._pieces.setdefault(index, []).append(piece)
            if (seat := self._seats.get(index)) is not None:
                self._tell(index, seat, [piece])

    def settle(self) -> None:
        """The answer is whole: give each choice its part of the tokens.

        The prompt was read once, so it counts once: for the first rollout that waits. So do the tokens that
        came for rollouts after they had left, as wasted ones.

        Raises:
            PolicyError: as `Assembly.finish` does.
        """
        total, choices = self.assembly.usage(), self.assembly.finish()
        self._shares = divided(total, choices, first=min(self._seats))
        for index, seat in self._seats.items():
            seat.meter.usage = self._shares[index]
        late = sum(self.assembly.count(index) - before for index, before in self._left.items())
        self._seats[min(self._seats)].meter.wasted += late

    async def choice(self, info: RequestInfo) -> Completion | Failure:
        """Wait for the choice of one rollout. The last one that is cancelled stops the request.

        Returns:
            The completion, or why there is none; what had come of it is wasted then.
        """
        assert self.task is not None
        rollout, seat = info.rollout, _Seat(info.meter, info.listener)
        self._seen.add(rollout)
        self._seats[rollout] = seat
        if self.meter.started:
            _begin(seat.meter)
        self._tell(rollout, seat, self._pieces.get(rollout, ()))
        try:
            await asyncio.shield(self.task)
        except asyncio.CancelledError:
            await self._leave(rollout)
            raise
        del self._seats[rollout]
        outcome = self.failure or self._outcome(rollout)
        if isinstance(outcome, Failure):
            _give_up(seat)
        return outcome

    def _tell(self, index: int, seat: _Seat, pieces: Sequence[Piece]) -> None:
        seat.meter.completion = self.assembly.count(index)
        if seat.listener is not None:
            for piece in pieces:
                seat.listener.heard(piece)

    async def _leave(self, rollout: int) -> None:
        del self._seats[rollout]
        self._left[rollout] = self.assembly.count(rollout)
        if not self._seats and self.task is not None and not self.task.done():
            self.task.cancel()
            await asyncio.wait([self.task])

    def _outcome(self, rollout: int) -> Completion | Failure:
        choice = self.assembly.finish()[rollout]
        if choice.finish_reason in STOPPED_BY_SERVER:
            return Failure("server", f"the server stopped a choice (finish_reason {choice.finish_reason!r})")
        answer = self.assembly.response_id
        own_id = None if answer is None else f"{answer}/{rollout}"
        return Completion(choice.message, self._shares[rollout], choice.finish_reason, own_id)


Send: TypeAlias = Callable[[Request, SharedRequest], Awaitable[Failure | None]]
"""Sends a request, lets the shared one hear and settle the answer, and returns how that failed, if it did."""


class FirstSteps:
    """The shared first steps of all groups of one policy.

    Args:
        send: carries out a request.

    Attributes:
        works: False once the server refused a request with n choices, or gave fewer.
    """

    def __init__(self, send: Send) -> None:
        self.works = True
        self._send = send
        self._open: dict[tuple[str, str], SharedRequest] = {}

    async def choice(self, request: Request, info: RequestInfo) -> Completion | None:
        """The rollout's choice of its group's request; None: it has to ask for itself.

        The first rollout to ask sends the request. Others join if they ask for the very same.
        """
        if not self.works or info.step != 1 or info.siblings < 2:
            return None
        together = shared_request(request, info)
        key = (
            info.group_id,
            sha256(json.dumps(together.body, sort_keys=True, default=str).encode()).hexdigest(),
        )
        shared = self._open.get(key)
        if shared is None or not shared.admits(info.rollout):
            if shared is not None and shared.failure is not None:
                return None
            shared = self._open[key] = SharedRequest(info.siblings)
            shared.task = asyncio.create_task(self._run(together, shared))
            while len(self._open) > _MOST_KEPT:
                del self._open[next(iter(self._open))]
        outcome = await shared.choice(info)
        if shared.is_taken and self._open.get(key) is shared:
            del self._open[key]
        return outcome if isinstance(outcome, Completion) else None

    async def _run(self, request: Request, shared: SharedRequest) -> None:
        shared.failure = await self._send(request, shared)
        if shared.failure is not None and shared.failure.kind in ("protocol", "bad_request"):
            self.works = False


def _begin(meter: Meter) -> None:
    meter.started = True
    meter.attempts += 1


def _give_up(seat: _Seat) -> None:
    """What had come of the choice is wasted; the rollout asks again from nothing."""
    meter = seat.meter
    meter.wasted += meter.received.completion or 0
    meter.completion, meter.usage = 0, None
    if seat.listener is not None:
        seat.listener.broke()


def divided(total: Usage, choices: Sequence[Choice], first: int) -> dict[int, Usage]:
    """The usage of each choice.

    Args:
        total: of the request.
        choices: by index, each with the number of its chunks.
        first: the choice that the prompt is booked for; for the others it is 0, or unknown as it is there.
    """
    counts = [choice.chunks for choice in choices]
    ends = [choice.finish_reason == "stop" for choice in choices]
    source: UsageSource = "client"
    if total.source == "server" and total.completion is not None:
        hidden = total.completion - sum(counts)
        if hidden == sum(ends):  # each end token is counted and not shown
            counts = [count + end for count, end in zip(counts, ends, strict=True)]
        source = "server" if hidden in (0, sum(ends)) else "client"
    shares = {}
    for index, count in enumerate(counts):
        prompt, cached = total.prompt, total.cached
        if index != first:
            prompt, cached = (None if known is None else 0 for known in (prompt, cached))
        known = count if count or source == "server" else None
        shares[index] = Usage(
            prompt, cached, known, None, source if (known, prompt) != (None, None) else "unknown"
        )
    return shares
