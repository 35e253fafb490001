"""Passing one request on and its answer back, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from selective_rollout.integrations.gateway.exchange import Exchange
from selective_rollout.integrations.gateway.headers import Headers, downward, first, upward
from selective_rollout.integrations.gateway.listener import Listener
from selective_rollout.integrations.gateway.metrics import Counts
from selective_rollout.integrations.gateway.refusal import Refusal, Refused, unreachable
from selective_rollout.integrations.gateway.upstream import Answering, Upstream
from selective_rollout.integrations.gateway.wire import WireError
from selective_rollout.policy.endpoint import NO_KEY, Endpoint

Listen = Callable[[bool], Listener]
"""Makes a listener; its argument says whether the answer is a stream of events."""

_NOT_MODIFIED: Final = 304


class Relay:
    """Knows the upstream server and what it is shown of a client.

    Args:
        endpoint: the server.
        upstream: sends requests to it.
        counts: told what came back.
        holds_key: clients' own credentials stay here; the server sees the gateway's.
    """

    def __init__(self, endpoint: Endpoint, upstream: Upstream, counts: Counts, *, holds_key: bool) -> None:
        self._upstream = upstream
        self._counts = counts
        self._credentials = _credentials(endpoint) if holds_key else None
        self._secret = endpoint.api_key.encode() if endpoint.api_key != NO_KEY else None

    async def pass_on(
        self, exchange: Exchange, listen: Listen | None = None, on_sent: Callable[[], None] = lambda: None
    ) -> None:
        """Pass a request on and its answer back.

        Args:
            exchange: the request.
            listen: makes a listener for a good answer.
            on_sent: see `Upstream.send`.

        Raises:
            Refused: the server redirects.
        """
        headers = upward(
            exchange.headers,
            host=self._upstream.host,
            length=len(exchange.body) if exchange.body or exchange.method not in ("GET", "HEAD") else None,
            credentials=self._credentials,
            readable=listen is not None,
        )
        sending = self._upstream.send(
            exchange.method, exchange.path, exchange.query, headers, exchange.body, on_sent
        )
        try:
            async with sending as response:
                self._counts.answers[f"{response.status // 100}xx"] += 1
                await self._answer(exchange, response, listen)
        except WireError as error:
            self._counts.answers["none"] += 1
            if not exchange.started:
                await exchange.refuse(unreachable(str(error)))
            # A begun answer stays incomplete, which closes the client's connection.

    async def _answer(self, exchange: Exchange, response: Answering, listen: Listen | None) -> None:
        status = response.status
        headers = downward(response.headers)
        if 300 <= status < 400 and status != _NOT_MODIFIED:
            raise Refused(
                Refusal(
                    502,
                    "upstream_redirects",
                    "the model server redirects: give the gateway its final address",
                )
            )
        if status >= 400 and self._secret is not None:
            await self._send_error(exchange, response, headers)
            return
        readable = first(headers, b"content-encoding") in (None, b"identity")
        listener = listen(_is_stream(headers)) if listen is not None and status == 200 and readable else None
        if listener is None:
            await exchange.start(status, headers)
            rest = b""
            async for chunk in response.body():
                if response.complete:
                    rest = chunk
                else:
                    await exchange.write(chunk)
            await exchange.end(rest)
        else:
            await self._listen(exchange, response, headers, listener)

    async def _listen(
        self, exchange: Exchange, response: Answering, headers: Headers, listener: Listener
    ) -> None:
        try:
            if _is_stream(headers):
                await exchange.start(response.status, headers)
            rest = b""
            async for chunk in response.body():
                shown = listener.feed(chunk)
                if response.complete:
                    rest = shown
                elif shown:
                    if not exchange.started:
                        await exchange.start(response.status, headers)
                    await exchange.write(shown)
                    listener.sent()
            rest += listener.end()
            if not exchange.started:
                await exchange.start(response.status, headers)
            await exchange.end(rest)
        finally:
            listener.close()

    async def _send_error(self, exchange: Exchange, response: Answering, headers: Headers) -> None:
        """Servers like to repeat the key that they refuse; clients are not shown it."""
        body = (await response.read()).replace(self._secret or b"", b"***")
        kept = [pair for pair in headers if pair[0] != b"content-length"]
        await exchange.start(response.status, [*kept, (b"content-length", str(len(body)).encode())])
        await exchange.end(body)


def _is_stream(headers: Headers) -> bool:
    kind = first(headers, b"content-type") or b""
    return kind.partition(b";")[0].strip().lower() == b"text/event-stream"


def _credentials(endpoint: Endpoint) -> Headers:
    shown = [(b"authorization", f"Bearer {endpoint.api_key}".encode())]
    if endpoint.organization is not None:
        shown.append((b"openai-organization", endpoint.organization.encode()))
    return shown
