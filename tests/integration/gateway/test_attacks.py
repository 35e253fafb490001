"""The attack list: each way in that is known for a server on loopback, and what comes of it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from selective_rollout.errors import ConfigError, PrerequisiteError
from selective_rollout.integrations.gateway import ClientKeys, GatewayConfig, Limits
from selective_rollout.integrations.gateway.keys import kept_salt, read_keys
from selective_rollout.integrations.gateway.lock import only_writer
from selective_rollout.policy.endpoint import Endpoint

Start = Callable[..., Awaitable[Any]]
RawServers = Callable[..., Awaitable[Any]]
UPSTREAM_KEY = "sk-upstream-secret-0123456789"
ALICE, BOB = "sr-alice-alice-alice", "sr-bob-bob-bob-bob-bob"
CHAT = "/v1/chat/completions"


async def exchange(port: int, request: bytes) -> tuple[int, dict[str, Any], bytes]:
    """Send raw bytes; returns status, JSON body (or {}), and everything that came back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        answer = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    status = int(answer.split(b" ")[1]) if answer else 0
    try:
        body = json.loads(answer.partition(b"\r\n\r\n")[2])
    except ValueError:
        body = {}
    return status, body, answer


def request(
    *headers: str,
    method: str = "POST",
    target: str = CHAT,
    host: str = "127.0.0.1",
    kind: str | None = "application/json",
    body: bytes = b'{"messages":[]}',
    length: bool = True,
) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    lines += [f"Content-Type: {kind}"] if kind else []
    lines += [f"Content-Length: {len(body)}"] if length else []
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def group(name: str = "g", rollout: str = "0", size: str = "2") -> tuple[str, str, str]:
    return (
        f"X-Selective-Rollout-Group: {name}",
        f"X-Selective-Rollout-Rollout: {rollout}",
        f"X-Selective-Rollout-Group-Size: {size}",
    )


@pytest.fixture
async def model(raw_server: RawServers, plain_json: Callable[..., bytes]) -> Any:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(plain_json(b'{"choices":[]}'))

    return await raw_server(answer)


REFUSED: dict[str, tuple[bytes, int]] = {
    "DNS rebinding": (request(host="evil.example"), 421),
    "DNS rebinding with the right port": (request(host="evil.example:8790"), 421),
    "a host that only begins like loopback": (request(host="127.0.0.1.evil.example"), 421),
    "a host behind credentials": (request(host="127.0.0.1@evil.example"), 421),
    "a page's fetch": (request("Origin: https://evil.example"), 403),
    "a page on another loopback port": (request("Origin: http://127.0.0.1:3000"), 403),
    "a sandboxed page": (request("Origin: null"), 403),
    "a page's image or link": (request("Sec-Fetch-Site: cross-site", method="GET", body=b""), 403),
    "a page's form": (request(kind="application/x-www-form-urlencoded"), 415),
    "a page's plain text": (request(kind="text/plain"), 415),
    "JSON in a content type's clothes": (request(kind="text/plain; application/json"), 415),
    "no content type": (request(kind=None), 415),
    "asking for CORS": (request("Origin: http://localhost", method="OPTIONS", body=b""), 403),
    "asking for CORS without an origin": (request(method="OPTIONS", body=b""), 405),
    "TRACE": (request(method="TRACE", body=b""), 405),
    "two hosts": (request("Host: evil.example"), 400),
    "two lengths": (request("Content-Length: 3"), 400),
    "length and chunks": (request("Transfer-Encoding: chunked", body=b"0\r\n\r\n"), 400),
    "two keys": (request("Authorization: Bearer a", "Authorization: Bearer b"), 400),
    "two groups": (request(*group(), "X-Selective-Rollout-Group: h"), 400),
    "group in path and headers": (request(*group(), target=f"/g/g/0/2{CHAT}"), 400),
    "an unknown group header": (request(*group(), "X-Selective-Rollout-Admin: 1"), 400),
    "half an address": (request(group()[0]), 400),
    "out of /v1 by dots": (request(target="/v1/../admin"), 400),
    "out of /v1 by coded dots": (request(target="/v1/%2e%2E/admin"), 400),
    "out of /v1 by a coded slash": (request(target="/v1/..%2fadmin"), 400),
    "out of /v1 by a backslash": (request(target="/v1/..\\admin"), 400),
    "out of /v1 behind a group": (request(target="/g/a/0/2/v1/../admin"), 400),
    "dots as a group": (request(target="/g/../0/2/v1/models"), 400),
    "beside /v1": (request(target="/admin"), 404),
    "beside /v1, named alike": (request(target="/v1x/models"), 404),
    "an id that is too long": (request(*group("a" * 129)), 400),
    "an id that is empty": (request(*group("")), 400),
    "an id with a slash": (request(*group("a/b")), 400),
    "an id with a line feed": (request(target=f"/g/a%0ab/0/2{CHAT}"), 400),
    "an id in another script": (request(*group("é")), 400),
    "a rollout out of range": (request(*group("g", "2")), 400),
    "a rollout below zero": (request(*group("g", "-1")), 400),
    "a rollout in other digits": (request(*group("g", "²")), 400),
    "a size of one": (request(*group("g", "0", "1")), 400),
    "a size beyond all bounds": (request(*group("g", "0", "99999999999")), 400),
    "a body that is too large": (request(body=b"x" * 5000), 413),
    "a body that says it is too large": (request("Content-Length: 999999999", length=False), 413),
    "a header that is too large": (request("X-Big: " + "x" * 9000), 400),
    "very many headers": (request(*(f"X-{i}: {'x' * 50}" for i in range(300))), 400),
    "a target that is too large": (request(target="/v1/" + "x" * 9000), 400),
    "no HTTP at all": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "a header name with a blank": (request("Authorization : Bearer x"), 400),
    "a folded header": (request("X-A: 1\r\n Authorization: Bearer x"), 400),
    "a bare line feed in a header": (request("X-A: 1\nX-B: 2"), 400),
}


@pytest.mark.parametrize("attack", REFUSED)
async def test_refused_and_never_passed_on(start: Start, model: Any, attack: str) -> None:
    running = await start(model.url, limits=Limits(body_bytes=4096, header_bytes=8192))
    sent, expected = REFUSED[attack]
    status, _, answer = await exchange(running.port, sent)
    assert status == expected
    assert model.requests == []
    assert b"access-control" not in answer.lower()
    assert running.gateway.view().groups == ()


async def test_a_chunked_body_is_bounded_too(start: Start, model: Any) -> None:
    running = await start(model.url, limits=Limits(body_bytes=4096))
    chunks = b"%x\r\n%s\r\n" % (5000, b"x" * 5000)
    sent = request("Transfer-Encoding: chunked", length=False, body=chunks + b"0\r\n\r\n")
    assert (await exchange(running.port, sent))[0] == 413
    assert model.requests == []


async def test_trailers_are_no_headers(start: Start, model: Any) -> None:
    running = await start(model.url)
    body = b"2\r\n{}\r\n0\r\nAuthorization: Bearer smuggled\r\nX-Selective-Rollout-Group: g\r\n\r\n"
    status, _, _ = await exchange(
        running.port, request("Transfer-Encoding: chunked", length=False, body=body)
    )
    assert status == 200
    (got,) = model.requests
    assert (got.body, got.get(b"authorization")) == (b"{}", [])


async def test_hop_by_hop_headers_stay(start: Start, model: Any) -> None:
    running = await start(model.url)
    sent = request(
        *("Keep-Alive: 1", "TE: trailers", "Proxy-Authorization: Basic eA==", "X-Secret-Hop: 1"),
        *("Upgrade: h2c", "HTTP2-Settings: AAMAAABk", "Trailer: X", "Expect: 100-continue"),
    ).replace(b"Connection: close", b"Connection: close, X-Secret-Hop")
    assert (await exchange(running.port, sent))[0] in (100, 200)
    (got,) = model.requests
    assert {name for name, _ in got.headers} == {b"host", b"content-type", b"content-length"}


async def test_a_slow_head_and_a_slow_body_end(start: Start, model: Any) -> None:
    running = await start(model.url, limits=Limits(body_s=0.1))
    async with asyncio.timeout(60):
        assert (await exchange(running.port, b"POST /v1/chat/completions HTTP/1.1\r\nHost:"))[0] == 0
        status, body, _ = await exchange(running.port, request("Content-Length: 9", body=b"{", length=False))
    assert (status, body["error"]["code"]) == (408, "body_timeout")
    assert model.requests == []


async def test_redirects_are_not_followed_nor_handed_on(start: Start, raw_server: RawServers) -> None:
    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:1/steal\r\n"
            b"content-length: 0\r\n\r\n"
        )

    model = await raw_server(answer)
    running = await start(model.url, api_key=UPSTREAM_KEY, clients=ClientKeys({"": ALICE}))
    status, body, said = await exchange(running.port, request(f"Authorization: Bearer {ALICE}"))
    assert (status, body["error"]["code"]) == (502, "upstream_redirects")
    assert b"steal" not in said
    assert len(model.requests) == 1


async def test_an_absolute_target_does_not_choose_the_server(start: Start, model: Any) -> None:
    running = await start(model.url)
    await exchange(running.port, request(target="http://evil.example/v1/models"))
    assert [got.line for got in model.requests] == [b"POST /v1/models HTTP/1.1"]


async def test_answers_cannot_smuggle_either(start: Start, raw_server: RawServers) -> None:
    answers = [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 300_000 + b"\r\n\r\n",
        b"garbage\r\n\r\n",
    ]

    async def answer(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(answers[len(model.requests) - 1])

    model = await raw_server(answer)
    running = await start(model.url)
    for _ in answers:
        status, body, _ = await exchange(running.port, request())
        assert (status, body["error"]["code"]) == (502, "upstream_unreachable")


class TestKeys:
    """A gateway that holds the model server's key."""

    async def test_nobody_comes_in_without_a_key(self, start: Start, model: Any) -> None:
        running = await start(model.url, api_key=UPSTREAM_KEY, clients=ClientKeys({"": ALICE}))
        for given in ((), (f"Authorization: Bearer {BOB}",), (f"Authorization: Bearer {UPSTREAM_KEY}",)):
            for target in (CHAT, f"/g/g/0/2{CHAT}", "/selective-rollout/v1/groups/g/end"):
                status, body, _ = await exchange(running.port, request(*given, target=target))
                assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        assert model.requests == []

    async def test_the_server_sees_its_own_key_and_no_client_s(self, start: Start, model: Any) -> None:
        running = await start(model.url, api_key=UPSTREAM_KEY, clients=ClientKeys({"": ALICE}))
        own = ("OpenAI-Organization: org-theirs", "Cookie: session=1", "X-Api-Key: theirs", "Api-Key: theirs")
        await exchange(running.port, request(f"Authorization: bearer  {ALICE}", *own))
        (got,) = model.requests
        assert got.get(b"authorization") == [f"Bearer {UPSTREAM_KEY}".encode()]
        assert {b"openai-organization", b"cookie", b"x-api-key", b"api-key"} & {
            n for n, _ in got.headers
        } == set()
        assert ALICE.encode() not in got.head

    async def test_groups_of_two_clients_never_meet(self, start: Start, model: Any) -> None:
        clients = ClientKeys({"alice": ALICE, "bob": BOB})
        running = await start(model.url, api_key=UPSTREAM_KEY, clients=clients)
        as_alice, as_bob = (f"Authorization: Bearer {key}" for key in (ALICE, BOB))
        assert (await exchange(running.port, request(as_alice, *group("g", "0", "2"))))[0] == 200
        assert (await exchange(running.port, request(as_bob, *group("g", "2", "4"))))[0] == 200
        assert len(running.gateway.view().groups) == 2
        end = "/selective-rollout/v1/groups/g/rollouts/0/end"
        assert (await exchange(running.port, request(as_bob, target=end, body=b"{}")))[0] == 200
        (own,) = running.gateway.view("alice").groups
        assert (own.size, [m.status for m in own.members]) == (2, ["running", "running"])
        state = request(as_bob, method="GET", target="/selective-rollout/v1/state", body=b"")
        shown = (await exchange(running.port, state))[1]
        assert [g["size"] for g in shown["groups"]] == [4]
        only = request(as_alice, *group("alices", "0", "2"))
        await exchange(running.port, only)
        theirs = request(as_bob, target=end.replace("/g/", "/alices/"), body=b"{}")
        assert (await exchange(running.port, theirs))[0] == 404

    async def test_without_client_keys_scopes_go_by_the_client_s_own_key(
        self, start: Start, model: Any
    ) -> None:
        running = await start(model.url, clients=ClientKeys(salt=b"s" * 32))
        for key in ("sk-one", "sk-two", "EMPTY"):
            await exchange(running.port, request(f"Authorization: Bearer {key}", *group()))
        await exchange(running.port, request(*group()))
        scopes = sorted(desk.facts.scope for desk in running.gateway.book)
        assert (len(scopes), scopes[0]) == (3, "")
        assert not any("sk-" in scope for scope in scopes)

    async def test_secrets_are_neither_logged_nor_recorded(
        self, start: Start, raw_server: RawServers, plain_json: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def answer(got: Any, writer: asyncio.StreamWriter) -> None:
            echoed = json.dumps({"error": {"message": f"bad key {got.get(b'authorization')[0].decode()}"}})
            writer.write(plain_json(echoed.encode(), "401 Unauthorized"))

        caplog.set_level(logging.DEBUG)
        model = await raw_server(answer)
        running = await start(model.url, api_key=UPSTREAM_KEY, clients=ClientKeys({"": ALICE}))
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        turns = [{"role": "user", "content": "u"}, {"role": "assistant", "tool_calls": [call]}]
        for messages in (turns[:1], turns):
            sent = request(
                f"Authorization: Bearer {ALICE}", *group(), body=json.dumps({"messages": messages}).encode()
            )
            status, _, said = await exchange(running.port, sent)
            assert status == 401
            assert UPSTREAM_KEY.encode() not in said
        texts = [
            running.trace.read_text(),
            caplog.text,
            repr(running.gateway.config),
            repr(running.gateway.view()),
        ]
        texts.append(
            (await exchange(running.port, request(method="GET", target="/metrics", body=b"")))[2].decode()
        )
        for text in texts:
            assert UPSTREAM_KEY not in text
            assert ALICE not in text

    def test_a_held_key_needs_client_keys(self) -> None:
        with pytest.raises(ConfigError, match="needs client keys"):
            GatewayConfig(upstream=Endpoint(base_url="http://127.0.0.1:1/v1", api_key=UPSTREAM_KEY))

    def test_weak_or_doubled_keys_are_refused_without_being_shown(self) -> None:
        for keys in (
            {"a": "short"},
            {"a": "with blank in the key"},
            {"a b": ALICE},
            {"a": ALICE, "b": ALICE},
        ):
            with pytest.raises(ConfigError) as refused:
                ClientKeys(keys)
            assert not any(key in str(refused.value) for key in keys.values())

    def test_a_key_file_is_for_its_owner_only(self, tmp_path: Path) -> None:
        path = tmp_path / "keys"
        path.write_text(f"# clients\nalice {ALICE}\n\nbob {BOB}\n")
        path.chmod(0o644)
        with pytest.raises(ConfigError, match="chmod 600"):
            read_keys(path)
        path.chmod(0o600)
        assert read_keys(path) == {"alice": ALICE, "bob": BOB}
        path.write_text(f"alice {ALICE} extra\n")
        with pytest.raises(ConfigError, match="keys:1: expected") as refused:
            read_keys(path)
        assert ALICE not in str(refused.value)

    def test_the_salt_outlives_a_restart(self, tmp_path: Path) -> None:
        salt = kept_salt(tmp_path / "run" / "scope.salt")
        assert kept_salt(tmp_path / "run" / "scope.salt") == salt
        assert (tmp_path / "run" / "scope.salt").stat().st_mode & 0o077 == 0


async def test_ids_of_one_client_cannot_fill_the_memory(start: Start, model: Any) -> None:
    limits = Limits(open_groups=3, ended_groups=2, ended_ttl_s=100)
    running = await start(model.url, limits=limits)
    for i in range(6):
        await exchange(running.port, request(*group(f"g{i}")))
    assert [g.group for g in running.gateway.view().groups] == ["g0", "g1", "g2"]
    assert len(model.requests) == 6
    for i in range(3):
        await exchange(running.port, request(target=f"/selective-rollout/v1/groups/g{i}/end", body=b"{}"))
    assert [g.group for g in running.gateway.view().groups] == ["g2", "g1"]
    await exchange(running.port, request(*group("g0")))  # its id is used up
    assert [g.group for g in running.gateway.view().groups] == ["g2", "g1"]
    running.sweep_after(101)
    assert running.gateway.view().groups == ()


async def test_metric_labels_are_bounded(start: Start, model: Any) -> None:
    running = await start(model.url)
    for i in range(20):
        await exchange(running.port, request(*group(f"evil{i}"), target=f"{CHAT}?{i}"))
        await exchange(running.port, request(target=f"/v1/evil{i}"))
    _, _, said = await exchange(running.port, request(method="GET", target="/metrics", body=b""))
    assert b"evil" not in said
    assert b'selective_rollout_requests_total{result="recorded"} 20\n' in said
    assert b"# TYPE selective_rollout_groups_open gauge\nselective_rollout_groups_open 20\n" in said


def test_a_second_gateway_on_one_trace_is_turned_away(tmp_path: Path) -> None:
    with only_writer(tmp_path / "lock"):
        with pytest.raises(PrerequisiteError, match="another gateway"):
            with only_writer(tmp_path / "lock"):
                pass
    with only_writer(tmp_path / "lock"):
        pass
