from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.testing.tokens import EOS, count_tokens, render_prompt, token_id, tokenize

text = st.text(max_size=60)


@given(text)
@settings(deadline=None)
def test_tokens_join_back_to_the_text(value: str) -> None:
    tokens = tokenize(value)
    assert "".join(tokens) == value
    assert all(tokens)


def test_words_carry_their_space_and_long_words_are_split() -> None:
    assert tokenize("open the door, 3") == ["open", " the", " door", ",", " 3"]
    assert tokenize("internationally") == ["internat", "ionally"]
    assert tokenize("") == []
    assert count_tokens("a b \n") == 3


@given(text, text, text)
@settings(deadline=None)
def test_the_next_prompt_begins_with_this_prompt_and_its_reply(system: str, user: str, reply: str) -> None:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    before = render_prompt(messages)
    after = render_prompt([*messages, {"role": "assistant", "content": reply}])
    generated = [*before, *tokenize(reply), EOS]
    assert after[: len(generated)] == generated


def test_content_parts_tools_and_calls_are_counted() -> None:
    call = {"function": {"name": "open", "arguments": '{"id":1}'}}
    parts = [{"type": "text", "text": "a b"}, {"type": "image_url", "image_url": {"url": "x"}}]
    plain = [{"role": "user", "content": "a b"}]
    assert render_prompt([{"role": "user", "content": parts}]) == render_prompt(plain)
    with_call = render_prompt([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert "open" in with_call
    assert len(render_prompt(plain, tools=[{"type": "function"}])) > len(render_prompt(plain))


def test_token_ids_are_stable() -> None:
    assert token_id(" door") == token_id(" door") != token_id("door")
    assert token_id("\ud800") >= 0
