"""A turn in tokens."""

from __future__ import annotations

import pytest

from selective_rollout.engine.training.turn import Turn
from selective_rollout.types import Usage

TURN = Turn(prompt=[1, 2], said=[3, 4], text="look", action="look", finish_reason="stop")


class Letters:
    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(chr(ord("a") + token) for token in tokens)


@pytest.mark.parametrize(
    ("asked", "reply"),
    [([1, 2, 3, 4, 5, 6], "fg"), ([1, 2, 3, 4], ""), ([1, 2, 3], None), ([1, 2, 9, 4, 5], None)],
    ids=["more", "nothing new", "shortened", "written anew"],
)
def test_the_environments_reply_is_what_follows_the_turn(asked: list[int], reply: str | None) -> None:
    assert TURN.reply(Letters(), asked) == reply


def test_the_facts_count_the_tokens_that_were_said() -> None:
    assert TURN.facts("a door") == {
        "completion": "look",
        "observation": "a door",
        "usage": Usage(completion=2, source="client"),
        "finish_reason": "stop",
    }
