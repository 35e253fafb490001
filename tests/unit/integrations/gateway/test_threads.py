"""Which turns are new: retried, trimmed, branched and restarted conversations."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.actions import ActionOptions
from selective_rollout.integrations.gateway.conversation import Body, Reader, Said, read_body, reply_text
from selective_rollout.integrations.gateway.threads import Threads, first_new


def chat(messages: list[dict[str, Any]]) -> Body:
    body = read_body(json.dumps({"messages": messages}).encode())
    assert body is not None
    return body


def turn(action: str, call_id: str | None = None) -> dict[str, Any]:
    if call_id is None:
        return {"role": "assistant", "content": action}
    function = {"name": action, "arguments": "{}"}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def tool(call_id: str, text: str = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


class Rollout:
    """Feeds conversations and collects the actions that count."""

    def __init__(self, recorded: tuple[str, ...] = ()) -> None:
        self.reader = Reader(ActionOptions(), 10_000)
        self.threads = Threads(recorded)
        self.actions: list[str] = []

    def request(self, *messages: dict[str, Any]) -> list[str]:
        conversation = self.reader.read("chat", chat(list(messages)))
        assert conversation is not None
        _, turns = self.threads.advance(conversation)
        fresh = [turn.said.action for turn in turns]
        self.actions += fresh
        return fresh


USER = {"role": "user", "content": "go"}


def test_a_conversation_grows_turn_by_turn() -> None:
    rollout = Rollout()
    assert rollout.request(USER) == []
    assert rollout.request(USER, turn("look", "c1"), tool("c1")) == ["look({})"]
    assert rollout.request(USER, turn("look", "c1"), tool("c1")) == []
    assert rollout.request(USER, turn("look", "c1"), tool("c1"), turn("go", "c2"), tool("c2")) == ["go({})"]
    assert rollout.request(USER) == []


def test_examples_in_the_first_request_are_no_steps() -> None:
    rollout = Rollout()
    shots = [USER, turn("example"), USER]
    assert rollout.request(*shots) == []
    assert rollout.request(*shots, turn("look", "c1"), tool("c1")) == ["look({})"]


def test_the_same_call_under_a_new_id_is_a_real_repeat() -> None:
    rollout = Rollout()
    rollout.request(USER)
    first, second = [turn("look", "c1"), tool("c1")], [turn("look", "c2"), tool("c2")]
    assert rollout.request(USER, *first) == ["look({})"]
    assert rollout.request(USER, *first, *second) == ["look({})"]


def test_an_agent_that_asks_again_from_earlier_goes_on_from_there() -> None:
    rollout = Rollout()
    rollout.request(USER)
    rollout.request(USER, turn("a"), USER)
    rollout.request(USER, turn("a"), USER, turn("b"), USER)
    assert rollout.request(USER, turn("a"), USER) == []
    assert rollout.request(USER, turn("a"), USER, turn("c"), USER) == ["c"]


@pytest.mark.parametrize("keep", [0, 1])
def test_a_history_that_is_trimmed_repeats_no_step(keep: int) -> None:
    rollout = Rollout()
    turns = [message for i in range(8) for message in (turn("look", f"c{i}"), tool(f"c{i}"))]
    for shown in range(0, 17, 2):
        history = turns[:shown]
        if shown > 6:
            history = history[: 2 * keep] + history[-4:]
        rollout.request(USER, *history)
    assert rollout.actions == ["look({})"] * 8


def test_a_trimmed_opening_is_still_the_same_conversation() -> None:
    rollout = Rollout()
    rollout.request(USER)
    rollout.request(USER, turn("a", "1"), tool("1"))
    rollout.request(USER, turn("a", "1"), tool("1"), turn("b", "2"), tool("2"))
    assert rollout.request(
        {"role": "user", "content": "short"}, turn("b", "2"), tool("2"), turn("c", "3")
    ) == ["c({})"]


def test_two_conversations_of_one_rollout_do_not_disturb_each_other() -> None:
    rollout = Rollout()
    other = {"role": "user", "content": "a side question"}
    rollout.request(USER)
    rollout.request(other)
    rollout.request(USER, turn("a", "1"), tool("1"))
    rollout.request(other, turn("x", "9"), tool("9"))
    assert rollout.request(USER, turn("a", "1"), tool("1"), turn("b", "2"), tool("2")) == ["b({})"]
    assert rollout.actions == ["a({})", "x({})", "b({})"]


def test_after_a_restart_what_the_trace_holds_is_known() -> None:
    history = [USER, turn("a", "1"), tool("1"), turn("b", "2"), tool("2")]
    assert Rollout(("a({})",)).request(*history) == ["b({})"]
    assert Rollout(("a({})", "b({})")).request(*history) == []
    shots = [USER, turn("example")]
    assert Rollout(("a({})",)).request(*shots, *history) == ["b({})"]
    assert Rollout(("other",)).request(*history) == []
    again = Rollout(("a({})", "b({})"))
    assert again.request(USER) == again.request(*history[:3]) == again.request(*history) == []


ids = st.lists(st.sampled_from("abc"), min_size=1, max_size=8)


@settings(max_examples=200)
@given(ids, st.data())
def test_whatever_an_agent_repeats_each_turn_counts_once(actions: list[str], data: st.DataObject) -> None:
    """Oracle: the true sequence; requests show any prefix again, at any time, in any order."""
    rollout = Rollout()
    whole = [m for i, name in enumerate(actions) for m in (turn(name, f"c{i}"), tool(f"c{i}"))]
    for shown in range(len(actions) + 1):
        rollout.request(USER, *whole[: 2 * shown])
        for again in data.draw(st.lists(st.integers(0, shown), max_size=3)):
            rollout.request(USER, *whole[: 2 * again])
    assert rollout.actions == [f"{name}({{}})" for name in actions]


said = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([None, ("1",), ("2",)])), max_size=12)


@settings(max_examples=200)
@given(said, said)
def test_first_new_is_a_place_in_the_conversation(known: list[Any], now: list[Any]) -> None:
    old, new = [Said(*one) for one in known], [Said(*one) for one in now]
    start = first_new(old, new)
    assert 0 <= start <= len(new)
    assert first_new(new, new) == len(new)
    exact = [one for one in new if one.calls is not None]
    assert first_new(exact, exact[: len(exact) // 2]) == len(exact) // 2


def test_responses_items_of_one_answer_are_one_turn() -> None:
    reader = Reader(ActionOptions(), 100)
    items = [
        {"role": "user", "content": "go"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": '{"at": 2}'},
        {"type": "function_call_output", "call_id": "c1", "output": "a desk"},
        {"type": "function_call_output", "call_id": "c2", "output": "a lamp"},
        {"type": "custom_tool_call", "call_id": "c3", "name": "run", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "x"},
        {"type": "message", "role": "assistant", "content": "done"},
    ]
    body = read_body(json.dumps({"input": items}).encode())
    assert body is not None
    conversation = reader.read("responses", body)
    assert conversation is not None
    actions = [turn.said.action for turn in conversation.turns]
    assert actions == ['look({"at":1})+look({"at":2})', 'run({"input":"ls"})', "done"]
    assert [turn.said.waits for turn in conversation.turns] == [True, True, False]
    assert reply_text(conversation.turns[0].replies) == "a desk\na lamp"


def test_what_is_no_conversation_is_left_alone() -> None:
    reader = Reader(ActionOptions(), 3)
    assert read_body(b"[1]") is None
    assert read_body(b'{"messages": "no"}') is None
    assert read_body(b"[" * 100_000) is None
    assert read_body(b'{"n": "two"}') is None
    assert reader.read("chat", Body()) is None
    assert reader.read("chat", chat([USER] * 4)) is None
    odd = [{"role": 3}, "text", None, {"type": ["x"]}, {"role": "assistant", "content": {"deep": []}}]
    body = msgspec.json.decode(json.dumps({"messages": odd[:3]}), type=Body)
    conversation = reader.read("chat", body)
    assert conversation is not None
    assert conversation.turns == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "content",
                    "type",
                    "tool_calls",
                    "function",
                    "name",
                    "arguments",
                    "id",
                    "text",
                    "call_id",
                ]
            ),
            inner | st.sampled_from(["assistant", "function_call", "message", "output_text", "mcp_call"]),
            max_size=5,
        )
    ),
    max_leaves=15,
)


@settings(max_examples=200)
@given(st.lists(json_values, max_size=6), st.sampled_from(["chat", "responses"]))
def test_odd_messages_never_break_the_reader(items: list[Any], api: Any) -> None:
    reader = Reader(ActionOptions(), 100)
    key = "messages" if api == "chat" else "input"
    body = read_body(json.dumps({key: items}).encode())
    if body is not None:
        threads = Threads()
        for _ in range(2):
            conversation = reader.read(api, body)
            if conversation is not None:
                threads.advance(conversation)
