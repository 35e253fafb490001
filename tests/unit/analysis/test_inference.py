"""The full vote of a recorded group, its survivor, and the exact rule under each schedule."""

from __future__ import annotations

import pytest

from selective_rollout.analysis.inference import exact_votes, leaders_of, survivor_agrees
from selective_rollout.draws import survivor_order
from selective_rollout.types import Group, Rollout, RolloutStatus, Step

DONE, LIMIT, LOST = RolloutStatus.FINISHED, RolloutStatus.TRUNCATED, RolloutStatus.FAILED


def group(
    answers: list[str | None],
    lengths: list[int] | None = None,
    statuses: list[RolloutStatus] | None = None,
    size: int | None = None,
) -> Group:
    statuses = statuses or [DONE] * len(answers)
    lengths = lengths or [2] * len(answers)
    rollouts = tuple(
        Rollout(i, tuple(Step(k, "a") for k in range(1, n + 1)), status, answer=answer)
        for i, (answer, n, status) in enumerate(zip(answers, lengths, statuses, strict=True))
    )
    return Group("g", size or len(rollouts), rollouts, "g")


def in_order(answers: list[str | None], lengths: list[int]) -> Group:
    """A group whose members are given in the order in which they would be begun."""
    order = survivor_order("g", len(answers))
    places = [order.index(rollout) for rollout in range(len(answers))]
    return group([answers[place] for place in places], [lengths[place] for place in places])


@pytest.mark.parametrize(
    ("made", "leaders"),
    [
        (group(["x", "x", "y"]), {"x"}),
        (group(["x", "y"]), {"x", "y"}),
        (group(["x", "x", None]), {"x"}),
        (group(["x", "y", None]), None),
        (group(["x", "x", "y", None]), None),
        (group(["x", "x", "y", None], statuses=[DONE, DONE, DONE, LIMIT]), {"x"}),
        (group(["x", "x", "y", "y"], statuses=[DONE, DONE, DONE, LOST]), {"x"}),
        (group(["x", "x", "y"], statuses=[DONE, DONE, RolloutStatus.RUNNING]), None),
        (group(["x", "x", None], statuses=[DONE, DONE, RolloutStatus.CUT]), None),
        (group(["x", "x", "x"], size=4), None),
        (group(["x"]), None),
        (group([None, None]), None),
        (group([]), None),
    ],
)
def test_the_full_vote_is_known_or_it_is_not(made: Group, leaders: set[str] | None) -> None:
    assert leaders_of(made) == leaders


def test_the_survivor_is_the_first_sound_member_of_the_order() -> None:
    first, second = survivor_order("g", 3)[:2]
    answers: list[str | None] = ["x", "x", "x"]
    answers[first] = "y"
    assert survivor_agrees(group(answers)) is False
    lost = [LOST if index == first else DONE for index in range(3)]
    assert survivor_agrees(group(answers, statuses=lost)) is True, "the next one takes over"
    answers[second], answers[first] = None, "x"
    assert survivor_agrees(group(answers)) is True
    answers[second], answers[first] = "x", None
    assert survivor_agrees(group(answers)) is False, "no answer is not the vote's"
    assert survivor_agrees(group(["x", None, None])) is None


def test_all_at_once_only_the_slowest_are_spared() -> None:
    run = exact_votes(in_order(["x", "x", "x", "y", "y"], [9, 3, 5, 7, 7]))["parallel"]
    assert (run.answer, run.rounds) == (None, 9), "two against two until the last one ends"
    run = exact_votes(in_order(["x", "x", "x", "x", "y"], [4, 3, 5, 9, 9]))["parallel"]
    assert (run.answer, run.rounds, sum(run.steps.values())) == ("x", 5, 4 + 3 + 5 + 5 + 5)


def test_in_two_waves_an_open_majority_calls_the_rest_in() -> None:
    run = exact_votes(in_order(["x", "x", "x", "y", "y"], [4, 3, 5, 9, 9]))["two_waves"]
    assert (run.answer, run.rounds, sum(run.steps.values())) == ("x", 5, 4 + 3 + 5)
    run = exact_votes(in_order(["x", "x", "y", "x", "y"], [4, 3, 5, 2, 9]))["two_waves"]
    assert (run.answer, run.rounds, sum(run.steps.values())) == ("x", 5 + 2, 4 + 3 + 5 + 2 + 2)


def test_one_at_a_time_nobody_is_begun_in_vain() -> None:
    run = exact_votes(in_order(["x", "y", "x", "x", "y"], [4, 3, 5, 9, 2]))["one_at_a_time"]
    assert (run.answer, run.rounds, sum(run.steps.values())) == ("x", 21, 21)
    run = exact_votes(in_order(["x", "x", "x", "y", "y"], [4, 3, 5, 9, 2]))["one_at_a_time"]
    assert (run.answer, run.rounds, sum(run.steps.values())) == ("x", 12, 12)


def test_a_missing_answer_keeps_the_vote_open() -> None:
    whole = in_order(["x", "x", "x", "x", "x"], [1, 1, 1, 1, 1])
    missing = in_order([None, "x", "x", "x", "x"], [1, 1, 1, 1, 1])
    assert sum(exact_votes(whole)["one_at_a_time"].steps.values()) == 3
    assert sum(exact_votes(missing)["one_at_a_time"].steps.values()) == 4


def test_a_tie_is_never_stopped() -> None:
    for run in exact_votes(in_order(["x", "y", "x", "y"], [1, 2, 3, 4])).values():
        assert (run.answer, sum(run.steps.values())) == (None, 10)


def test_members_without_a_step_are_no_trouble() -> None:
    run = exact_votes(in_order(["x", "x", "x"], [0, 0, 4]))["parallel"]
    assert (run.answer, run.rounds, sum(run.steps.values())) == ("x", 0, 0)
