import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.errors import PolicyError
from selective_rollout.policy.base import Piece
from selective_rollout.policy.fragments import called
from selective_rollout.policy.stream import Assembly, read_piece
from selective_rollout.types import Usage


def chunk(delta=None, index=0, finish=None, **extra):
    return {"id": "r1", "choices": [{"index": index, "delta": delta, "finish_reason": finish}], **extra}


def assemble(*chunks, n=1):
    assembly = Assembly(n)
    for item in chunks:
        assembly.add_chunk(item)
    return assembly


def one(*chunks):
    (choice,) = assemble(*chunks).finish()
    return choice


def call(index=None, name=None, arguments=None, call_id=None):
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": call_id, "function": function}]}


def calls_of(choice):
    return [
        (made["function"]["name"], json.loads(made["function"]["arguments"]))
        for made in choice.message["tool_calls"]
    ]


def test_text_arrives_in_pieces():
    choice = one(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "go"}),
        chunk({"content": " up"}, finish="stop"),
    )
    assert choice.message == {"role": "assistant", "content": "go up"}
    assert (choice.finish_reason, choice.chunks) == ("stop", 2)


def test_the_habits_of_llama_cpp():
    choice = one(
        chunk({"role": "assistant", "content": None}), chunk({"content": "go"}), chunk({}, finish="length")
    )
    assert (choice.message["content"], choice.finish_reason, choice.chunks) == ("go", "length", 1)


@pytest.mark.parametrize(("content", "expected"), [("", ""), (None, None)])
def test_empty_and_absent_content_differ(content, expected):
    assert one(chunk({"role": "assistant", "content": content}, finish="stop")).message["content"] == expected


def test_tool_call_fragments_interleave_by_index():
    # Case tool-call-delta-fragments.
    fragments = [call(0, "open", '{"id'), call(1, "open", '{"id":2}'), call(0, None, '":1}')]
    choice = one(*map(chunk, fragments), chunk({}, finish="tool_calls"))
    assert calls_of(choice) == [("open", {"id": 1}), ("open", {"id": 2})]
    assert choice.message["content"] is None
    assert choice.chunks == 3


def test_no_call_can_be_read_before_it_is_complete():
    # Case tool-call-delta-fragments: gate_checks_before_complete == 0.
    assembly = assemble(chunk(call(0, "open", '{"id')))
    with pytest.raises(PolicyError, match="broke off"):
        assembly.finish()


@pytest.mark.parametrize(
    "fragments",
    [
        [call(None, "a", "{}", "x"), call(None, "b", "{}", "y")],
        [call(0, "a", "{}", "x"), call(0, "b", "{}", "y")],
        [call(None, "a", "{}"), call(None, "b", "{}")],
        [call(0, "a", "", "x"), call(0, "a", "{", "x"), call(0, "a", "}", "x"), call(1, "b", "{}", "y")],
        [call(0, "a", {}), call(1, "b", {})],
        [
            call(0, "a", "", "x"),
            call(0, None, "{}"),
            call(0, "b", "", "y"),
            call(0, None, "{"),
            call(0, None, "}"),
        ],
        [call(0, "a", "{}"), call(0, "b", "{}")],
        [
            call(None, "a", "{", "x"),
            call(None, "b", "{", "y"),
            call(None, None, "}", "x"),
            call(None, None, "}", "y"),
        ],
    ],
    ids=[
        "no index",
        "one index",
        "neither index nor id",
        "name repeated",
        "arguments as objects",
        "one index, in pieces",
        "one index, no id",
        "no index, interleaved by id",
    ],
)
def test_calls_are_told_apart_on_sloppy_servers(fragments):
    assert calls_of(one(*map(chunk, fragments), chunk({}, finish="stop"))) == [("a", {}), ("b", {})]


def test_calls_keep_their_ids_or_get_one():
    choice = one(chunk(call(0, "a", "{}", "id-a")), chunk(call(1, "b", "{}"), finish="tool_calls"))
    assert [made["id"] for made in choice.message["tool_calls"]] == ["id-a", "call_r1_1"]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_keeps_the_name_that_the_server_uses(name):
    choice = one(chunk({name: "I th"}), chunk({name: "ink"}), chunk({"content": "go"}, finish="stop"))
    assert choice.message == {"role": "assistant", "content": "go", name: "I think"}
    assert choice.chunks == 3


def test_legacy_calls_refusals_and_lists_of_parts():
    assert one(
        chunk({"function_call": {"name": "f", "arguments": "{"}}),
        chunk({"function_call": {"arguments": "}"}}, finish="function_call"),
    ).message["function_call"] == {"name": "f", "arguments": "{}"}
    assert one(chunk({"refusal": "no"}), chunk({"refusal": "pe"}, finish="stop")).message["refusal"] == "nope"
    parts = [{"type": "text", "text": "go"}, {"type": "text", "text": " up"}]
    assert one(chunk({"content": parts}, finish="stop")).message["content"] == "go up"


def test_a_finished_message_holds_no_half_characters():
    halves = [chunk({"content": "a\ud83e"}), chunk({"content": "\udd8a b\ud83e"}, finish="length")]
    assert one(*halves).message["content"] == "a🦊 b\ufffd"


def test_chunks_without_choices_and_null_deltas_are_harmless():
    choice = one(
        {"choices": []}, chunk(None), chunk({"content": "x"}, finish="stop"), {"choices": [], "usage": None}
    )
    assert choice.message["content"] == "x"


@pytest.mark.parametrize(
    "broken",
    [
        {"object": "nothing"},
        {"choices": "x"},
        {"choices": ["x"]},
        "text",
        None,
        chunk("text"),
        chunk({"content": 5}),
        chunk({"tool_calls": "x"}),
        chunk({"tool_calls": ["x"]}),
        chunk({"tool_calls": [{"index": 0, "function": "x"}]}),
        chunk({}, index=1),
        chunk({}, index="0"),
    ],
)
def test_what_is_no_chunk_breaks_the_protocol(broken):
    with pytest.raises(PolicyError) as error:
        assemble(broken)
    assert error.value.kind == "protocol"


def test_missing_choices_and_missing_ends():
    with pytest.raises(PolicyError, match="asked for 2 choices, got 1"):
        assemble(chunk({}, finish="stop"), n=2).finish()
    with pytest.raises(PolicyError, match="no chunks"):
        assemble().finish()
    with pytest.raises(PolicyError) as error:
        assemble(chunk({"content": "x"})).finish()
    assert error.value.kind == "connection"


def test_a_usage_chunk_stands_for_a_missing_finish_reason():
    choice = one(
        chunk({"content": "x"}), {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    )
    assert choice.finish_reason is None


def test_usage_of_a_stream():
    text = [chunk({"content": "a"}), chunk({"content": "b"}, finish="stop")]
    total = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    assert assemble(*text, total).usage() == Usage(7, None, 3, None, "server")
    assert assemble(*text).usage() == Usage(None, None, 2, None, "client")
    assert assemble(chunk({"content": ""}, finish="stop")).usage() == Usage()
    timed = chunk({}, finish="stop", timings={"prompt_n": 7, "cache_n": 0, "predicted_n": 3})
    assert assemble(*text, timed).usage() == Usage(7, 0, 3, None, "server")


def test_running_usage_is_that_of_the_last_chunk():
    running = [
        chunk({"content": "a"}, index=i, finish=f, usage={"prompt_tokens": 7, "completion_tokens": k})
        for k, f in ((1, None), (2, "stop"))
        for i in (0, 1)
    ]
    assert assemble(*running, n=2).usage() == Usage(7, None, 4, None, "server")
    total = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}
    assert assemble(*running, total, n=2).usage().completion == 5


def test_a_whole_answer():
    message = {
        "content": None,
        "reasoning": None,
        "refusal": None,
        "tool_calls": [
            {"id": "x", "function": {"name": "a", "arguments": "{}"}},
            {"function": {"name": "a", "arguments": "{}"}},
        ],
    }
    assembly = Assembly()
    assembly.add_response(
        {
            "id": "r1",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3},
        }
    )
    (choice,) = assembly.finish()
    assert calls_of(choice) == [("a", {}), ("a", {})]
    assert assembly.usage() == Usage(7, None, 3, None, "server")


def test_a_whole_answer_without_usage_is_unknown_usage():
    assembly = Assembly()
    assembly.add_response({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]})
    assert assembly.usage() == Usage()
    assert assembly.finish()[0].message["content"] == "x"


@given(
    st.lists(
        st.tuples(
            st.text(max_size=12), st.lists(st.tuples(st.sampled_from("abc"), st.text(max_size=8)), max_size=3)
        ),
        min_size=1,
        max_size=3,
    ),
    st.randoms(use_true_random=False),
)
@settings(max_examples=100, deadline=None)
def test_any_interleaving_gives_the_same_messages(choices, random):
    """Cut every choice into single characters and shuffle them, keeping the order within each field."""
    queues = []
    for index, (text, made) in enumerate(choices):
        queues.append([chunk({"content": char}, index) for char in text])
        for place, (name, arguments) in enumerate(made):
            pieces = [call(place, name, "", f"id{place}"), *(call(place, None, char) for char in arguments)]
            queues.append([chunk(piece, index) for piece in pieces])
    stream = []
    while queues := [queue for queue in queues if queue]:
        stream.append(random.choice(queues).pop(0))
    ends = [chunk({}, index, "stop") for index in range(len(choices))]
    finished = assemble(*stream, *ends, n=len(choices)).finish()
    for (text, made), choice in zip(choices, finished, strict=True):
        assert (choice.message["content"] or "") == text
        functions = [item["function"] for item in choice.message.get("tool_calls", [])]
        assert functions == [{"name": name, "arguments": arguments} for name, arguments in made]


@pytest.mark.parametrize(
    ("choice", "piece"),
    [
        ({"delta": {"content": "a"}, "token_ids": [5, 6]}, Piece("a", (5, 6))),
        ({"delta": {"content": "a"}, "token_ids": None}, Piece("a")),
        ({"delta": {"content": "a"}, "logprobs": {"content": [{"id": 7, "token": "a"}]}}, Piece("a", (7,))),
        ({"delta": {"content": "a"}, "logprobs": {"content": [{"token": "a"}]}}, Piece("a")),
        ({"delta": {"content": "a"}, "token_ids": [1, "b"]}, Piece("a")),
        ({"delta": {"reasoning": "r", "content": "c"}}, Piece("rc")),
        ({"delta": {"reasoning_content": "r"}, "token_ids": []}, Piece("r", ())),
        (
            {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, "token_ids": [3]},
            Piece("", (3,)),
        ),
        ({"delta": None, "finish_reason": "stop"}, Piece()),
        ({"message": {"content": "whole", "refusal": "no"}, "token_ids": [1, 2]}, Piece("wholeno", (1, 2))),
    ],
)
def test_what_a_chunk_adds(choice, piece):
    assert read_piece({"choices": [choice]}) == piece


def test_a_chunk_without_choices_adds_nothing():
    assert read_piece({"choices": [], "usage": {"completion_tokens": 3}}) == Piece()


def test_calls_as_text():
    message = {
        "tool_calls": [
            {"function": {"name": "a", "arguments": "{}"}},
            {"function": {"name": "b", "arguments": "1"}},
        ],
        "function_call": {"name": "c", "arguments": "x"},
    }
    assert called(message) == "a({})b(1)c(x)"
    assert called({"content": "nothing", "tool_calls": None}) == ""
