"""The plain state: the reducer, and the way from types to plain data and back."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selective_rollout.engine.ledger import Ledger
from selective_rollout.integrations.langgraph.state import (
    ended_with_a_step,
    fresh_rollout,
    ledger_of,
    ledger_state,
    merge_rollouts,
    plain_copy,
    step_state,
    steps_of,
)
from selective_rollout.types import Step, Usage

updates = st.dictionaries(st.integers(0, 12), st.one_of(st.none(), st.floats(0, 9)), max_size=8)


def rollouts(values: dict[int, float | None]) -> dict:
    return {str(i): None if v is None else fresh_rollout(i) | {"elapsed_s": v} for i, v in values.items()}


@given(updates, st.lists(updates, max_size=4))
def test_merging_is_a_dict_update_in_rollout_order(first: dict, rest: list[dict]) -> None:
    expected: dict[int, float] = {}
    merged: dict = {}
    for values in (first, *rest):
        merged = merge_rollouts(merged, rollouts(values))
        expected = {i: v for i, v in {**expected, **values}.items() if v is not None}
    assert {int(key): rollout["elapsed_s"] for key, rollout in merged.items()} == expected
    assert list(merged) == [str(index) for index in sorted(expected)]


def test_merging_leaves_both_sides_alone() -> None:
    left, right = rollouts({0: 1.0, 1: 1.0}), rollouts({1: 2.0, 0: None})
    merge_rollouts(left, right)
    assert (left, right) == (rollouts({0: 1.0, 1: 1.0}), rollouts({1: 2.0, 0: None}))


def test_steps_come_back_with_their_texts() -> None:
    usage = Usage(prompt=3, completion=2, source="server")
    first = Step(1, "go", "I go", "a room", "h1", False, None, usage, "stop")
    second = Step(2, "open({})", None, "a door", "h2", None, "s", None, "tool_calls")
    call = {"id": "c", "type": "function", "function": {"name": "open", "arguments": "{}"}}
    rollout = fresh_rollout(0)
    rollout["messages"] = [
        {"role": "user", "content": "like this:"},
        {"role": "assistant", "content": "an example in the opening"},
        {"role": "user", "content": "start"},
        {"role": "assistant", "content": "I go"},
        {"role": "user", "content": "a room"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "a door"},
    ]
    rollout["steps"] = [step_state(first, 0), step_state(second, 4)]
    assert steps_of(json.loads(json.dumps(rollout))) == [first, second]


def test_a_rollout_without_steps_has_none() -> None:
    rollout = fresh_rollout(0)
    rollout["messages"] = [{"role": "assistant", "content": "an example in the opening"}]
    assert steps_of(rollout) == []
    assert not ended_with_a_step(rollout)


def test_a_ledger_comes_back_as_one_of_its_own() -> None:
    ledger = Ledger()
    ledger.add(Usage(completion=3, source="client"), wasted=1)
    ledger.add(Usage())
    plain = json.loads(json.dumps(ledger_state(ledger)))
    copy = ledger_of(plain)
    assert copy == ledger
    copy.add(Usage(completion=1, source="server"))
    assert ledger_of(plain) == ledger


@pytest.mark.parametrize("value", [{1, 2}, object(), b"bytes", {"x": complex(1)}])
def test_what_is_not_plain_is_named(value: object) -> None:
    with pytest.raises(TypeError, match="an observation must be plain JSON-able data"):
        plain_copy(value, "an observation")


def test_half_characters_are_replaced_and_whole_ones_kept() -> None:
    assert plain_copy(["\ud83d", "🦊ß"], "x") == ["\ufffd", "🦊ß"]


def test_a_copy_shares_nothing() -> None:
    value = {"a": [1, {"b": None}]}
    copy = plain_copy(value, "x")
    assert copy == value
    copy["a"][1]["b"] = 2
    assert value["a"][1] == {"b": None}


def test_step_state_is_json() -> None:
    step = replace(Step(1, "go"), usage=Usage())
    assert json.loads(json.dumps(step_state(step, 0)))["usage"]["completion"] is None
