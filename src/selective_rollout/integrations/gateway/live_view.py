"""Pictures of all groups for people and programs that look on, taken without keeping agents waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from selective_rollout.integrations.gateway.book import Book
from selective_rollout.integrations.gateway.config import GatewayConfig
from selective_rollout.integrations.gateway.desk import Desk
from selective_rollout.integrations.gateway.snapshot import Line, Snapshot, Totals, line_of

MOST_OPEN: Final = 2000
MOST_ENDED: Final = 200
_AT_ONCE: Final = 16
"""Groups looked at before requests get a turn."""
_FRESH_S: Final = 0.5


class LiveView:
    """Takes pictures, one at a time however many look on.

    A picture is not of one instant: requests are served while it is taken.

    Args:
        config: how the gateway is set up.
        book: the groups.
    """

    def __init__(self, config: GatewayConfig, book: Book) -> None:
        self._config = config
        self._book = book
        self._ended: dict[str, Line] = {}
        """Lines of ended groups by id in the trace; they stay right until a reward or late request comes."""
        self._latest: tuple[str, float, bytes] | None = None
        self._lock = asyncio.Lock()

    async def picture(self, scope: str) -> bytes:
        """A `Snapshot` of one client's groups as JSON, at most half a second old."""
        async with self._lock:
            now = self._book.clock()
            if self._latest is not None:
                of, when, made = self._latest
                if of == scope and now - when < _FRESH_S:
                    return made
            made = msgspec.json.encode(await self._take(scope, now))
            self._latest = (scope, now, made)
            return made

    async def totals(self) -> Totals:
        """The totals over all clients."""
        async with self._lock:
            return (await self._look(None))[0]

    async def _take(self, scope: str, now: float) -> Snapshot:
        totals, running, ended = await self._look(scope)
        return totals.snapshot(
            self._config,
            (*running[:MOST_OPEN], *ended[:MOST_ENDED]),
            now=now,
            recording=not self._book.closed,
            others=self._book.open_count + self._book.ended_count - totals.groups,
        )

    async def _look(self, scope: str | None) -> tuple[Totals, list[Line], list[Line]]:
        """Add up the groups of one client, or of all: totals, open groups, ended ones."""
        every = list(self._book)
        totals = Totals()
        running: list[Line] = []
        ended: list[Line] = []
        for start in range(0, len(every), _AT_ONCE):
            for desk in every[start : start + _AT_ONCE]:
                if scope is None or desk.facts.scope == scope:
                    line = self._line(desk)
                    totals.add(line)
                    (ended if line.state == "ended" else running).append(line)
            await asyncio.sleep(0)
        self._keep_only(every)
        return totals, running, ended

    def _line(self, desk: Desk) -> Line:
        key = desk.facts.trace_id
        kept = self._ended.get(key)
        if kept is not None and kept.touched_at == desk.touched_at:
            return kept
        line = line_of(desk)
        if line.state == "ended":
            self._ended[key] = line
        return line

    def _keep_only(self, known: Iterable[Desk]) -> None:
        """Let go of groups that the book has let go of."""
        keys = {desk.facts.trace_id for desk in known}
        if len(self._ended) > len(keys):
            self._ended = {key: line for key, line in self._ended.items() if key in keys}
