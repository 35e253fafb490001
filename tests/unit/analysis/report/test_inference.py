"""The survivor against the full vote."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from selective_rollout.analysis.report.inference import AnswerTotals, leading, survivor_of
from selective_rollout.engine.survivor import first_of, survivor_order
from selective_rollout.types import Group, Rollout, RolloutStatus, Step

DONE = RolloutStatus.FINISHED


def group(
    answers: list[str | None], group_id: str = "g", statuses: list[RolloutStatus] | None = None
) -> Group:
    statuses = statuses or [DONE] * len(answers)
    rollouts = tuple(
        Rollout(i, (Step(1, "a"), Step(2, "b")), status, answer=answer)
        for i, (answer, status) in enumerate(zip(answers, statuses, strict=True))
    )
    return Group(group_id, len(answers), rollouts, group_id)


@given(st.lists(st.sampled_from([DONE, RolloutStatus.FAILED]), min_size=1, max_size=6), st.text(max_size=4))
def test_the_survivor_is_the_engines(statuses: list[RolloutStatus], group_id: str) -> None:
    found = survivor_of(group([None] * len(statuses), group_id, statuses), 3)
    present = {i for i, status in enumerate(statuses) if status is DONE}
    assert (found.index if found is not None else None) == first_of(
        survivor_order(group_id, len(statuses)), present
    )


@given(st.dictionaries(st.integers(0, 9), st.sampled_from("abc"), min_size=1))
def test_the_leaders_are_the_most_frequent(answers: dict[int, str]) -> None:
    votes = Counter(answers.values())
    assert leading(answers) == {answer for answer in votes if votes[answer] == max(votes.values())}


def test_agreement_is_counted_in_the_cuts_and_beside_it_in_all() -> None:
    totals = AnswerTotals()
    totals.add(group(["x", "x", "x"]), 1, 1)
    totals.add(group(["x", "x", "y"]), 1, None)
    totals.add(group(["x", "y"]), 1, 1)
    assert (totals.groups, totals.unanimous, totals.tied, totals.cuts) == (3, 1, 1, 2)
    assert totals.agreed_in_cuts == 2, "of a tie either answer agrees"
    assert totals.risk.value == 0


def test_a_survivor_without_an_answer_differs() -> None:
    first = survivor_order("g", 3)[0]
    totals = AnswerTotals()
    totals.add(group([None if i == first else "x" for i in range(3)]), 1, 1)
    assert totals.risk.value == 1


def test_one_answer_is_no_vote() -> None:
    totals = AnswerTotals()
    totals.add(group(["x", None]), 1, None)
    assert totals.groups == 0
    assert totals.to_dict()["survivor_agrees_base_rate"] == {
        "hits": 0,
        "trials": 0,
        "value": None,
        "interval_95": None,
    }
