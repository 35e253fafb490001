"""Ending a generation by its id, where the server offers that, instead of only by closing the connection.

vLLM with `--enable-scale-out` ends an aborted request in order: the answer under way comes to its end at
once, with the finish reason "abort" and with exact usage, which a closed connection never brings. Nothing is
assumed of a server: the first cut tries it, and where it does not work connections are closed from then on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final
from uuid import uuid4

from selective_rollout.policy.request import Request
from selective_rollout.policy.transport import REQUEST_ERRORS, Transport

ABORT_PATH: Final = "/inference/v1/abort_requests"
"""Below the server's root, not below /v1."""
ID_HEADER: Final = "X-Request-Id"
_ID_PREFIX: Final = "chatcmpl-"
_ORDER_TIMEOUT_S: Final = 1.0
_END_TIMEOUT_S: Final = 3.0
"""An overloaded engine takes seconds for the step after which it stops. Both waits together stay below the
engine's `stop_timeout_s`."""
_NOT_OFFERED: Final = (403, 404, 405, 501)


class Aborter:
    """Sends aborts to one server; what is cut together goes out as one order.

    Args:
        transport: requests to the server.

    Attributes:
        works: whether the server honours aborts; None as long as nobody has tried.
    """

    def __init__(self, transport: Transport) -> None:
        self.works: bool | None = None
        self._transport = transport
        self._batch: list[str] = []
        self._order: asyncio.Task[bool] | None = None

    def name(self, request: Request) -> str:
        """Give one attempt of a request an id of its own, and return the id that aborts it.

        A `request_id` that the caller chose for the body stays in force.
        """
        chosen = request.body.get("request_id")
        if chosen is None:
            chosen = request.headers[ID_HEADER] = uuid4().hex
        return f"{_ID_PREFIX}{chosen}"

    async def end(self, request_id: str, answer: asyncio.Task[Any]) -> None:
        """Order the end of a request once, and give its answer the time to come to it.

        Afterwards the answer may still be under way: the server offers no aborts, or did not act on this one.
        A server that took the order and did not act (another replica may have got it) is not asked again.
        """
        if self.works is False or not await self._ordered(request_id):
            return
        done, _ = await asyncio.wait([answer], timeout=_END_TIMEOUT_S)
        self.works = bool(done)

    async def _ordered(self, request_id: str) -> bool:
        self._batch.append(request_id)
        if self._order is None:
            self._order = asyncio.create_task(self._send())
        return await asyncio.shield(self._order)

    async def _send(self) -> bool:
        batch, self._batch, self._order = self._batch, [], None
        return await self.order(batch)

    async def order(self, request_ids: Sequence[str]) -> bool:
        """Send one abort for all these requests; False if the server did not take it."""
        body = {"request_ids": list(request_ids)}
        try:
            async with asyncio.timeout(_ORDER_TIMEOUT_S):
                await self._transport.post_root(ABORT_PATH, body)
        except TimeoutError:
            return False
        except REQUEST_ERRORS as error:
            if self._transport.describe(error).status in _NOT_OFFERED:
                self.works = False
            return False
        return True
