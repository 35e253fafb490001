"""Whatever a server sends, the client ends: with a completion that can be used, or one clear failure."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.actions import ActionOptions, canonicalise, read_action
from selective_rollout.errors import PolicyError
from selective_rollout.policy.base import Completion, RequestInfo
from selective_rollout.policy.endpoint import Endpoint
from selective_rollout.policy.openai_client import OpenAIPolicy
from selective_rollout.policy.options import RequestLimits
from selective_rollout.trace.group_log import GroupLog
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder

KINDS = {
    "connection",
    "timeout",
    "auth",
    "model_not_found",
    "context_length",
    "overloaded",
    "rate_limit",
    "bad_request",
    "server",
    "protocol",
}
LIMITS = RequestLimits(max_retries=0, timeout_s=200, first_token_timeout_s=100, stall_timeout_s=100)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(), max_size=6),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)
CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "open", "arguments": "{}"}}
DELTAS: list[dict[str, Any]] = [
    {"role": "assistant", "content": ""},
    {"content": "go to "},
    {"reasoning": "hm", "content": None},
    {"tool_calls": [CALL]},
    {"function_call": {"name": "f", "arguments": "{"}},
    {},
]


def chunk(delta: object, finish: object = None, **extra: object) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "token_ids": [1], "logprobs": None}
    return {"id": "r", "object": "chat.completion.chunk", "choices": [choice], **extra}


USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "prompt_tokens_details": None}
WHOLE: dict[str, Any] = {
    "id": "r",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "go"}, "finish_reason": "stop"},
    ],
    "usage": USAGE,
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


@st.composite
def damaged(draw: st.DrawFn, document: dict[str, Any]) -> Any:
    """A document of the API in which some values were replaced or taken out."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(0, 2))):
        path = draw(st.sampled_from(places(document)))
        if not path:
            return draw(values)
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        if isinstance(parent, dict) and draw(st.booleans()):
            del parent[path[-1]]
        else:
            parent[path[-1]] = draw(values)
    return document


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """A stream of events, some of them damaged, lost, repeated, or no events at all."""
    deltas = draw(st.lists(st.sampled_from(DELTAS), max_size=4))
    chunks = [chunk(delta) for delta in deltas]
    chunks += [chunk({}, "stop"), {**chunk(None, usage=USAGE), "choices": []}]
    lines: list[bytes] = []
    for document in draw(st.permutations(chunks)) if draw(st.booleans()) else chunks:
        text = json.dumps(draw(damaged(document))).encode()
        noise = draw(st.sampled_from(["event", "event", "event", "event", "twice", "raw", "named", "text"]))
        lines += {
            "event": [b"data: " + text + b"\n\n"],
            "twice": [b"data: " + text + b"\n\n"] * 2,
            "raw": [draw(st.binary(max_size=20))],
            "named": [b"event: error\ndata: " + text + b"\n\n", b": ping\r\n\r\n"],
            "text": [b"data: " + draw(st.text(max_size=8)).encode("utf-8", "replace") + b"\n\n"],
        }[noise]
    lines += draw(st.sampled_from([[b"data: [DONE]\n\n"], [], [b'data: {"error": "gone"}\n\n']]))
    body = b"".join(lines)
    return body[: draw(st.integers(0, len(body)))] if draw(st.booleans()) else body


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """A whole HTTP response, as it goes over the wire."""
    status = draw(st.sampled_from([200, 200, 200, 200, 204, 301, 400, 401, 429, 500, 503]))
    kind = draw(
        st.sampled_from(["text/event-stream", "text/event-stream", "application/json", "text/html", ""])
    )
    whole = damaged(WHOLE).map(lambda document: json.dumps(document).encode())
    hostile = st.sampled_from([b"[" * 5000, b'{"choices": ' + b"9" * 5000 + b"}", b"\xff\xfe", b"nul", b""])
    body = draw(streams() | whole | hostile | hostile.map(lambda text: b"data: " + text + b"\n\n"))
    length = draw(st.sampled_from(["exact", "exact", "none", "long", "chunked"]))
    head = [f"HTTP/1.1 {status} x", "Connection: close"] + ([f"Content-Type: {kind}"] if kind else [])
    head += {
        "exact": [f"Content-Length: {len(body)}"],
        "none": [],
        "long": [f"Content-Length: {len(body) + 9}"],
        "chunked": ["Transfer-Encoding: chunked"],
    }[length]
    if length == "chunked":
        body = b"%x\r\n%s\r\n" % (len(body), body) + draw(st.sampled_from([b"0\r\n\r\n", b"", b"zz\r\n"]))
    return "\r\n".join([*head, "", ""]).encode() + body


class Ear:
    """Listens like a stream gate does."""

    def heard(self, piece: Any) -> None:
        assert isinstance(piece.text, str)
        assert piece.token_ids is None or all(type(i) is int for i in piece.token_ids)

    def broke(self) -> None:
        pass


class Liar:
    """A server that says exactly the given bytes, and the client that asks it, on a loop of their own."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.answer = b""
        self.policies: dict[bool, OpenAIPolicy] = {}

    def __enter__(self) -> Liar:
        self.runner.run(self.open())
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.run(self.close())
        self.runner.close()

    async def open(self) -> None:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/v1"
        for stream in (False, True):
            endpoint = Endpoint(base_url=url, model="m")
            self.policies[stream] = OpenAIPolicy(endpoint, stream=stream, keep_alive=False, limits=LIMITS)

    async def close(self) -> None:
        for policy in self.policies.values():
            await policy.aclose()
        self.server.close()
        await self.server.wait_closed()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head.split(b"content-length:")[1].split(b"\r\n")[0]
        await reader.readexactly(int(length))
        writer.write(self.answer)
        writer.close()

    def ask(self, answer: bytes, *, stream: bool) -> Completion | PolicyError:
        self.answer = answer
        return self.runner.run(self.complete(stream))

    async def complete(self, stream: bool) -> Completion | PolicyError:
        info = RequestInfo("g", 0, 1, listener=Ear())
        try:
            async with asyncio.timeout(60):
                return await self.policies[stream].complete([{"role": "user", "content": "hi"}], info)
        except PolicyError as error:
            return error


@pytest.fixture(scope="module")
def liar() -> Iterator[Liar]:
    with Liar() as liar:
        yield liar


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def check(outcome: Completion | PolicyError, folder: Path) -> None:
    """A failure has a known kind and one line; a completion can be acted on, sent back, written and read."""
    if isinstance(outcome, PolicyError):
        assert outcome.kind in KINDS
        assert outcome.message
        assert "\n" not in outcome.message
        return
    message = outcome.message
    json.dumps(message).encode()
    assert isinstance(canonicalise(read_action(message, ActionOptions()), ActionOptions()), str)
    path = folder / "t.jsonl"
    path.unlink(missing_ok=True)
    with Recorder(path) as recorder:
        log = GroupLog(recorder.write, "g")
        log.begin(size=2, task_id="g")
        log.step(0, "act", usage=outcome.usage, finish_reason=outcome.finish_reason)
        log.finish(0, lost=outcome.usage)
        log.end()
    [group] = read_groups(path)
    assert group.group.rollouts[0].steps[0].usage == outcome.usage


@given(answers(), st.booleans())
@settings(max_examples=150)
def test_every_answer_ends_in_a_completion_or_a_clear_failure(
    liar: Liar, folder: Path, answer: bytes, stream: bool
) -> None:
    check(liar.ask(answer, stream=stream), folder)


@given(st.binary(max_size=60), st.booleans())
@settings(max_examples=30)
def test_bytes_that_are_no_http_are_a_failure(liar: Liar, folder: Path, answer: bytes, stream: bool) -> None:
    outcome = liar.ask(answer, stream=stream)
    assert isinstance(outcome, PolicyError)
    check(outcome, folder)
