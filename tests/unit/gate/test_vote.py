"""Who leads a vote, and when nobody can overtake the leader any more."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selective_rollout.gate.vote import first_wave, leading, plurality, unassailable


@pytest.mark.parametrize(
    ("votes", "outstanding", "winner"),
    [
        ({}, 5, None),
        ({"a": 3}, 2, "a"),
        ({"a": 3}, 3, None),
        ({"a": 3, "b": 1}, 1, "a"),
        ({"a": 3, "b": 1}, 2, None),
        ({"a": 2, "b": 2}, 0, None),
    ],
)
def test_a_leader_that_could_still_be_tied_is_not_safe(
    votes: dict[str, int], outstanding: int, winner: str | None
) -> None:
    assert unassailable(votes, outstanding) == winner


@given(st.lists(st.sampled_from("abc"), max_size=6), st.integers(0, 3))
def test_it_agrees_with_every_way_the_rest_could_vote(cast: list[str], outstanding: int) -> None:
    winners = set()
    for rest in product("abcd", repeat=outstanding):
        ranked = Counter([*cast, *rest]).most_common(2)
        tied = len(ranked) == 2 and ranked[0][1] == ranked[1][1]
        winners.add(None if not ranked or tied else ranked[0][0])
    expected = winners.pop() if len(winners) == 1 else None
    assert unassailable(Counter(cast), outstanding) == expected


def test_ties_go_to_the_first_voter_in_the_groups_order() -> None:
    assert plurality({0: "x", 1: "y", 2: "y", 3: "x"}, [2, 0, 1, 3]) == "y"
    assert plurality({0: "x", 1: "y", 2: "y"}, [0, 1, 2]) == "y"
    assert plurality({}, [0, 1]) is None


@given(st.dictionaries(st.integers(0, 9), st.sampled_from("abc")))
def test_the_leaders_are_the_most_frequent(answers: dict[int, str]) -> None:
    votes = Counter(answers.values())
    assert leading(answers) == {answer for answer in votes if votes[answer] == max(votes.values())}


@pytest.mark.parametrize(("size", "first"), [(1, 1), (2, 2), (3, 2), (4, 3), (8, 5)])
def test_the_first_wave_is_the_smallest_majority(size: int, first: int) -> None:
    assert list(first_wave(range(size))) == list(range(first))
