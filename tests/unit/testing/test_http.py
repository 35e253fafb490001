"""Raw sockets against the server: what an HTTP client library would hide."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from selective_rollout.errors import ConfigError, PrerequisiteError
from selective_rollout.testing import EchoBrain, Limits, LoopbackServer, ScriptedBrain

LONG = ScriptedBrain(lambda *_: "word " * 2000)


def post(server: LoopbackServer, body: dict[str, Any] | bytes, *headers: str) -> bytes:
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: loopback",
        f"Authorization: Bearer {server.api_key}",
        f"Content-Length: {len(payload)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


def chat(content: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **fields}


@contextmanager
def connect(server: LoopbackServer) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.bound_port), timeout=60) as sock:
        yield sock


def read_all(sock: socket.socket) -> bytes:
    """Everything until the server closes, gently or not."""
    data = b""
    with suppress(ConnectionResetError):
        while part := sock.recv(65536):
            data += part
    return data


def read_until(sock: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        part = sock.recv(65536)
        assert part, f"closed before {end!r}: {data!r}"
        data += part
    return data


def status(response: bytes) -> int:
    return int(response.split(b" ", 2)[1])


def test_a_connection_serves_one_request_after_the_other() -> None:
    with LoopbackServer(EchoBrain()) as server, connect(server) as sock:
        for word in ("one", "two"):
            sock.sendall(post(server, chat(word)))
            assert b'"content":"%b"' % word.encode() in read_until(sock, b"}}")
        sock.sendall(post(server, chat("three", stream=True)))
        assert read_until(sock, b"0\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\n")
        sock.sendall(post(server, chat("four"), "Connection: close"))
        assert b'"content":"four"' in read_all(sock)


def test_llama_cpp_promises_keep_alive_after_a_stream_and_closes() -> None:
    with LoopbackServer(EchoBrain(), "llama.cpp", framing="plain") as server, connect(server) as sock:
        sock.sendall(post(server, chat("one")))
        read_until(sock, b"}}")
        sock.sendall(post(server, chat("two", stream=True)))
        response = read_all(sock)
        assert b"keep-alive: timeout" in response.lower()
        assert response.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_a_request_that_comes_early_waits_for_its_turn() -> None:
    with LoopbackServer(EchoBrain(), step_delay_s=0.01) as server, connect(server) as sock:
        sock.sendall(post(server, chat("one")) + post(server, chat("two"), "Connection: close"))
        response = read_all(sock)
        assert response.index(b'"content":"one"') < response.index(b'"content":"two"')
        assert server.counters.peak_in_flight == 1


def test_events_are_split_and_joined_also_inside_a_character() -> None:
    brain = ScriptedBrain(lambda *_: "日本 語の 物語 を 読む こと が すき です")
    for framing, torn in (("mixed", True), ("plain", False)):
        with LoopbackServer(brain, framing=framing) as server, connect(server) as sock:  # type: ignore[arg-type]
            sock.sendall(post(server, chat(stream=True, n=3), "Connection: close"))
            body = read_all(sock).partition(b"\r\n\r\n")[2]
        pieces, rest = [], body
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            pieces.append(rest[: int(size, 16)])
            rest = rest[int(size, 16) + 2 :]
        assert any(not _is_utf8(piece) for piece in pieces) == torn
        assert any(piece.count(b"data: ") > 1 for piece in pieces) == torn
        events = b"".join(pieces).decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        assert all(event.startswith("data: ") for event in events[:-1])


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("half", [True, False])
def test_a_client_that_leaves_stops_the_generation(half: bool) -> None:
    with LoopbackServer(LONG, step_delay_s=0.002) as server:
        with connect(server) as sock:
            sock.sendall(post(server, chat(stream=True, n=4)))
            read_until(sock, b"\n\n\r\n")
            if half:
                sock.shutdown(socket.SHUT_WR)
                server.wait_until(lambda c: c.disconnects == 1)
        now = server.wait_until(lambda c: c.disconnects == 1 and c.in_flight == 0)
        assert now.completion_tokens < 4 * 1000
        assert now.tokens_after_disconnect <= 4
        assert now.records[0].status == 200


def test_a_client_that_waits_for_a_whole_answer_is_noticed_too() -> None:
    with LoopbackServer(LONG, step_delay_s=0.002) as server:
        with connect(server) as sock:
            sock.sendall(post(server, chat(n=4)))
            server.wait_until(lambda c: c.completion_tokens > 0)
        now = server.wait_until(lambda c: c.in_flight == 0)
        assert now.completion_tokens < 4 * 1000
        assert (now.disconnects, now.tokens_sent, now.records[0].status) == (1, 0, None)
        assert now.responses == {("/v1/chat/completions", None): 1}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 70_000, 431),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n\r\n" + b"x" * 2000, 413),
    ],
)
def test_broken_or_oversized_requests_are_refused(raw: bytes, expected: int) -> None:
    limits = Limits(body_bytes=1000)
    with LoopbackServer(EchoBrain(), limits=limits) as server, connect(server) as sock:
        sock.sendall(raw)
        assert status(sock.recv(65536)) == expected


def test_a_client_may_ask_before_it_sends_the_body() -> None:
    with LoopbackServer(EchoBrain()) as server, connect(server) as sock:
        head, _, body = post(server, chat("slow"), "Expect: 100-continue").partition(b"\r\n\r\n")
        sock.sendall(head + b"\r\n\r\n")
        assert status(read_until(sock, b"\r\n\r\n")) == 100
        sock.sendall(body)
        assert b'"content":"slow"' in read_until(sock, b"}}")


def test_a_head_request_gets_a_head() -> None:
    with LoopbackServer(EchoBrain(), api_key=None) as server, connect(server) as sock:
        sock.sendall(b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        response = read_all(sock)
        assert status(response) == 405
        assert response.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nContent-Le"])
def test_idle_connections_are_closed(sent: bytes) -> None:
    with (
        LoopbackServer(EchoBrain(), limits=Limits(idle_s=0.05, read_s=0.05)) as server,
        connect(server) as sock,
    ):
        sock.sendall(sent)
        begun = time.monotonic()
        assert read_all(sock) == b""
        assert time.monotonic() - begun < 8, "at the default limits it takes 10 s"


def test_connections_are_bounded() -> None:
    with LoopbackServer(EchoBrain(), limits=Limits(connections=1)) as server, connect(server) as first:
        first.sendall(post(server, chat("one")))
        read_until(first, b"}}")
        with connect(server) as second:
            assert read_all(second) == b""


def test_stopping_the_server_breaks_what_is_open() -> None:
    server = LoopbackServer(LONG, step_delay_s=0.01)
    server.start()
    with connect(server) as sock, connect(server):
        sock.sendall(post(server, chat(stream=True)))
        read_until(sock, b"\n\n\r\n")
        server.stop()
        assert b"[DONE]" not in read_all(sock)
    server.stop()
    assert server.counters.in_flight == 0
    assert server.counters.disconnects == 0
    with pytest.raises(ConfigError, match="serves once"):
        server.start()


def test_a_port_in_use_is_named() -> None:
    with (
        LoopbackServer(EchoBrain()) as first,
        pytest.raises(PrerequisiteError, match=f"cannot listen on 127.0.0.1:{first.bound_port}"),
        LoopbackServer(EchoBrain(), port=first.bound_port),
    ):
        pass
