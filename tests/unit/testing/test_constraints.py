import json

import pytest

from selective_rollout.policy.constrain import constraint_body
from selective_rollout.testing import Reply
from selective_rollout.testing.constraints import constrained

ACTIONS = ['open "door"', "wait"]
WAYS = ("choice", "grammar", "json_schema")


@pytest.mark.parametrize("way", WAYS)
def test_a_way_that_is_understood_keeps_to_the_texts(way):
    shown = {text: json.dumps({"action": text}) if way == "json_schema" else text for text in ACTIONS}
    body = constraint_body(way, ACTIONS)
    said = [constrained(Reply(content="chatter"), body, {way}, seed).content for seed in (0, 1, 2)]
    assert said == [shown[ACTIONS[0]], shown[ACTIONS[1]], shown[ACTIONS[0]]]
    assert constrained(Reply(content="wait"), body, {way}, 0).content == shown["wait"]


@pytest.mark.parametrize("way", WAYS)
def test_a_way_that_is_not_understood_is_ignored(way):
    others = set(WAYS) - {way}
    assert constrained(Reply(content="free"), constraint_body(way, ACTIONS), others, 0).content == "free"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"grammar": 'root ::= [a-z]+ "x"'},
        {"response_format": {"type": "json_object"}},
        {"response_format": "text"},
        {"structured_outputs": {"regex": "a+"}},
    ],
)
def test_other_constraints_are_left_alone(body):
    assert constrained(Reply(content="free"), body, WAYS, 0) == Reply(content="free")
