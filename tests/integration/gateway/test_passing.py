"""What passes through: byte for byte, both ways."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.integrations.gateway import Limits
from selective_rollout.testing import EchoBrain, LoopbackServer

Start = Callable[..., Awaitable[Any]]
RawServers = Callable[..., Awaitable[Any]]
PlainJson = Callable[..., bytes]

BODY = (
    '{ "model":"m",\t"messages":[{"role":"user","content":"h\\u00e9 \u20ac"}],"unknown":[1e400,{"a":null}]}'
)
EVENTS = (
    b': a comment\n\ndata: {"choices":[{"index":0,"delta":{"content":"h"}}]}\r\n\r\n',
    b"event: odd\nid: 3\nda",
    b'ta: {"choices":[{"index":0,"delta":{"content":"\xc3',
    b'\xa9"},"finish_reason":"stop"}]}\n\ndata: [DO',
    b"NE]\n\n",
)


async def exchange(port: int, request: bytes) -> bytes:
    """Send raw bytes, with `connection: close`; returns everything that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


def request(
    body: bytes = b"", *headers: str, method: str = "POST", target: str = "/v1/chat/completions"
) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
    if body or method != "GET":
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def body_of(answer: bytes) -> bytes:
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return body
    plain = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        plain, body = plain + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return plain


GROUP = (
    "X-Selective-Rollout-Group: g",
    "X-Selective-Rollout-Rollout: 0",
    "X-Selective-Rollout-Group-Size: 2",
)


@pytest.mark.parametrize("group", [(), GROUP], ids=["no group", "group"])
async def test_requests_go_up_as_they_came(
    start: Start, raw_server: RawServers, plain_json: PlainJson, group: tuple[str, ...]
) -> None:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(plain_json(b'{"ok": true }'))

    model = await raw_server(answer)
    running = await start(model.url)
    own = ("Authorization: Bearer sk-mine", "X-Custom:  spaces  kept ", "Cookie: a=1", "Accept: */*")
    target = "/v1/chat/completions?api-version=2&x=%7e%2B+%20"
    said = await exchange(running.port, request(BODY.encode(), *own, *group, target=target))
    assert said.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body_of(said) == b'{"ok": true }'
    (got,) = model.requests
    assert got.line == f"POST {target} HTTP/1.1".encode()
    assert got.body == BODY.encode()
    assert got.get(b"host") == [f"127.0.0.1:{model.port}".encode()]
    assert got.get(b"authorization") == [b"Bearer sk-mine"]
    assert got.get(b"x-custom") == [b"spaces  kept"]
    assert got.get(b"cookie") == [b"a=1"]
    assert got.get(b"connection") == []
    assert [name for name, _ in got.headers if name.startswith(b"x-selective")] == []


@pytest.mark.parametrize("group", [(), GROUP], ids=["no group", "group"])
async def test_streams_come_down_as_they_are(
    start: Start, raw_server: RawServers, group: tuple[str, ...]
) -> None:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nX-Server: odd\r\n"
            b"Connection: X-Hop\r\nX-Hop: no\r\nAccess-Control-Allow-Origin: *\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for event in EVENTS:
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")

    model = await raw_server(answer)
    running = await start(model.url)
    body = b'{"messages":[{"role":"user","content":"hi"}],"stream":true}'
    said = await exchange(running.port, request(body, *group))
    assert body_of(said) == b"".join(EVENTS)
    head = said.partition(b"\r\n\r\n")[0].lower()
    assert b"x-server: odd" in head
    assert b"content-type: text/event-stream; charset=utf-8" in head
    assert b"x-hop" not in head
    assert b"access-control" not in head


async def test_a_part_of_a_stream_does_not_wait_for_the_next(start: Start, raw_server: RawServers) -> None:
    go_on = asyncio.Event()

    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n")
        await go_on.wait()
        writer.write(b"data: 2\n\n")
        writer.close()

    model = await raw_server(answer)
    running = await start(model.url)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(request(b'{"stream":true,"messages":[]}', *GROUP))
    assert b"data: 1\n\n" in await reader.readuntil(b"data: 1\n\n")
    go_on.set()
    assert b"data: 2\n\n" in await reader.read()
    writer.close()


async def test_a_client_that_leaves_ends_the_request_at_the_model_server(
    start: Start, raw_server: RawServers
) -> None:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n")
        await asyncio.Event().wait()

    model = await raw_server(answer)
    running = await start(model.url)
    for group in ((), GROUP):
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(request(b'{"stream":true,"messages":[]}', *group))
        await reader.readuntil(b"data: 1\n\n")
        writer.close()
    async with asyncio.timeout(60):
        while model.disconnects < 2:
            await asyncio.sleep(0.01)


async def test_every_method_and_path_below_v1_passes(
    start: Start, raw_server: RawServers, plain_json: PlainJson
) -> None:
    async def answer(got: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(plain_json(b"{}") if got.line.startswith(b"HEAD") is False else HEAD)

    model = await raw_server(answer)
    running = await start(model.url)
    for method, target in (
        ("GET", "/v1/models"),
        ("HEAD", "/v1/models"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/embeddings?x"),
        ("PUT", "/v1/a//b;c=%41"),
        ("GET", "/v1/models/org%2Fname.v1..2"),
    ):
        said = await exchange(running.port, request(method=method, target=target))
        assert said.startswith(b"HTTP/1.1 200"), said
        assert model.requests[-1].line == f"{method} {target} HTTP/1.1".encode()


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1234\r\n\r\n"


async def test_errors_and_packed_answers_pass(
    start: Start, raw_server: RawServers, plain_json: PlainJson
) -> None:
    packed = gzip.compress(b'{"choices": []}')
    answers = [
        plain_json(b'{"error":"Unauthorized"}', "401 Unauthorized", "WWW-Authenticate: Bearer"),
        plain_json(packed, "200 OK", "content-encoding: gzip"),
        b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 3\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n",
    ]

    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(answers[len(model.requests) - 1])

    model = await raw_server(answer)
    running = await start(model.url)
    said = [await exchange(running.port, request(b"{}", *GROUP)) for _ in answers]
    assert [one.split(b" ")[1] for one in said] == [b"401", b"200", b"429", b"304"]
    assert body_of(said[0]) == b'{"error":"Unauthorized"}'
    assert body_of(said[1]) == packed
    assert b"retry-after: 3" in said[2]


async def test_a_stale_connection_is_replaced_once(
    start: Start, raw_server: RawServers, plain_json: PlainJson
) -> None:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        if len(model.requests) == 2:  # as a server does that closes while the next request is on its way
            writer.close()
            return
        writer.write(plain_json(b"{}"))

    model = await raw_server(answer)
    running = await start(model.url)
    for _ in range(2):
        assert (await exchange(running.port, request(b"{}"))).startswith(b"HTTP/1.1 200")
    assert len(model.requests) == 3


async def test_no_server_is_a_502_that_clients_may_retry(start: Start) -> None:
    running = await start("http://127.0.0.1:1/v1")
    said = await exchange(running.port, request(b"{}"))
    assert said.startswith(b"HTTP/1.1 502")
    assert json.loads(body_of(said))["error"]["code"] == "upstream_unreachable"
    assert b"x-should-retry" not in said


@pytest.mark.parametrize("group", [(), GROUP], ids=["no group", "group"])
async def test_an_answer_that_breaks_off_breaks_off_for_the_client(
    start: Start, raw_server: RawServers, group: tuple[str, ...]
) -> None:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            b"9\r\ndata: 1\n\n\r\n"
        )
        await writer.drain()
        writer.transport.abort()

    model = await raw_server(answer)
    running = await start(model.url)
    said = await exchange(running.port, request(b'{"messages":[]}', *group))
    assert b"data: 1\n\n" in said
    assert not said.endswith(b"0\r\n\r\n")


async def test_usage_is_asked_for_and_taken_out_again(start: Start) -> None:
    body = {"model": "loopback-model", "messages": [{"role": "user", "content": "a b c"}], "stream": True}
    plain = json.dumps({**body, "seed": 1}).encode()
    with LoopbackServer(EchoBrain(), api_key=None) as model:
        running = await start(model.base_url, inject_usage=True)
        said = body_of(await exchange(running.port, request(plain, *GROUP)))
        own = json.dumps({**body, "stream_options": {"include_usage": True}}).encode()
        asked = body_of(await exchange(running.port, request(own, *GROUP)))
    assert b"usage" in asked
    assert b'"choices":[]' not in said.replace(b" ", b"")
    assert said.endswith(b"data: [DONE]\n\n")
    (group,) = running.gateway.view().groups
    assert group.unknown_requests == 0
    assert group.completion_tokens > 0


async def test_curl(start: Start) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    with LoopbackServer(EchoBrain(), api_key=None) as model:
        running = await start(model.base_url)
        process = await asyncio.create_subprocess_exec(
            *(curl, "-sS", "-N", f"{running.root}/g/g1/1/2/v1/chat/completions"),
            *("-H", "Content-Type: application/json"),
            *("-d", '{"model":"loopback-model","messages":[{"role":"user","content":"hello"}]}'),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
    assert json.loads(out)["choices"][0]["message"]["content"] == "hello"
    assert running.gateway.view().groups[0].members[1].completion_tokens > 0


async def test_five_hundred_streams_at_once(start: Start, raw_server: RawServers) -> None:
    streams = 500
    all_open = asyncio.Event()

    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n")
        if len(model.requests) == streams:
            all_open.set()
        await all_open.wait()
        writer.write(b"data: [DONE]\n\n")
        writer.close()

    model = await raw_server(answer)
    running = await start(model.url, limits=Limits(connections=2 * streams))

    async def one(i: int) -> bytes:
        group = (f"X-Selective-Rollout-Group: g{i // 8}", f"X-Selective-Rollout-Rollout: {i % 8}")
        size = "X-Selective-Rollout-Group-Size: 8"
        return await exchange(running.port, request(b'{"messages":[],"stream":true}', *group, size))

    async with asyncio.timeout(60):
        answers = await asyncio.gather(*(one(i) for i in range(streams)))
    assert all(body_of(one).endswith(b"data: {}\n\ndata: [DONE]\n\n") for one in answers)


async def test_a_client_that_does_not_read_stops_the_server_s_writing(
    start: Start, raw_server: RawServers
) -> None:
    written = 0
    stuck = asyncio.Event()

    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        event = b"data: " + b"x" * 100_000 + b"\n\n"
        for _ in range(1000):
            writer.write(event)
            written += len(event)
            try:
                await asyncio.wait_for(writer.drain(), 0.5)
            except TimeoutError:
                stuck.set()
                await asyncio.Event().wait()

    model = await raw_server(answer)
    running = await start(model.url)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port, limit=2**10)
    writer.write(request(b'{"messages":[]}', *GROUP))
    async with asyncio.timeout(60):
        await stuck.wait()
    assert written < 50_000_000
    writer.close()
    assert reader is not None


async def test_bodies_without_a_length_and_early_hints(start: Start, raw_server: RawServers) -> None:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\nx-own: 1\r\n\r\nto the end"
        )
        await writer.drain()
        writer.close()

    model = await raw_server(answer)
    running = await start(model.url)
    said = await exchange(running.port, request(b"{}"))
    assert said.startswith(b"HTTP/1.1 200 OK\r\nx-own: 1\r\n")
    assert body_of(said) == b"to the end"


@settings(max_examples=60)
@given(
    body=st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(
                    st.sampled_from(
                        ["messages", "input", "role", "content", "tool_calls", "type", "n", "stream"]
                    ),
                    inner,
                    max_size=5,
                )
            ),
            max_leaves=20,
        ).map(lambda value: json.dumps(value).encode()),
    ),
    path=st.sampled_from(["chat/completions", "completions", "responses"]),
)
def test_any_body_reaches_the_server_unchanged(body: bytes, path: str) -> None:
    """In an event loop of its own, since hypothesis calls this many times."""
    asyncio.run(_reaches_the_server(body, path))


async def _reaches_the_server(body: bytes, path: str) -> None:
    from selective_rollout.integrations.gateway import Gateway, GatewayConfig
    from selective_rollout.policy.endpoint import Endpoint

    seen: list[bytes] = []

    async def model(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        seen.append(await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: " + str(len(body)).encode() + b"\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(model, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    gateway = Gateway(
        GatewayConfig(upstream=Endpoint(base_url=f"http://127.0.0.1:{port}/v1")), lambda _: None
    )
    said: list[dict[str, Any]] = []
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(event: dict[str, Any]) -> None:
        said.append(event)

    scope = {
        "type": "http",
        "method": "POST",
        "raw_path": f"/g/g1/0/2/v1/{path}".encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }
    await gateway(scope, receive, send)
    await gateway({"type": "none"}, receive, send)
    server.close()
    assert seen == [body]
    assert said[0]["status"] == 200
    assert b"".join(event.get("body", b"") for event in said) == body
