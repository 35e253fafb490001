"""Requests for the model server: passed on as they are, or as those of a group's member."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from selective_rollout.errors import GroupError
from selective_rollout.integrations.gateway.address import Address
from selective_rollout.integrations.gateway.answer import Answer
from selective_rollout.integrations.gateway.book import Book
from selective_rollout.integrations.gateway.config import GatewayConfig
from selective_rollout.integrations.gateway.conversation import Api, Body, api_of, read_body
from selective_rollout.integrations.gateway.desk import Desk
from selective_rollout.integrations.gateway.exchange import Exchange
from selective_rollout.integrations.gateway.flight import Flight, Receive, while_connected
from selective_rollout.integrations.gateway.listener import (
    Listener,
    OnAnswer,
    StreamListener,
    WholeListener,
    with_usage,
)
from selective_rollout.integrations.gateway.member import Member
from selective_rollout.integrations.gateway.metrics import Counts
from selective_rollout.integrations.gateway.refusal import Refusal, Refused, shutting_down
from selective_rollout.integrations.gateway.relay import Relay
from selective_rollout.integrations.gateway.threads import Thread
from selective_rollout.types import RolloutStatus


@dataclass(frozen=True, slots=True)
class _Seat:
    """A request's place in a group."""

    desk: Desk
    member: Member
    api: Api
    body: Body


class _Hearing:
    """Takes in once what a request shows, however often it is called.

    Args:
        hear: takes it in; returns the conversation that the request belongs to.
    """

    def __init__(self, hear: Callable[[], Thread | None]) -> None:
        self.thread: Thread | None = None
        self._hear: Callable[[], Thread | None] | None = hear

    def __call__(self) -> None:
        hear, self._hear = self._hear, None
        if hear is not None:
            self.thread = hear()


class Proxy:
    """Serves requests for the model server.

    Args:
        config: how the gateway is set up.
        book: the groups.
        relay: passes requests on.
        counts: told what became of them.
    """

    def __init__(self, config: GatewayConfig, book: Book, relay: Relay, counts: Counts) -> None:
        self._config = config
        self._book = book
        self._relay = relay
        self._counts = counts
        self._holds: set[Flight] = set()
        self._draining = False

    def drain(self) -> None:
        """Take no more requests; those that are held are sent away to come again."""
        self._draining = True
        for hold in tuple(self._holds):
            hold.stop()

    async def serve(self, exchange: Exchange, receive: Receive, owner: str, address: Address | None) -> None:
        """Serve one request to its end, or until its client leaves.

        Args:
            exchange: the request, its body read.
            receive: tells when the client leaves.
            owner: the client's scope.
            address: the rollout that it belongs to, if any.

        Raises:
            Refused: it is not passed on.
        """
        if self._draining:
            raise Refused(shutting_down())
        seat = self._seat(exchange, owner, address)
        if seat is None:
            work = self._relay.pass_on(exchange)
        else:
            self._counts.requests["recorded"] += 1
            work = self._serve_member(exchange, seat)
        if not await while_connected(work, receive, lambda: exchange.ended):
            self._counts.aborted["client"] += 1

    def _seat(self, exchange: Exchange, owner: str, address: Address | None) -> _Seat | None:
        """The place of a request that takes part in a group."""
        api = api_of(exchange.path) if exchange.method == "POST" else None
        if address is None or api is None:
            self._counts.requests["passed"] += 1
            return None
        try:
            desk = self._book.seat(owner, address)
        except GroupError as error:
            raise Refused(Refusal(400, "bad_group_address", str(error))) from None
        body = read_body(exchange.body)
        if desk is None or body is None or self._book.closed or not _takes_part(desk, address.rollout):
            self._counts.requests["unrecorded"] += 1
            return None
        return _Seat(desk, desk.members[address.rollout], api, body)

    async def _serve_member(self, exchange: Exchange, seat: _Seat) -> None:
        """Hear what a member has done, wait for leave to go on, and pass its request on."""
        desk, member = seat.desk, seat.member
        flight = Flight()
        member.flights.add(flight)
        try:
            hearing = _Hearing(partial(self._hear, exchange.body, seat))
            listen = self._listening(exchange, seat, hearing)
            if not desk.enforced:
                await self._observe(exchange, listen, hearing)
                return
            hearing()
            while (refusal := await self._permission(desk, member)) is None:
                if await flight.run(self._relay.pass_on(exchange, listen)):
                    return
                if exchange.ended:  # it was complete all the same
                    return
                self._counts.aborted["gate"] += 1
                if exchange.started:
                    await self._end_stream(exchange, seat)
                    return
            self._counts.requests["cut"] += 1
            await exchange.refuse(refusal)
        finally:
            member.flights.discard(flight)
            member.seen_at = desk.touched_at = now = self._book.clock()
            desk.settle(now)
            self._book.settle(desk)

    async def _observe(
        self, exchange: Exchange, listen: Callable[[bool], Listener], hearing: _Hearing
    ) -> None:
        """Pass a request on and hear it while the server works: the gate does not hold it."""
        try:
            await self._relay.pass_on(exchange, listen, hearing)
        finally:
            hearing()  # what it shows counts also when the server cannot be reached

    def _hear(self, raw: bytes, seat: _Seat) -> Thread | None:
        if not seat.member.running:
            return None
        thread = seat.desk.hear(seat.member.index, seat.api, raw, seat.body, self._book.clock())
        self._book.settle(seat.desk)
        return thread

    async def _permission(self, desk: Desk, member: Member) -> Refusal | None:
        """Ask for leave to go on; a refusal is the end.

        Raises:
            Refused: the gateway shuts down.
        """
        said: list[Refusal | None] = []

        async def ask() -> None:
            said.append(await desk.permit(member.index))

        hold = Flight()
        self._holds.add(hold)
        try:
            if not await hold.run(ask()):
                raise Refused(shutting_down())
        finally:
            self._holds.discard(hold)
        return said[0]

    async def _end_stream(self, exchange: Exchange, seat: _Seat) -> None:
        """Tell a client whose answer has begun that the gate ended it; only a stream has room for that."""
        self._counts.requests["cut"] += 1
        if seat.body.stream:
            await exchange.end(seat.desk.refusal().events(responses=seat.api == "responses"))

    def _listening(self, exchange: Exchange, seat: _Seat, hearing: _Hearing) -> Callable[[bool], Listener]:
        """How an answer is read on its way; may ask for the usage of a stream."""
        hide_usage = self._config.inject_usage and _lacks_usage(seat)
        if hide_usage:
            exchange.body = _asking_for_usage(exchange.body)
        most, n = self._config.limits.answer_bytes, max(1, seat.body.n or 1)
        told: OnAnswer = partial(self._answered, seat, hearing)

        def listen(is_stream: bool) -> Listener:
            if is_stream:
                return StreamListener(seat.api, n, most, told, hide_usage=hide_usage)
            return WholeListener(seat.api, n, most, told)

        return listen

    def _answered(self, seat: _Seat, hearing: _Hearing, answer: Answer | None) -> None:
        seat.desk.answered(
            seat.member.index,
            hearing.thread,
            answer,
            offered_tools=seat.body.offers_tools,
            now=self._book.clock(),
        )


def _takes_part(desk: Desk, rollout: int) -> bool:
    """Whether the member runs or was cut; one that ended by itself is none of the gate's business."""
    return desk.members[rollout].status in (RolloutStatus.RUNNING, RolloutStatus.CUT)


def _lacks_usage(seat: _Seat) -> bool:
    options = seat.body.stream_options or {}
    return bool(seat.body.stream) and seat.api != "responses" and not options.get("include_usage")


def _asking_for_usage(body: bytes) -> bytes:
    if b'"stream_options"' not in body:
        return with_usage(body)
    value = json.loads(body)
    value["stream_options"] = {**(value.get("stream_options") or {}), "include_usage": True}
    return json.dumps(value).encode()
