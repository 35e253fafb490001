"""The survivor against the full vote."""

from __future__ import annotations

import json

from selective_rollout.analysis.prices import Prices
from selective_rollout.analysis.report.inference import AnswerTotals
from selective_rollout.analysis.report.vote_rows import vote_rows
from selective_rollout.engine.survivor import survivor_order
from selective_rollout.types import Group, Rollout, RolloutStatus, Step, Usage

DONE = RolloutStatus.FINISHED


def group(answers: list[str | None], lengths: list[int] | None = None, usage: Usage | None = None) -> Group:
    rollouts = tuple(
        Rollout(i, tuple(Step(k, "a", usage=usage) for k in range(1, n + 1)), DONE, answer=answer)
        for i, (answer, n) in enumerate(zip(answers, lengths or [2] * len(answers), strict=True))
    )
    return Group("g", len(answers), rollouts, "g")


def test_agreement_is_counted_in_the_cuts_and_beside_it_in_all() -> None:
    totals = AnswerTotals()
    totals.add(group(["x", "x", "x"]), 1)
    totals.add(group(["x", "x", "y"]), None)
    totals.add(group(["x", "y"]), 1)
    assert (totals.groups, totals.unanimous, totals.tied, totals.cuts) == (3, 1, 1, 2)
    assert totals.agreed_in_cuts == 2, "of a tie either answer agrees"
    assert totals.risk.value == 0


def test_a_survivor_without_an_answer_differs() -> None:
    first = survivor_order("g", 3)[0]
    totals = AnswerTotals()
    totals.add(group([None if i == first else "x" for i in range(3)]), 1)
    assert totals.risk.value == 1


def test_one_answer_is_no_vote() -> None:
    totals = AnswerTotals()
    totals.add(group(["x", None]), None)
    totals.add(group([None, None]), None)
    assert (totals.groups, totals.left_out) == (0, 1), "a group without any answer is no vote at all"
    assert totals.to_dict()["survivor_agrees_base_rate"] == {
        "hits": 0,
        "trials": 0,
        "value": None,
        "interval_95": None,
    }


def test_what_the_survivor_saves_is_kept_apart_by_whether_it_agrees() -> None:
    first, *others = survivor_order("g", 3)
    totals = AnswerTotals()
    totals.add(group(["x", "x", "x"], [6, 6, 6]), 4)
    answers: list[str | None] = ["x", "x", "x"]
    answers[first] = "y"
    lengths = [0, 0, 0]
    lengths[first], lengths[others[0]], lengths[others[1]] = 8, 5, 9
    totals.add(group(answers, lengths), 4)
    totals.add(group(["x", "x", "x"], [6, 6, 6]), None)
    assert (totals.lossless.groups, totals.lossless.steps) == (1, 2 + 2)
    assert (totals.lossy.groups, totals.lossy.steps) == (1, 1 + 5)
    assert (totals.spent.steps, totals.rounds) == (18 + 22 + 18, 6 + 9 + 6)
    assert totals.survivor_rounds == 6 + 8 + 6, "the survivor of a cut ends it, however long the others were"


USAGE = Usage(prompt=1000, completion=100, source="server")


def test_each_schedule_has_its_own_numbers() -> None:
    totals = AnswerTotals(Prices(prompt=1.0, completion=10.0))
    totals.add(group(["x", "x", "x"], [4, 4, 4], USAGE), None)
    totals.add(group(["x", "y"], [4, 4], USAGE), None)
    document = json.loads(json.dumps(totals.to_dict()))
    rule = document["exact_rule"]
    assert [rule[name]["stopped"] for name in ("parallel", "two_waves", "one_at_a_time")] == [0, 1, 1]
    assert [rule[name]["rounds"] for name in ("parallel", "two_waves", "one_at_a_time")] == [8, 8, 16]
    assert rule["two_waves"]["steps"] == 4
    assert rule["two_waves"]["tokens"] == 400
    assert rule["two_waves"]["money"] == 0.008
    assert document["no_gate"] == {"steps": 20, "tokens": 2000, "money": 0.04, "rounds": 8}


def test_unknown_tokens_and_prices_stay_unknown() -> None:
    totals = AnswerTotals()
    totals.add(group(["x", "x", None], [4, 4, 4]), None)
    assert totals.missing_answers == 1
    no_gate, *ways = vote_rows(totals)
    assert (str(no_gate.steps), str(no_gate.tokens)) == ("0 of 12", "0 of unknown")
    assert {way.money.value for way in ways} == {"unknown"}
    assert [way.name for way in ways][2:] == [
        "exact rule, all at once",
        "exact rule, in two waves",
        "exact rule, one at a time",
    ]


def test_nothing_known_gives_no_times() -> None:
    assert {row.time.value for row in vote_rows(AnswerTotals())} == {"unknown", ""}
