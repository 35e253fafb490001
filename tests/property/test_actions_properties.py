"""Canonical actions against readable oracles."""

import json
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.actions import (
    ActionOptions,
    RawAction,
    RawCall,
    canonicalise,
    default_answer,
    from_message,
    tool_names,
)

FEW = settings(max_examples=100, deadline=None)

names = st.sampled_from(["look", "pay", "web_search", "fs.read", "a-b"])
numbers = st.integers(-3, 3) | st.sampled_from([0.0, -0.0, 1.0, 2.0, 0.5, 1e3]) | st.integers()
scalars = st.none() | st.booleans() | numbers | st.text(max_size=5) | st.just("2026-03-01T09:00:01Z")
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(st.sampled_from(["q", "page", "id", "a b", "é"]), values, max_size=4)
calls = st.builds(RawCall, names, arguments)
texts = st.text(st.sampled_from("abf (){}[]<>\"'=,:+.*0123\n\t\\é"), max_size=25) | st.text(max_size=15)
options = st.builds(
    ActionOptions,
    ignore_args=st.sampled_from([{}, {"*": ["q"]}, {"look": ["id.a"], "pay": ["*"]}]),
    scrub_volatile=st.booleans(),
    numeric_equal=st.booleans(),
    ordered=st.booleans(),
)


def shuffled(value: Any, draw: random.Random) -> Any:
    """The same JSON value with its keys in another order."""
    if isinstance(value, dict):
        items = list(value.items())
        draw.shuffle(items)
        return {key: shuffled(item, draw) for key, item in items}
    return [shuffled(item, draw) for item in value] if isinstance(value, list) else value


def same(left: Any, right: Any) -> bool:
    """Equality of JSON values with numbers by value, where true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@FEW
@given(call=calls, seed=st.integers(0, 2**32), indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_every_spelling_of_a_call_has_one_symbol(
    call: RawCall, seed: int, indent: int | None, ascii_only: bool
) -> None:
    args = shuffled(call.args, random.Random(seed))
    written = json.dumps(args, indent=indent, ensure_ascii=ascii_only)
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": call.name, "arguments": written}}],
    }
    symbol = canonicalise(RawAction(calls=(call,)))
    assert from_message(message) == symbol
    assert canonicalise(f"{call.name}({written})") == symbol
    assert canonicalise(json.dumps({"args": args, "tool": call.name}, indent=indent)) == symbol


@FEW
@given(left=arguments, right=arguments)
def test_numbers_are_equal_by_value_on_request(left: dict[str, Any], right: dict[str, Any]) -> None:
    numeric = ActionOptions(numeric_equal=True)
    symbols = [canonicalise(RawAction(calls=(RawCall("f", args),)), numeric) for args in (left, right)]
    assert (symbols[0] == symbols[1]) is same(left, right)


@FEW
@given(listed=st.lists(calls, min_size=1, max_size=4), seed=st.integers(0, 2**32), chosen=options)
def test_parallel_calls_are_a_multiset(listed: list[RawCall], seed: int, chosen: ActionOptions) -> None:
    mixed = random.Random(seed).sample(listed, len(listed))
    one, two = (canonicalise(RawAction(calls=tuple(order)), chosen) for order in (listed, mixed))
    if not chosen.ordered:
        assert one == two
    assert sorted(tool_names(one)) == sorted(call.name for call in listed)


@FEW
@given(listed=st.lists(calls, min_size=1, max_size=3), broken=st.booleans(), chosen=options)
def test_recorded_calls_can_be_canonicalised_again(
    listed: list[RawCall], broken: bool, chosen: ActionOptions
) -> None:
    if broken:
        listed.append(RawCall("pay", None, raw='{"id":  4, (x'))
    action = RawAction(calls=tuple(listed))
    symbol = canonicalise(action, chosen)
    assert canonicalise(symbol, chosen) == symbol
    recorded = canonicalise(action, ActionOptions(ordered=chosen.ordered))
    assert canonicalise(recorded, chosen) == symbol
    only_names = ActionOptions(name_only=True)
    assert canonicalise(symbol, only_names) == canonicalise(action, only_names)


@FEW
@given(text=texts, chosen=options)
def test_any_text_has_a_stable_symbol(text: str, chosen: ActionOptions) -> None:
    symbol = canonicalise(text, chosen)
    assert canonicalise(symbol, chosen) == symbol
    from_message(text, chosen)
    default_answer(text)


@FEW
@given(
    words=st.lists(st.text(st.characters(categories=["L"]), max_size=40) | st.integers().map(str), max_size=5)
)
def test_scrubbing_leaves_words_and_numbers_alone(words: list[str]) -> None:
    text = " ".join(words)
    assert canonicalise(text, ActionOptions(scrub_volatile=True)) == canonicalise(text)


@FEW
@given(args=arguments)
def test_ignoring_is_leaving_out(args: dict[str, Any]) -> None:
    without = {key: value for key, value in args.items() if key != "q"}
    ignoring = ActionOptions(ignore_args={"f": ["q"]})
    left = canonicalise(RawAction(calls=(RawCall("f", args),)), ignoring)
    assert left == canonicalise(RawAction(calls=(RawCall("f", without),)))


@FEW
@given(content=st.none() | st.lists(values, max_size=3), extra=values, arguments=values)
def test_odd_messages_are_read_without_a_crash(content: Any, extra: Any, arguments: Any) -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    symbol = from_message({"role": "assistant", "content": content, "tool_calls": [call], "refusal": extra})
    assert symbol.startswith(("f({", "invalid:f("))
    assert from_message({"role": "assistant", "content": content, "refusal": extra}) is not None
