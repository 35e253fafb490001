"""One pass over traces: what is counted where, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from selective_rollout.analysis.report.checks import check_values
from selective_rollout.analysis.report.collect import ReportData, collect
from selective_rollout.analysis.report.diff import compare
from selective_rollout.analysis.report.population import NamedGate
from selective_rollout.analysis.report.words import caveats, certificate_sentences, lead, significant
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.trace.recorder import Recorder

RULE = GateConfig(start_step=2, tau=0.3)
SAME, APART = ("aaaa", "aaaa"), ("abcd", "xyzw")


def record(path: Path, groups: Sequence[tuple[str, Sequence[str], Sequence[float | None]]]) -> Path:
    """Record (id, actions of each rollout, rewards) one group after the other."""
    with Recorder(path) as recorder:
        for group_id, rows, rewards in groups:
            with recorder.group(group_id, size=len(rows), task_id=group_id.split("/")[0]) as log:
                for index, (actions, reward) in enumerate(zip(rows, rewards, strict=True)):
                    for action in actions:
                        log.step(index, action)
                    log.finish(index, reward=reward)
    return path


def collected(path: Path, most_rows: int = 100, most_trees: int = 100) -> ReportData:
    return collect([path], [NamedGate("mine", RULE)], most_rows=most_rows, most_trees=most_trees)


@pytest.fixture
def data(tmp_path: Path) -> ReportData:
    groups = [
        ("fail", SAME, (0.0, 0.0)),
        ("win", APART, (1.0, 1.0)),
        ("mixed cut", SAME, (0.0, 1.0)),
        ("mixed kept", APART, (0.0, 1.0)),
        ("unscored", SAME, (None, 1.0)),
    ]
    return collected(record(tmp_path / "t.jsonl", groups))


def test_totals_agree_with_what_was_recorded(data: ReportData) -> None:
    account = data.population.accounts[0]
    assert (account.right, account.wrong, account.missed, account.unlabelled.groups) == (1, 1, 1, 1)
    assert {kind: totals.groups for kind, totals in data.population.kinds.items()} == {
        "all_fail": 1,
        "all_success": 1,
        "mixed": 2,
        "unknown": 1,
    }
    assert (data.overview.groups, data.overview.steps, data.overview.unknown) == (5, 40, 1)
    assert data.basis == "untouched"
    assert data.enforced is None
    json.dumps(data.to_dict(), allow_nan=False)


def test_the_names_of_checks_hold_the_numbers_of_the_tables(data: ReportData) -> None:
    values = check_values(data, compare(data.quantities, data.quantities))
    assert values["zero_variance"] == 0.5
    assert values["loss"] == 0.5
    assert values["wrong"] == 1
    assert values["false_cut_bound"] == pytest.approx(0.9747, abs=1e-4)
    assert values["change_loss"] == 0
    assert values["efficiency_low"] is None, "four tasks are too few for an interval"
    assert values["audited_false_cut_rate"] is None


def test_the_lead_says_what_was_wasted_and_what_the_gate_is_worth(data: ReportData) -> None:
    waste, gate = lead(data)
    assert waste.startswith("2 of 4 labelled groups ended with equal rewards and took 40.0% of all steps")
    assert "would have cut 3 groups: 1 rightly, 1 wrongly, 1 of unknown label" in gate
    assert "on too few tasks for an interval" in gate


def test_a_gate_that_looks_too_late_is_not_called_one_that_cuts_nothing(tmp_path: Path) -> None:
    path = record(tmp_path / "t.jsonl", [(f"g{i}", SAME, (0.0, float(i % 2))) for i in range(10)])
    late = collect([path], [NamedGate("gate", GateConfig())])
    assert lead(late)[1] == (
        "The gate (distance < 0.12 at step 10) looks too late: hardly any group (0 of 10) still runs at step "
        "10, so nothing can be said about a check there; try --start-step 3, where 10 of 10 still run."
    )
    assert late.to_dict()["reach"] == late.reach.to_dict(10)
    strict = collect([path], [NamedGate("gate", replace(RULE, tau=0.0))])
    assert lead(strict)[1] == "The gate (distance < 0 at step 2) would have cut none of them."


def test_a_gate_that_few_groups_reach_is_told_so_beside_its_numbers(tmp_path: Path) -> None:
    rows = [("aa", "aa"), ("aa", "aa"), SAME]
    path = record(tmp_path / "t.jsonl", [(f"g{i}", row, (0.0, 0.0)) for i, row in enumerate(rows)])
    assert (
        "But only 1 of 3 groups still run at step 2, and the others cannot be cut" in lead(collected(path))[1]
    )


def test_what_the_cuts_cost_is_unknown_without_a_signal_bearing_group(tmp_path: Path) -> None:
    path = record(tmp_path / "t.jsonl", [(f"g{i}", SAME, (0.0, 0.0)) for i in range(3)])
    gate = lead(collected(path))[1]
    assert gate.endswith(
        "It saves 50.0% of the steps losslessly and 0.0% lossily, and what that costs is unknown: no "
        "signal-bearing group was observed that it could lose."
    )
    assert "price of unknown" not in gate


def test_caveats_name_what_is_missing(data: ReportData) -> None:
    told = " ".join(caveats(data))
    assert "1 group has an unknown label" in told
    assert "5 groups declare nothing about sampling" in told


def test_several_gates_stand_side_by_side(tmp_path: Path) -> None:
    path = record(tmp_path / "t.jsonl", [("a", SAME, (0.0, 0.0)), ("b", APART, (0.0, 0.0))])
    rules = [RULE, replace(RULE, tau=1.0), GateConfig(level="char", padding="none", start_step=2, tau=0.3)]
    data = collect([path], [NamedGate(str(i), rule) for i, rule in enumerate(rules)])
    assert [account.cuts for account in data.population.accounts] == [1, 1, 1]
    assert data.rows[0].cuts == (2, 2, 2)


def test_a_survivors_steps_are_saved_neither_in_the_number_nor_in_its_interval(tmp_path: Path) -> None:
    groups = [(f"g{i}", ("a" * (5 + i % 4), "a" * (5 + i % 3)), (0.0, 0.0)) for i in range(40)]
    gate = NamedGate("mine", replace(RULE, outcome="survivor"))
    data = collect([record(tmp_path / "t.jsonl", groups)], [gate])
    [lossless] = [quantity for quantity in data.quantities if quantity.name == "lossless"]
    assert lossless.value is not None
    assert lossless.interval is not None
    assert lossless.interval.low < lossless.value < lossless.interval.high < 0.4


def test_answers_that_are_missing_are_named(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder, recorder.group("g", size=3) as log:
        for index in range(3):
            log.step(index, "a")
            log.finish(index, 0.0, answer=None if index == 2 else "x")
    assert any(
        "1 finished rollouts have no answer" in text for text in caveats(collected(tmp_path / "t.jsonl"))
    )


def test_groups_of_one_prompt_are_one_task_and_widen_the_intervals(tmp_path: Path) -> None:
    groups = [(f"{task}/{visit}", SAME, (float(task % 2),) * 2) for task in range(12) for visit in range(5)]
    once = [(f"{i}", SAME, (float(i % 2),) * 2) for i in range(60)]
    repeated = collected(record(tmp_path / "a.jsonl", groups))
    apart = collected(record(tmp_path / "b.jsonl", once))
    widths = [next(q for q in data.quantities if q.name == "all_fail").interval for data in (repeated, apart)]
    assert widths[0] is not None
    assert widths[1] is not None
    assert widths[0].high - widths[0].low > 1.5 * (widths[1].high - widths[1].low)
    assert len(repeated.overview.tasks) == 12
    assert any("come from 12 tasks" in text for text in caveats(repeated))


def test_history_is_what_earlier_groups_of_the_prompt_got(tmp_path: Path) -> None:
    groups = [("p/0", SAME, (0.0, 0.0)), ("p/1", SAME, (0.0, 1.0)), ("p/2", SAME, (0.0, 0.0))]
    path = record(tmp_path / "t.jsonl", groups)
    data = collect([path], [NamedGate("mine", replace(RULE, history_mixed=2))])
    assert [row.cuts[0] for row in data.rows] == [None, 2, None]


def test_memory_is_bounded_and_wrong_cuts_are_kept(tmp_path: Path) -> None:
    groups = [(f"g{i}", SAME, (0.0, float(i == 37))) for i in range(60)]
    data = collected(record(tmp_path / "t.jsonl", groups), most_rows=10, most_trees=4)
    assert len(data.rows) == 10
    assert len(data.trees) == 4
    assert "g37" in data.trees
    assert "g37" in {row.id for row in (*data.rows, *data.extra_rows)}
    assert data.overview.groups == 60


def test_failures_are_kept_apart_from_behaviour(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder, recorder.group("g", size=3) as log:
        for index in (0, 1):
            log.step(index, "a")
            log.finish(index, reward=0.0)
        log.fail(2, "timeout", "the endpoint did not answer")
    data = collected(tmp_path / "t.jsonl")
    assert data.overview.failures == {"timeout": 1}
    assert data.population.kinds["all_fail"].groups == 1


def test_an_unfinished_group_enters_no_rate(tmp_path: Path) -> None:
    path = record(tmp_path / "t.jsonl", [("a", SAME, (0.0, 0.0)), ("b", SAME, (0.0, 0.0))])
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not ("group_end" in line and '"b"' in line)))
    data = collected(path)
    assert (data.overview.groups, data.overview.unfinished, data.population.groups) == (2, 1, 1)
    assert any("unfinished" in text for text in caveats(data))


def test_an_empty_trace_and_no_gate_are_errors(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl"):
        pass
    with pytest.raises(ConfigError, match="no group is recorded there"):
        collected(tmp_path / "t.jsonl")
    with pytest.raises(ConfigError, match="at least one gate"):
        collect([tmp_path / "t.jsonl"], [])


@pytest.mark.parametrize(
    ("value", "signed", "text"),
    [
        (None, False, "unknown"),
        (0, True, "0"),
        (9.5, True, "+9.50"),
        (-0.01234, True, "\u22120.0123"),
        (164.2, False, "164"),
    ],
)
def test_numbers_have_three_significant_figures(value: float | None, signed: bool, text: str) -> None:
    assert significant(value, signed) == text


def test_a_certificate_is_said_in_plain_words() -> None:
    given = {"verdict": "certified", "alpha": 0.1, "tau": 0.12, "false_cuts": 2, "n_signal": 61}
    told = " ".join(certificate_sentences(given))
    assert "With 95% confidence a threshold of 0.12 cuts at most 10.0% of the signal-bearing groups" in told
    assert "It would have cut 2 of 61 of them." in told
    assert "the gate stays off" in " ".join(
        certificate_sentences({"verdict": "not_certifiable", "needed": 124})
    )
    assert certificate_sentences({"text": "Ready made."}) == ["Ready made."]
    assert certificate_sentences({}) == []
