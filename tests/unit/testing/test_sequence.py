from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.testing.brains import Reply, ToolCall
from selective_rollout.testing.sequence import (
    cut_inside_character,
    generated_text,
    plan_sequence,
    shown_calls,
    shown_message,
    shown_text,
)
from selective_rollout.testing.tokens import tokenize

MANY = 10_000
words = st.text(alphabet="ab .\u00e9", max_size=30)


def oracle_stop(content: str, stops: list[str]) -> tuple[str, int] | None:
    """Visible text and token count of a generation that looks for stop strings after every token."""
    tokens = tokenize(content)
    for count in range(1, len(tokens) + 1):
        text = "".join(tokens[:count])
        for stop in stops:
            if stop in text:
                return text[: text.find(stop)], count
    return None


@given(words)
@settings(deadline=None)
def test_a_reply_shows_its_text_and_counts_its_end_token(content: str) -> None:
    plan = plan_sequence(Reply(content=content), max_tokens=MANY)
    assert (shown_text(plan.tokens, "content") or "") == content
    assert len(plan.tokens) == len(tokenize(content)) + 1
    assert plan.finish_reason == "stop"


@given(words, st.integers(1, 12))
@settings(deadline=None)
def test_max_tokens_cuts_with_length(content: str, limit: int) -> None:
    plan = plan_sequence(Reply(content=content), max_tokens=limit)
    fits = len(tokenize(content)) < limit
    assert plan.finish_reason == ("stop" if fits else "length")
    assert (shown_text(plan.tokens, "content") or "") == "".join(tokenize(content)[:limit])
    assert len(plan.tokens) == min(limit, len(tokenize(content)) + 1)


@given(words, st.lists(st.text(alphabet="ab .", min_size=1, max_size=3), min_size=1, max_size=3))
@settings(deadline=None, max_examples=200)
def test_stop_strings_match_a_search_after_every_token(content: str, stops: list[str]) -> None:
    plan = plan_sequence(Reply(content=content), max_tokens=MANY, stop=stops)
    expected = oracle_stop(content, stops)
    if expected is None:
        assert plan.stop_reason is None
        assert (shown_text(plan.tokens, "content") or "") == content
    else:
        assert (shown_text(plan.tokens, "content"), len(plan.tokens)) == expected
        assert plan.stop_reason in stops


def test_a_stop_on_a_space_shows_one_token_and_counts_two() -> None:
    plan = plan_sequence(Reply(content="go north now"), max_tokens=16, stop=[" "])
    assert shown_text(plan.tokens, "content") == "go"
    assert len(plan.tokens) == 2


def test_an_empty_reply_is_one_end_token() -> None:
    for reply in (Reply(), Reply(content="", finish_reason="length")):
        plan = plan_sequence(reply, max_tokens=16)
        assert len(plan.tokens) == 1
        assert shown_message(plan.tokens, []) == {"role": "assistant", "content": ""}


def test_reasoning_comes_first_and_is_counted() -> None:
    plan = plan_sequence(Reply(content="go", reasoning="I think"), max_tokens=MANY)
    assert [token.kind for token in plan.tokens] == ["reasoning", "reasoning", "content", "eos"]
    only = plan_sequence(Reply(reasoning="I think"), max_tokens=MANY)
    assert shown_message(only.tokens, []) == {"role": "assistant", "content": None, "reasoning": "I think"}
    assert generated_text(plan.tokens) == ["go", "<|end|>"]


def test_parallel_calls_interleave_and_join_by_index() -> None:
    calls = (ToolCall("open", '{"id":1}'), ToolCall("read", '{"id": 2, "page": 3}', id="mine"))
    plan = plan_sequence(Reply(tool_calls=calls), max_tokens=MANY)
    assert plan.finish_reason == "tool_calls"
    assert [token.call for token in plan.tokens][:4] == [0, 1, 0, 1]
    message = shown_message(plan.tokens, ["a", "b"])
    assert message["content"] is None
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "open", "arguments": '{"id":1}'},
        {"name": "read", "arguments": '{"id": 2, "page": 3}'},
    ]


def test_a_cut_call_keeps_its_broken_arguments() -> None:
    plan = plan_sequence(Reply(tool_calls=(ToolCall("open", '{"id": 1}'),)), max_tokens=3)
    assert plan.finish_reason == "length"
    assert shown_calls(plan.tokens) == {0: {"name": "open", "arguments": '{"'}}


def test_a_cut_inside_a_character_ends_with_the_replacement() -> None:
    plan = cut_inside_character(plan_sequence(Reply(content="caf\u00e9 au lait"), max_tokens=MANY), 1)
    assert shown_text(plan.tokens, "content") == "caf\ufffd"
    assert plan.finish_reason == "length"
