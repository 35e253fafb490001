import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.policy.constrain import constraint_body, gbnf_alternatives, unwrap_action

ACTIONS = ("go north", 'say "hi"\\', "look")


def read_gbnf(grammar):
    """The sentences of a grammar of alternatives, read by the rules of GBNF literals."""
    head, _, rule = grammar.partition("::=")
    assert head.strip() == "root"
    escapes = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
    literals = re.findall(r'"((?:\\.|[^"\\])*)"', rule)
    assert " | ".join(f'"{literal}"' for literal in literals) == rule.strip()
    pattern = r"\\x([0-9A-F]{2})|\\(.)"
    return [re.sub(pattern, lambda m: chr(int(m[1], 16)) if m[1] else escapes[m[2]], lit) for lit in literals]


def test_each_way_has_its_own_field():
    assert constraint_body("choice", ACTIONS) == {"structured_outputs": {"choice": list(ACTIONS)}}
    assert constraint_body("grammar", ("a", "b")) == {"grammar": 'root ::= "a" | "b"'}
    schema = constraint_body("json_schema", ACTIONS)["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["action"]["enum"] == list(ACTIONS)
    assert schema["required"] == ["action"]


@given(st.lists(st.text(), min_size=1, max_size=5, unique=True))
@settings(max_examples=150, deadline=None)
def test_a_grammar_says_exactly_the_actions(actions):
    assert read_gbnf(gbnf_alternatives(actions)) == actions
    assert "\n" not in gbnf_alternatives(actions)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"action": "look"}', "look"),
        ('{"action": "dance"}', '{"action": "dance"}'),
        ('{"action": "lo', '{"action": "lo'),
        ("look", "look"),
        ("[1]", "[1]"),
        (None, None),
    ],
)
def test_only_an_admissible_action_is_unwrapped(content, expected):
    message = {"role": "assistant", "content": content}
    assert unwrap_action(message, ACTIONS) == {"role": "assistant", "content": expected}
    assert message["content"] == content
