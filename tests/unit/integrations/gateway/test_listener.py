"""Answers are known before the client has them, however the network splits them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.integrations.gateway.answer import Answer, read_whole
from selective_rollout.integrations.gateway.listener import (
    StreamListener,
    WholeListener,
    with_usage,
    without_usage,
)
from selective_rollout.types import Usage


def event(value: object, end: str = "\n\n") -> bytes:
    return f"data: {json.dumps(value)}{end}".encode()


def delta(**fields: Any) -> dict[str, Any]:
    reason = fields.pop("finish_reason", None)
    return {"id": "r1", "choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


def call(index: int, text: str, **named: str) -> dict[str, Any]:
    function = {"arguments": text} | ({"name": named["name"]} if named else {})
    return {"index": index, "function": function} | ({"id": named["id"]} if named else {})


USAGE = {"id": "r1", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}}
CALLS = [
    event(delta(role="assistant", content=None)),
    event(delta(tool_calls=[call(0, '{"id', id="a", name="open")]), "\r\n\r\n"),
    event(delta(tool_calls=[call(1, '{"id":2}', id="b", name="open")])),
    event(delta(tool_calls=[call(0, '":1}')])),
    event(delta(finish_reason="tool_calls")),
    event(USAGE),
    b"data: [DONE]\n\n",
]


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@settings(max_examples=150)
@given(st.lists(st.integers(0, 10_000), max_size=8))
def test_a_stream_is_whole_for_the_client_and_read_once_its_last_event_is_sent(cuts: list[int]) -> None:
    data = b"".join(CALLS)
    answers: list[Answer | None] = []
    listener = StreamListener("chat", 1, 2**20, answers.append, hide_usage=False)
    shown = b""
    for chunk in split(data, cuts):
        shown += listener.feed(chunk)
        listener.sent()
        assert bool(answers) == (b"[DONE]" in shown)
        assert data.startswith(shown)
    assert shown + listener.end() == data
    (answer,) = answers
    assert answer is not None
    assert answer.message is not None
    arguments = [c["function"]["arguments"] for c in answer.message["tool_calls"]]
    assert arguments == ['{"id":1}', '{"id":2}']
    assert answer.usage == Usage(prompt=7, completion=5, source="server")


@settings(max_examples=60)
@given(st.lists(st.integers(0, 10_000), max_size=6))
def test_only_the_usage_chunk_is_hidden(cuts: list[int]) -> None:
    answers: list[Answer | None] = []
    listener = StreamListener("chat", 1, 2**20, answers.append, hide_usage=True)
    shown = b"".join(listener.feed(chunk) for chunk in split(b"".join(CALLS), cuts)) + listener.end()
    listener.close()
    assert shown == b"".join(one for one in CALLS if one != event(USAGE))
    assert answers[0] is not None
    assert answers[0].usage.completion == 5


def test_events_that_only_look_like_usage_stay() -> None:
    kept = [
        event({"choices": [], "prompt_filter_results": []}),
        event({"choices": [{"index": 0}], "usage": {"completion_tokens": 1}}),
        event({"choices": [], "usage": None}),
        b'data: {"choices": [] broken\n\n',
    ]
    assert without_usage(b"".join([*kept, event(USAGE, "\r\n\r\n")])) == b"".join(kept)


def test_a_stream_that_breaks_off_tells_what_was_generated() -> None:
    answers: list[Answer | None] = []
    listener = StreamListener("chat", 1, 2**20, answers.append, hide_usage=False)
    for word in ("a", "b", "c"):
        listener.feed(event(delta(content=word)))
    listener.close()
    listener.close()
    (answer,) = answers
    assert answer is not None
    assert (answer.message, answer.usage) == (None, Usage(completion=3, source="client"))


def test_answers_beyond_the_limit_pass_unread() -> None:
    answers: list[Answer | None] = []
    whole = WholeListener("chat", 1, 10, answers.append)
    assert [whole.feed(b"x" * 6), whole.feed(b"y" * 6), whole.feed(b"z"), whole.end()] == [
        b"",
        b"x" * 6 + b"y" * 6,
        b"z",
        b"",
    ]
    stream = StreamListener("chat", 1, 10, answers.append, hide_usage=True)
    endless = b"no event ends here"
    assert stream.feed(endless) == endless
    assert stream.end() == b""
    for listener in (whole, stream):
        listener.close()
    assert answers == [None, None]


def test_the_body_that_asks_for_usage_is_the_same_but_for_that() -> None:
    body = b' { "stream":true, "x": 1e400, "model":"m"}'
    assert (
        with_usage(body)
        == b'{"stream_options":{"include_usage":true}, "stream":true, "x": 1e400, "model":"m"}'
    )


def test_whole_answers_of_each_endpoint() -> None:
    chat = {
        "id": "1",
        "choices": [
            {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "hm"}}
        ],
    }
    read = read_whole("chat", json.dumps(chat).encode(), 1)
    assert read is not None
    assert (read.text, read.is_cut_off, read.usage) == ("hm", True, Usage())
    texts = {"choices": [{"text": "a b", "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}
    read = read_whole("completions", json.dumps(texts).encode(), 1)
    assert read is not None
    assert (read.text, read.usage.completion) == ("a b", 2)
    response = {
        "id": "resp_1",
        "status": "incomplete",
        "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
        ],
        "usage": {"input_tokens": 3, "output_tokens": 1},
    }
    read = read_whole("responses", json.dumps(response).encode(), 1)
    assert read is not None
    assert (read.text, read.is_cut_off, read.usage.prompt) == ("x", True, 3)


@settings(max_examples=200)
@given(
    st.sampled_from(["chat", "completions", "responses"]),
    st.binary(max_size=60) | st.none(),
    st.integers(1, 3),
)
def test_no_answer_breaks_the_reader(api: Any, body: bytes | None, n: int) -> None:
    odd = [
        b"null",
        b"[]",
        b'{"choices":3}',
        b'{"choices":[null]}',
        b'{"output":[1]}',
        b'{"choices":[{"index":9}]}',
    ]
    for one in odd if body is None else [body]:
        read_whole(api, one, n)
        answers: list[Answer | None] = []
        listener = StreamListener(api, n, 100, answers.append, hide_usage=True)
        listener.feed(b"data: " + one + b"\n\n")
        listener.end()
        listener.close()
        assert len(answers) == 1
