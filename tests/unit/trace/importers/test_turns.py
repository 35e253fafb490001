"""From what a log holds to the steps that count."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.actions import ActionOptions, from_messages
from selective_rollout.errors import TraceError
from selective_rollout.trace.importers.settle import Settled, remembering, settle
from selective_rollout.trace.importers.tokens import read_usage, token_count
from selective_rollout.trace.importers.turns import Reading, opening_text, read_turns
from selective_rollout.types import Usage

PLAIN = Reading(ActionOptions())
COMPLETIONS = Reading(ActionOptions(), completions=True)


def settled(value: Any, reading: Reading = PLAIN) -> Settled:
    return settle(read_turns(value, reading, "f:1"), remembering(reading.options))


def actions(value: Any, reading: Reading = PLAIN) -> list[str]:
    return [step.action for step in settled(value, reading).steps]


def call(call_id: str | None, name: str, **args: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(args)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "function": function}]}


def test_strings_are_actions_taken_out_already() -> None:
    assert actions(["look", 'open({"b": 1, "a":2})', "go  to\ndesk"]) == [
        "look",
        'open({"a":2,"b":1})',
        "go to desk",
    ]


def test_a_rule_of_the_user_finds_the_action_in_a_text() -> None:
    reading = Reading(ActionOptions(pattern=r"ACT: (.*)"))
    assert actions(["I think. ACT: look", "nothing"], reading) == ["look", ""]


def test_only_what_the_agent_did_is_a_step_whatever_the_numbering() -> None:
    for first in (0, 1, 7):
        mixed = [
            entry
            for k in range(3)
            for entry in ({"step": first + k, "observation": "room"}, {"step": first + k, "action": "look"})
        ]
        assert actions(mixed) == ["look"] * 3


def test_entries_of_the_environment_reply_to_the_action_before_them() -> None:
    log = [
        {"role": "env", "observation": "room"},
        {"role": "agent", "action": "look"},
        {"role": "env", "observation": "a desk"},
        {"role": "agent", "action": "open", "observation": {"ok": True}},
    ]
    assert [step.observation for step in settled(log).steps] == ["a desk", '{"ok": true}']


@pytest.mark.parametrize("role", ["assistant", "model", "agent", "ai"])
def test_the_agent_goes_by_several_names(role: str) -> None:
    assert actions([{"role": "user", "content": "hi"}, {"role": role, "content": "look"}]) == ["look"]


def test_steps_may_be_calls_numbers_or_nothing() -> None:
    assert actions([{"name": "open", "arguments": {"id": 1}}, 7, None, {"action": {"x": 1}}]) == [
        'open({"id":1})',
        "7",
        "",
        '{"x":1}',
    ]


def test_one_text_needs_a_separator() -> None:
    assert actions("look; open ;", Reading(ActionOptions(), separator=";")) == ["look", "open"]
    assert actions('["look", "open"]') == ["look", "open"]
    with pytest.raises(TraceError, match="f:1: the actions are one text: say what separates them"):
        actions("look; open")
    with pytest.raises(TraceError, match="must be a list, not int"):
        actions(12)


def test_a_raw_completion_is_one_step_without_its_reasoning() -> None:
    [step] = settled("<think>hm</think>\nAction: look", COMPLETIONS).steps
    assert step.action == "look"
    assert step.completion == "<think>hm</think>\nAction: look"


def test_null_content_with_calls_is_normal_and_ids_do_not_count() -> None:
    first, second = actions([call("c1", "look", at="desk"), call("c9", "look", at="desk")])
    assert first == second == 'look({"at":"desk"})'


def test_calls_stored_as_json_text_are_calls() -> None:
    message = call("c1", "look", at="desk")
    message["tool_calls"] = [json.dumps(message["tool_calls"][0]), "{broken"]
    assert actions([message]) == ['invalid:?({broken)+look({"at":"desk"})']


def test_a_retried_call_counts_once_and_keeps_its_late_reply() -> None:
    retry = call("c1", "pay", id=4) | {"usage": {"completion_tokens": 9}}
    log = [call("c1", "pay", id=4), retry, {"role": "tool", "content": "paid"}, call("c2", "pay", id=4)]
    found = settled(log)
    assert [step.action for step in found.steps] == ['pay({"id":4})'] * 2
    assert found.steps[0].observation == "paid"
    assert (found.retried, found.wasted) == (1, 9)


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["c1", "c2", None]), st.sampled_from("ab")), max_size=2),
        max_size=6,
    )
)
@settings(max_examples=100)
def test_steps_are_those_that_actions_are_made_of(turns: list[list[tuple[str | None, str]]]) -> None:
    messages = [
        {
            "role": "assistant",
            "content": "hello",
            "tool_calls": [{"id": i, "function": {"name": n, "arguments": "{}"}} for i, n in calls],
        }
        for calls in turns
    ]
    assert actions(messages) == from_messages(messages)


def test_nothing_counts_after_a_turn_that_its_limit_cut_off() -> None:
    log = [
        {
            "role": "assistant",
            "content": f"act {n}",
            "finish_reason": "length" if n == 22 else "stop",
            "usage": {"completion_tokens": n},
        }
        for n in range(1, 31)
    ]
    found = settled(log)
    assert (len(found.steps), found.ghosts, found.cut_off) == (21, 8, True)
    assert found.lost == Usage(completion=22)
    assert found.wasted == sum(range(23, 31))


@pytest.mark.parametrize(
    "reason", ["length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_length"]
)
@pytest.mark.parametrize("place", ["finish_reason", "stop_reason", "response_metadata"])
def test_every_provider_has_its_word_for_the_limit(reason: str, place: str) -> None:
    told = {"response_metadata": {"stop_reason": reason}} if place == "response_metadata" else {place: reason}
    log = [{"role": "assistant", "content": "a", **told}, {"role": "assistant", "content": "b"}]
    found = settled(log)
    assert (found.steps, found.cut_off, found.ghosts) == ((), True, 1)


def test_items_of_the_responses_api_are_steps_and_replies() -> None:
    log = [
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "name": "b", "arguments": "{}", "call_id": "c1"},
        {"type": "function_call", "name": "a", "arguments": "{}", "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
    ]
    assert actions(log) == actions(log[2:]) == ["a({})+b({})", "done"]
    assert settled(log).steps[0].observation == "one\ntwo"


def test_conversations_in_the_format_of_sharegpt() -> None:
    log = [
        {"from": "system", "value": "Act."},
        {"from": "human", "value": "hi"},
        {"from": "function_call", "value": '{"name": "look", "arguments": {}}'},
        {"from": "observation", "value": "a desk"},
        {"from": "gpt", "value": "done"},
    ]
    assert actions(log) == ["look({})", "done"]
    assert settled(log).steps[0].observation == "a desk"
    assert opening_text(log) == "Act.\nhi"


def test_a_completion_cut_off_was_paid_for_all_the_same() -> None:
    log = [
        {"action": "x", "usage": {"completion_tokens": 30}, "finish_reason": "stop"},
        {"action": "...", "usage": {"completion_tokens": 4096}, "finish_reason": "length"},
    ]
    found = settled(log)
    assert found.lost is not None
    assert sum(s.usage.completion or 0 for s in found.steps if s.usage) + (found.lost.completion or 0) == 4126


def test_replies_belong_to_the_turn_before_them() -> None:
    log = [
        {"role": "system", "content": "rules"},
        call("c1", "look"),
        {"role": "tool", "content": "a"},
        {"role": "tool", "content": [{"type": "text", "text": "b"}], "status": "error"},
        call("c2", "open"),
    ]
    first, second = settled(log).steps
    assert (first.observation, first.is_error) == ("a\nb", True)
    assert (second.observation, second.observation_hash, second.is_error) == (None, None, None)


@pytest.mark.parametrize(
    ("reply", "is_error"),
    [
        ({"role": "tool", "content": "Error: no such user"}, True),
        ({"role": "tool", "content": "fine"}, False),
        ({"role": "user", "content": "Error? What error?"}, None),
    ],
)
def test_a_source_may_have_its_own_way_to_spell_errors(reply: dict[str, Any], is_error: bool | None) -> None:
    found = settled([call("c", "look"), reply], Reading(ActionOptions(), error_prefix="Error"))
    assert found.steps[0].is_error is is_error
    assert settled([call("c", "look"), reply]).steps[0].is_error is None


def test_a_message_that_is_none_is_named_by_its_number() -> None:
    with pytest.raises(TraceError, match="f:1: message 2 must be an object, not int"):
        settled([{"role": "user", "content": "x"}, 3])


def test_counts_are_numbers_or_unknown() -> None:
    assert [token_count(value, "f") for value in (12, 12.0, "12", None, float("nan"), "")] == [
        *[12] * 3,
        *[None] * 3,
    ]
    for wrong in (-1, 1.5, True, "many", [1], 10**400, float("inf")):
        with pytest.raises(TraceError, match="is no number of tokens"):
            token_count(wrong, "f")
    assert read_usage({"input_tokens": 3.0, "output_tokens": 4}, "f") == Usage(prompt=3, completion=4)
    assert read_usage({"prompt_tokens": None, "input_tokens": 3}, "f") == Usage(prompt=3)
    cached = {"input_tokens": 3, "cache_read_input_tokens": 40, "cache_creation_input_tokens": None}
    assert read_usage(cached, "f") == Usage(prompt=43)
    assert read_usage({}, "f") is None
