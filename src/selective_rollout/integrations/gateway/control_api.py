"""The gateway's own endpoints: what a harness tells it of its rollouts, and what it shows of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from selective_rollout.errors import GroupError, RewardError
from selective_rollout.integrations.gateway.address import MOST_ROLLOUTS, BadAddress, read_id
from selective_rollout.integrations.gateway.book import Book
from selective_rollout.integrations.gateway.config import GatewayConfig
from selective_rollout.integrations.gateway.desk import Desk
from selective_rollout.integrations.gateway.live_page import SHUT, live_page, page_headers
from selective_rollout.integrations.gateway.live_view import LiveView
from selective_rollout.integrations.gateway.metrics import CONTENT_TYPE, Counts, exposition
from selective_rollout.integrations.gateway.refusal import Refusal
from selective_rollout.integrations.gateway.state import gateway_view, group_view

T = TypeVar("T")

BASE: Final = "/selective-rollout/v1"
_STATUSES: Final = ("finished", "truncated", "failed")
_MOST_METADATA: Final = 16
_MOST_BODY: Final = 2**16


class _End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reward: Any = None
    answer: str | None = None
    status: str = "finished"
    failure: str = ""


class _Reward(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reward: Any


class _Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: int
    task: str | None = None
    metadata: dict[str, str | int | float | bool | None] = {}


@dataclass(frozen=True, slots=True)
class ControlApi:
    """The handlers.

    Args:
        config: how the gateway is set up.
        book: the groups.
        counts: what happened so far.
        live_view: pictures for the live page.
    """

    config: GatewayConfig
    book: Book
    counts: Counts
    live_view: LiveView

    def app(self) -> Starlette:
        """The ASGI application; the client's scope is in the request's state as `owner`."""
        group = f"{BASE}/groups/{{group}}"
        rollout = f"{group}/rollouts/{{rollout}}"
        return Starlette(
            routes=[
                Route("/", self._page),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route(f"{BASE}/state", self._state),
                Route(f"{BASE}/live", self._live),
                Route(group, self._declare, methods=["PUT"]),
                Route(group, self._group, methods=["GET"]),
                Route(f"{group}/end", self._end_group, methods=["POST"]),
                Route(f"{rollout}/end", self._end_rollout, methods=["POST"]),
                Route(f"{rollout}/reward", self._reward, methods=["POST"]),
            ],
            exception_handlers={HTTPException: _http_error},
        )

    async def _health(self, request: Request) -> Response:
        return _json({"status": "ok"})

    async def _metrics(self, request: Request) -> Response:
        totals = await self.live_view.totals()
        return Response(exposition(self.counts, totals), media_type=CONTENT_TYPE)

    async def _state(self, request: Request) -> Response:
        return _json(gateway_view(self.book, self.config, self.book.clock(), scope=request.state.owner))

    async def _page(self, request: Request) -> Response:
        return Response(
            live_page(needs_key=self.config.clients.required), media_type="text/html", headers=page_headers()
        )

    async def _live(self, request: Request) -> Response:
        shown = await self.live_view.picture(request.state.owner)
        return Response(shown, media_type="application/json", headers=SHUT)

    async def _declare(self, request: Request) -> Response:
        """Open a group before its first request, with facts that no header holds."""
        name = _name(request, "group")
        said = await _body(request, _Group)
        if not 2 <= said.size <= MOST_ROLLOUTS or len(said.metadata) > _MOST_METADATA:
            raise HTTPException(
                400, f"size must be 2 to {MOST_ROLLOUTS}, with at most {_MOST_METADATA} metadata entries"
            )
        task = None if said.task is None else _checked("task", said.task)
        desk = self.book.find(request.state.owner, name)
        if desk is None:
            desk = self.book.declare(request.state.owner, name, said.size, task, said.metadata)
        elif desk.facts.size != said.size or (task or desk.facts.task_id) != desk.facts.task_id:
            raise HTTPException(409, f"group {name!r} is open with another size or task")
        if desk is None:
            raise HTTPException(409, f"group {name!r} is over, or too many groups are open")
        return self._shown(desk)

    async def _group(self, request: Request) -> Response:
        return self._shown(self._desk(request))

    async def _end_group(self, request: Request) -> Response:
        """End a group: members that still run count as failed."""
        desk = self._desk(request)
        desk.close("ended", "the group was ended while this rollout was running", self.book.clock())
        self.book.settle(desk)
        return self._shown(desk)

    async def _end_rollout(self, request: Request) -> Response:
        """A rollout ended; saying so twice is fine."""
        said = await _body(request, _End)
        if said.status not in _STATUSES:
            raise HTTPException(400, f"status must be one of {', '.join(_STATUSES)}")
        desk, rollout = self._desk(request), self._rollout(request)
        recorded = True
        if desk.members[rollout].running:
            self._end(desk, rollout, said)
        elif said.reward is not None:
            recorded = self._score(desk, rollout, said.reward)
        return self._told(desk, rollout, recorded)

    async def _reward(self, request: Request) -> Response:
        """A rollout's reward; one that still runs has ended with it."""
        said = await _body(request, _Reward)
        desk, rollout = self._desk(request), self._rollout(request)
        recorded = True
        if desk.members[rollout].running:
            self._end(desk, rollout, _End(reward=said.reward))
        else:
            recorded = self._score(desk, rollout, said.reward)
        return self._told(desk, rollout, recorded)

    def _end(self, desk: Desk, rollout: int, said: _End) -> None:
        now = self.book.clock()
        if said.status == "failed":
            desk.fail(rollout, "reported", said.failure[:500] or "reported as failed", now)
            return
        try:
            desk.finish(rollout, said.reward, said.answer, truncated=said.status == "truncated", now=now)
        except RewardError as error:
            raise HTTPException(400, str(error)) from None

    def _score(self, desk: Desk, rollout: int, reward: object) -> bool:
        try:
            return desk.score(rollout, reward, self.book.clock())
        except RewardError as error:
            raise HTTPException(400, str(error)) from None
        except GroupError as error:
            raise HTTPException(409, str(error)) from None

    def _told(self, desk: Desk, rollout: int, recorded: bool) -> Response:
        self.book.settle(desk)
        member = desk.members[rollout]
        return _json({"status": member.status.value, "reward": member.reward, "recorded": recorded})

    def _shown(self, desk: Desk) -> Response:
        return _json(group_view(desk, self.book.clock()))

    def _desk(self, request: Request) -> Desk:
        name = _name(request, "group")
        desk = self.book.find(request.state.owner, name)
        if desk is None:
            raise HTTPException(404, f"no group {name!r}: it is unknown, or long over")
        return desk

    def _rollout(self, request: Request) -> int:
        text, size = request.path_params["rollout"], self._desk(request).facts.size
        if not (text.isascii() and text.isdigit() and len(text) <= 4 and int(text) < size):
            raise HTTPException(404, f"rollouts of this group are numbered 0 to {size - 1}")
        return int(text)


def _name(request: Request, what: str) -> str:
    return _checked(what, request.path_params[what])


def _checked(what: str, text: str) -> str:
    try:
        return read_id(what, text.encode("utf-8", "surrogatepass"))
    except BadAddress as error:
        raise HTTPException(400, str(error)) from None


async def _body(request: Request, kind: type[T]) -> T:
    body = await request.body()
    if len(body) > _MOST_BODY:
        raise HTTPException(413, f"the body is larger than {_MOST_BODY} bytes")
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(400, f"the body is not what is expected here: {error}") from None


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    refusal = Refusal(error.status_code, "control_api", error.detail)
    headers: Mapping[str, str] = error.headers or {}
    return Response(refusal.body, error.status_code, {**headers}, media_type="application/json")
