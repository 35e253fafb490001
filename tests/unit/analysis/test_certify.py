"""One chain of tests: taus, counts, verdicts; and the published tables."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from selective_rollout.analysis.certify import Finding, Question, Verdict, certify
from selective_rollout.analysis.reach import Reach
from selective_rollout.analysis.sample import Unit
from selective_rollout.analysis.scores_file import read_scores
from selective_rollout.analysis.verdicts import explain
from selective_rollout.errors import ConfigError, TraceError


def units(
    zero_variance: Iterable[float | None], signal: Iterable[float | None], saved: int = 5
) -> list[Unit]:
    """Groups by the distance at their only check; None: no tau cuts them."""
    made = []
    for label, values in ((True, zero_variance), (False, signal)):
        for value in values:
            looks = () if value is None else ((value, saved),)
            made.append(Unit(f"t{len(made)}", label, looks, 100))
    return made


def found(made: list[Unit], alpha: float = 0.1, grid: str = "0.1:0.5:0.1") -> Finding:
    return certify(made, Question(alpha, 0.05, grid), start_step=10)


GOOD = units([0.05] * 30 + [0.6] * 10, [0.7] * 40 + [0.35] * 8)


class TestWalk:
    def test_tau_is_strict_and_the_largest_that_holds(self) -> None:
        finding = found(units([0.05] * 30, [0.3] * 8 + [0.7] * 40))
        assert finding.tau == 0.3, "0.3 is not below 0.3; at 0.4 all eight are cut"
        assert (finding.cuts, finding.false_cuts, finding.n_signal, finding.groups) == (30, 0, 48, 78)
        assert finding.verdict is Verdict.CERTIFIED
        assert finding.bound == pytest.approx(1 - 0.05 ** (1 / 48))

    def test_a_group_that_no_tau_cuts_counts_all_the_same(self) -> None:
        finding = found(units([0.05] * 30, [None] * 48))
        assert (finding.n_signal, finding.false_cuts, finding.tau) == (48, 0, 0.5)

    def test_no_threshold_lies_beyond_one(self) -> None:
        with pytest.raises(ConfigError, match="grid '0.5,1.5' must hold thresholds from 0 to 1"):
            Question(grid="0.5,1.5")

    def test_the_walk_ends_at_the_first_failure(self) -> None:
        finding = found(units([0.05] * 30, [0.15] * 10 + [0.7] * 40))
        assert finding.tau == 0.1

    def test_later_checks_count_where_they_fire_first(self) -> None:
        unit = Unit("t", True, ((0.4, 30), (0.1, 20)), 100)
        assert unit.smallest_tau == 0.1
        assert [unit.saved(tau) for tau in (0.1, 0.2, 0.41)] == [None, 20, 30]

    def test_savings_are_kept_apart(self) -> None:
        finding = found(units([0.05] * 30, [0.05] + [0.7] * 47, saved=10), alpha=0.15)
        assert (finding.lossless_steps, finding.lossy_steps, finding.steps) == (300, 10, 7800)
        assert finding.saved == pytest.approx(310 / 7800)
        assert finding.efficiency == pytest.approx((47 / 48) / (1 - 310 / 7800))

    def test_a_part_of_delta_needs_more_data(self) -> None:
        whole = certify(GOOD, Question(grid="0.1"), start_step=10)
        part = certify(GOOD, Question(grid="0.1"), start_step=10, level=0.05 / 3)
        assert (whole.needed_min, part.needed_min) == (29, 39)

    @pytest.mark.parametrize(
        ("alpha", "grid"), [(0.0, "0.1"), (1.0, "0.1"), (0.1, "nonsense"), (0.1, "0.3:0.1:0.1")]
    )
    def test_a_bad_question_is_refused(self, alpha: float, grid: str) -> None:
        with pytest.raises(ConfigError):
            Question(alpha, 0.05, grid)


class TestVerdicts:
    def test_too_little_data_says_how_much_is_needed(self) -> None:
        finding = found(units([0.05] * 15, [0.05] + [0.7] * 20))
        assert finding.verdict is Verdict.NOT_CERTIFIABLE
        assert (finding.tau, finding.cuts, finding.false_cuts, finding.bound) == (None, None, None, None)
        assert (finding.needed, finding.needed_min) == (103, 29)
        assert "103 are needed at the rate observed, 29 if none of them is cut" in explain(
            finding, Question()
        )

    def test_a_rate_above_alpha_needs_another_signal_not_more_data(self) -> None:
        finding = found(units([0.05] * 15, [0.05] * 5 + [0.7] * 20))
        assert finding.needed is None
        assert "more data will not help" in explain(finding, Question())

    def test_distances_that_say_nothing(self) -> None:
        finding = found(units([0.1, 0.5, 0.9] * 20, [0.1, 0.5, 0.9] * 20))
        assert finding.verdict is Verdict.NO_BETTER_THAN_CHANCE
        assert "no better than chance here: AUROC 0.50" in explain(finding, Question())

    def test_a_score_that_says_nothing_is_not_told_to_try_a_score(self) -> None:
        finding = found(units([0.1, 0.5, 0.9] * 20, [0.1, 0.5, 0.9] * 20))
        told = explain(finding, Question(), by_score=True)
        assert "for zero variance by the fitted score" in told
        assert "Try another start_step or the prompts' history; else leave the gate off." in told

    def test_a_check_that_hardly_any_group_reaches_is_no_verdict_on_distances(self) -> None:
        finding = found(units([None] * 60, [None] * 40))
        assert finding.verdict is Verdict.NO_BETTER_THAN_CHANCE
        told = explain(finding, Question(), Reach(longest=Counter({4: 100}), decided=Counter({2: 100})))
        assert told == (
            "Off: hardly any group (0 of 100) still runs at step 10, so nothing can be said about a check "
            "there; try --start-step 2, where the recorded gate decided."
        )

    def test_a_check_that_few_groups_reach_is_said_beside_the_verdict(self) -> None:
        finding = found(units([0.1, 0.5, 0.9] * 20, [0.1, 0.5, 0.9] * 20))
        told = explain(finding, Question(), Reach(longest=Counter({4: 100, 20: 20})))
        assert told.startswith("Off: no better than chance here: AUROC 0.50")
        assert "Only 20 of 120 groups still run at step 10, and the others cannot be cut; look" in told

    def test_a_certificate_stands_however_few_groups_reach_the_check(self) -> None:
        told = explain(found(GOOD), Question(), Reach(longest=Counter({4: 100})))
        assert told == explain(found(GOOD), Question())

    def test_no_cuts_are_no_gate(self) -> None:
        finding = found(units([0.6] * 30, [0.9] * 48))
        assert finding.verdict is Verdict.CERTIFIED_BUT_USELESS
        assert (finding.tau, finding.cuts) == (0.5, 0)
        assert explain(finding, Question()).endswith("cuts 0 of 78 tasks: nothing to gain.")

    def test_cuts_that_chance_would_get_right_as_often(self) -> None:
        finding = found(units([0.05] * 2 + [0.6] * 60, [0.05] + [0.9] * 48))
        assert finding.verdict is Verdict.CERTIFIED_BUT_USELESS
        assert "groups drawn at random would be right as often" in explain(finding, Question())

    def test_cuts_that_save_nothing(self) -> None:
        finding = found(units([0.05] * 30, [0.9] * 48, saved=0))
        assert finding.verdict is Verdict.CERTIFIED_BUT_USELESS
        assert "no step is saved" in explain(finding, Question())

    def test_a_certified_gate_is_on(self) -> None:
        finding = found(GOOD)
        assert finding.on
        assert explain(finding, Question()).startswith("On: tau 0.3 at step 10 cuts at most 0.1 of the")

    @pytest.mark.parametrize(
        "made", [[], units([0.1] * 20, []), units([], [0.1] * 20), units([], [0.9] * 100)]
    )
    def test_one_kind_of_group_alone_is_never_on(self, made: list[Unit]) -> None:
        finding = found(made)
        assert not finding.on
        assert finding.auroc is None
        assert "Off" in explain(finding, Question())

    def test_it_is_plain_data(self) -> None:
        document = json.loads(json.dumps(found(GOOD).to_dict(), allow_nan=False))
        assert document["verdict"] == "certified"
        assert document["gate"] == "on"
        assert document["base_rate"] == pytest.approx(40 / 88)


@pytest.fixture(scope="module")
def scores(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published distances as a scores file."""
    path = tmp_path_factory.mktemp("scores") / "scores.csv"
    with (shared_data / "paper" / "hybrid_gate_features.csv").open() as file, path.open("w") as out:
        writer = csv.writer(out)
        writer.writerow(["group", "step", "distance", "zero_variance"])
        for row in csv.DictReader(file):
            zero_variance = int(row["label"] != "mixed")
            writer.writerow([row["task_id"], row["K"], row["prefix_edit_distance_mean"], zero_variance])
    return path


@pytest.mark.parametrize(
    ("step", "alpha", "tau", "cuts", "false_cuts"),
    [
        (10, 0.05, None, None, None),
        (10, 0.10, None, None, None),
        (10, 0.15, 0.12, 21, 4),
        (10, 0.20, 0.21, 26, 6),
        (15, 0.05, 0.015, 5, 0),
        (15, 0.10, 0.125, 16, 2),
        (15, 0.15, 0.20, 23, 4),
        (15, 0.20, 0.25, 26, 5),
        (20, 0.05, 0.075, 7, 0),
        (20, 0.10, 0.24, 20, 2),
        (20, 0.15, 0.27, 24, 4),
        (20, 0.20, 0.28, 28, 6),
    ],
)
def test_the_published_distances(
    scores: Path, step: int, alpha: float, tau: float | None, cuts: int | None, false_cuts: int | None
) -> None:
    made, unknown = read_scores(scores, step)
    finding = certify(made, Question(alpha, 0.05, "0.005:0.300:0.005"), start_step=step)
    assert (finding.tau, finding.cuts, finding.false_cuts) == (tau, cuts, false_cuts)
    assert (finding.n_signal, finding.groups, unknown) == (61, 100, 0)
    expected = Verdict.NOT_CERTIFIABLE if tau is None else Verdict.CERTIFIED
    assert finding.verdict is expected


def test_how_much_data_the_published_gate_would_need(scores: Path) -> None:
    made, _ = read_scores(scores, 10)
    needed = {alpha: certify(made, Question(alpha), start_step=10) for alpha in (0.04, 0.05, 0.10)}
    assert {a: (f.needed, f.needed_min) for a, f in needed.items()} == {
        0.04: (None, 74),
        0.05: (191_906, 59),
        0.10: (116, 29),
    }


class TestScoresFile:
    def write(self, tmp_path: Path, text: str) -> Path:
        path = tmp_path / "scores.csv"
        path.write_text(text)
        return path

    def test_empty_cells_are_unknown(self, tmp_path: Path) -> None:
        header = "\ufeffgroup,step,distance,zero_variance,more"
        rows = [header, "a,10,0.1,True,x", "b,10,,0,x", "c,10,0.2,,x", "d,5,9,1,x", ""]
        made, unknown = read_scores(self.write(tmp_path, "\n".join(rows)), 10)
        assert unknown == 1
        assert [(unit.task_id, unit.harmless, unit.smallest_tau) for unit in made] == [
            ("a", True, 0.1),
            ("b", False, None),
        ]

    def test_numbers_that_a_table_made_floats_are_the_same(self, tmp_path: Path) -> None:
        rows = ["group,step,distance,zero_variance", "a,10.0,0.1,1.0", "b,10.0,0.4,0.0", "c,10.0,0.4,nan"]
        made, unknown = read_scores(self.write(tmp_path, "\n".join(rows)), 10)
        assert ([unit.harmless for unit in made], unknown) == ([True, False], 1)

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            ("a,10,0.1,1\na,10,0.2,1", r"scores\.csv:3: group 'a' has a second row for step 10"),
            ("a,10,1.5,1", r"scores\.csv:2: distance '1.5' is not a number from 0 to 1"),
            ("a,10,nan,1", "distance 'nan'"),
            ("a,10,near,1", "distance 'near'"),
            ("a,ten,0.1,1", "step 'ten' is not a whole number"),
            ("a,10.5,0.1,1", "step '10.5' is not a whole number"),
            ("a,10,0.1,maybe", "zero_variance 'maybe' must be 0, 1, true, false or empty"),
            ("a,5,0.1,1\nb,20,0.1,1", r"no rows for step 10; steps in the file: 5, 20"),
            ("", "no rows for step 10; steps in the file: none"),
        ],
    )
    def test_what_is_wrong_is_named(self, tmp_path: Path, rows: str, message: str) -> None:
        with pytest.raises(TraceError, match=message):
            read_scores(self.write(tmp_path, f"group,step,distance,zero_variance\n{rows}\n"), 10)

    def test_missing_columns_and_files(self, tmp_path: Path) -> None:
        with pytest.raises(TraceError, match="no column distance, zero_variance"):
            read_scores(self.write(tmp_path, "group,step\na,10\n"), 10)
        with pytest.raises(TraceError, match="cannot read the scores"):
            read_scores(tmp_path / "absent.csv", 10)
        (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(TraceError, match="cannot read the scores"):
            read_scores(tmp_path / "binary.csv", 10)
