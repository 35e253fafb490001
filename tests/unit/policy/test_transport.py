"""Asking a server beside the completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest

from selective_rollout.policy.endpoint import Endpoint
from selective_rollout.policy.transport import Transport

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def server_that_answers(*requests: bool) -> AsyncIterator[tuple[Transport, list[bool]]]:
    """One that answers those requests, and closes their connection without a word on the others."""
    left = list(requests)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n") and left.pop(0):
                writer.write(ANSWER)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    transport = Transport(Endpoint(base_url=f"http://{host}:{port}/v1", api_key="k", model="m"))
    try:
        yield transport, left
    finally:
        await transport.aclose()
        server.close()
        await server.wait_closed()


async def test_a_question_on_a_connection_that_was_given_up_is_asked_again() -> None:
    async with server_that_answers(True, False, False, True) as (transport, left):
        assert [await transport.get_root("/metrics") for _ in range(2)] == ["ok", "ok"]
        assert left == []


async def test_a_server_that_never_answers_is_not_asked_for_ever() -> None:
    async with server_that_answers(*[False] * 9) as (transport, left):
        with pytest.raises(openai.APIConnectionError):
            await transport.get_root("/metrics")
        assert len(left) == 6
