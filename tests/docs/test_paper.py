"""The page on the paper: what it points at exists, and its figures follow from the paper's own tables.

Likewise the figures on recorded data in docs/concepts.md.
"""

from __future__ import annotations

import csv
import json
import math
import random
import re
from collections.abc import Iterable
from pathlib import Path
from statistics import mean, quantiles, stdev

import pytest

from selective_rollout.actions import canonicalise
from selective_rollout.analysis.certify import Question, certify
from selective_rollout.analysis.replay import replay
from selective_rollout.analysis.sample import Unit
from selective_rollout.gate.config import GateConfig
from selective_rollout.rewards import group_label
from selective_rollout.stats import auroc, upper_bound
from selective_rollout.types import Group, Rollout, RolloutStatus, Step

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
TESTED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_test_it_names_exists() -> None:
    named = set(TESTED.findall("\n".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))))
    assert len(named) > 10
    missing = [
        f"{file}::{name}"
        for file, name in sorted(named)
        if not re.search(rf"(def|class) {name}\b", (ROOT / file).read_text(encoding="utf-8"))
    ]
    assert missing == []


def rows(folder: Path, name: str, **wanted: str) -> list[dict[str, str]]:
    with (folder / "paper" / name).open(encoding="utf-8", newline="") as file:
        return [
            row for row in csv.DictReader(file) if all(row[key] == value for key, value in wanted.items())
        ]


def groups_at_10(folder: Path) -> list[dict[str, str]]:
    return rows(folder, "hybrid_gate_features.csv", K="10")


def distance(group: dict[str, str]) -> float:
    return float(group["prefix_edit_distance_mean"])


def counted(groups: list[dict[str, str]]) -> tuple[int, int, int]:
    """Groups, zero-variance ones, signal-bearing ones."""
    mixed = sum(group["label"] == "mixed" for group in groups)
    return len(groups), len(groups) - mixed, mixed


def cells(start: str) -> list[str]:
    """Of the page's table row that starts so, the cells behind the first."""
    (row,) = [line.strip() for line in PAGE.splitlines() if line.strip().startswith(f"| {start} |")]
    return [cell.strip() for cell in row.strip("|").split("|")[1:]]


@pytest.mark.parametrize("tau", ["0.05", "0.08", "0.10", "0.12", "0.14", "0.18"])
def test_thresholds(shared_data: Path, tau: str) -> None:
    cut = counted([group for group in groups_at_10(shared_data) if distance(group) < float(tau)])
    printed, recomputed, verdict = cells(tau)
    assert recomputed == " / ".join(map(str, cut))
    assert verdict == ("holds" if printed == recomputed else "differs")


def test_precision_does_not_rise_as_tau_falls(shared_data: Path) -> None:
    precise = {}
    for hundredths in range(1, 31):
        cut = [group for group in groups_at_10(shared_data) if distance(group) < hundredths / 100]
        precise[hundredths] = counted(cut)[1] / len(cut)
    assert [tau for tau, share in precise.items() if share >= 0.8] == [9, 10, 11, 12]
    assert [round(precise[tau], 2) for tau in (5, 8, 12)] == [0.79, 0.79, 0.81]


def test_the_two_stricter_rows_come_from_no_check(shared_data: Path) -> None:
    swept = {(row["TP"], row["FP"]) for row in rows(shared_data, "gate_sweep_full.csv", rule="R1")}
    assert not swept & {("9", "0"), ("13", "1")}
    groups = groups_at_10(shared_data)
    assert counted([group for group in groups if distance(group) <= 0.05]) == (19, 15, 4)
    assert counted([group for group in groups if distance(group) <= 0.08]) == (19, 15, 4)


@pytest.mark.parametrize("step", ["10", "15", "20"])
def test_certificates(shared_data: Path, step: str) -> None:
    units = [
        Unit(group["task_id"], group["label"] != "mixed", ((distance(group), 0),), 0)
        for group in rows(shared_data, "hybrid_gate_features.csv", K=step)
    ]
    found = []
    for alpha in (0.05, 0.10, 0.15):
        finding = certify(units, Question(alpha, 0.05, "0.005:0.300:0.005"), start_step=int(step))
        wrong = f"{finding.cuts} cuts, {finding.false_cuts} wrong"
        found.append("none" if finding.tau is None else f"tau {finding.tau:g}: {wrong}")
    assert cells(step) == found


def test_labels(shared_data: Path) -> None:
    groups = groups_at_10(shared_data)
    assert counted(groups) == (100, 39, 61)
    assert sum(group["label"] == "all_fail" for group in groups) == 25
    assert counted([group for group in groups if distance(group) == 0]) == (14, 11, 3)
    right = [group for group in groups if distance(group) < 0.12 and group["label"] != "mixed"]
    assert sum(group["label"] == "all_fail" for group in right) == 10
    worth_cutting = [group for group in right if float(group["termination_fraction"]) < 1]
    assert (len(right), len(worth_cutting)) == (17, 13)
    assert round(len(worth_cutting) / 100 * 20 / 30, 3) == 0.087


def test_distance_tells(shared_data: Path) -> None:
    groups = groups_at_10(shared_data)
    measured = auroc([-distance(group) for group in groups], [group["label"] != "mixed" for group in groups])
    assert measured == pytest.approx(0.757, abs=5e-4)
    table = rows(shared_data, "correlation_table.csv", metric="prefix_edit_distance_mean")
    areas = {row["K"]: f"{float(row['auroc_nonzero_var']):.3f}" for row in table}
    assert areas == {"5": "0.660", "10": "0.757", "15": "0.773", "20": "0.753"}


def test_savings_and_loss(shared_data: Path) -> None:
    (gate,) = rows(shared_data, "grpo_offline.csv", label="R1_K10_div0.12")
    assert (gate["compute_saved_steps"], gate["compute_total_steps"]) == ("2170", "18197")
    assert round(2170 / 18197, 3) == 0.119
    assert float(gate["grad_norm_preserved"]) == pytest.approx(math.sqrt(1 - 4 / 61), abs=1e-9)
    assert upper_bound(4, 61, 0.95) == pytest.approx(0.144, abs=5e-4)
    assert round((1 - 4 / 61) / (1 - 2170 / 18197), 2) == 1.06


def test_early_checks(shared_data: Path) -> None:
    sweep = [
        row
        for row in rows(shared_data, "gate_sweep_full.csv", rule="R1", K="5")
        if float(row["d_low"]) < 0.105
    ]
    assert len(sweep) == 9
    assert {(row["TP"], row["FP"]) for row in sweep} == {("17", "10")}


def test_wrong_cuts_are_of_one_type(shared_data: Path) -> None:
    wrong = rows(shared_data, "false_positives.csv")
    assert [row["task_type"] for row in wrong] == ["pick_and_place_simple"] * 4
    assert sum(float(row["d_K"]) == 0 for row in wrong) == 3


def arms(folder: Path) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """The ungated and the gated arm of the wall-clock test, by task."""
    ungated, gated = (
        {row["task_id"]: row for row in rows(folder, "wallclock_ab.csv", label=arm)}
        for arm in ("baseline", "gated")
    )
    return ungated, gated


def saved_share(arms: tuple[dict[str, dict[str, str]], ...], tasks: Iterable[str], column: str) -> float:
    before, after = (sum(float(arm[task][column]) for task in tasks) for arm in arms)
    return 1 - after / before


def test_wall_clock(shared_data: Path) -> None:
    both = arms(shared_data)
    ungated = both[0]
    assert saved_share(both, ungated, "wall_time_sec") == pytest.approx(0.111, abs=5e-4)
    assert saved_share(both, ungated, "step_tokens") == pytest.approx(0.117, abs=5e-4)
    draw = random.Random(0)
    resampled = [
        saved_share(both, draw.choices(list(ungated), k=len(ungated)), "wall_time_sec") for _ in range(2000)
    ]
    cuts = quantiles(resampled, n=40)
    assert (cuts[0], cuts[-1]) == pytest.approx((0.063, 0.163), abs=2e-3)


def test_cuts_of_the_wall_clock_test(shared_data: Path) -> None:
    ungated, gated = arms(shared_data)
    cut = {task for task, row in gated.items() if row["gate_cut"] == "1"}
    equal = {task for task, row in ungated.items() if float(row["rewards_var"]) == 0}
    assert {float(gated[task]["rewards_mean"]) for task in cut} == {0.0}
    assert (len(cut), len(equal & cut), len(equal)) == (15, 8, 45)
    alike = [
        task for task in gated if all(ungated[task][n] == gated[task][n] for n in ("won", "step_tokens"))
    ]
    assert len(alike) == 26
    recorded = {group["task_id"]: group["label"] != "mixed" for group in groups_at_10(shared_data)}
    assert sum((task in equal) == zero for task, zero in recorded.items()) == 78
    assert sum(zero and task in equal for task, zero in recorded.items()) == 31


def test_a_gate_without_errors(shared_data: Path) -> None:
    (oracle,) = rows(shared_data, "strong_baselines.csv", arm="oracle")
    assert round(float(oracle["rollout_saved_pct"]), 1) == 23.1


def test_inference(shared_data: Path) -> None:
    (row,) = rows(shared_data, "inference_simulation.csv", setting="self-consistency")
    assert round(float(row["total_save_pct"]), 2) == 12.25
    assert round(float(row["answer_preservation_pct"]), 1) == 94.6


def test_history(shared_data: Path) -> None:
    groups = groups_at_10(shared_data)
    won = {row["task_id"]: int(row["won"]) for row in rows(shared_data, "wallclock_ab.csv", label="baseline")}
    extremes = [abs(won[group["task_id"]] / 8 - 0.5) for group in groups]
    assert auroc(extremes, [group["label"] != "mixed" for group in groups]) == pytest.approx(0.805, abs=5e-4)
    both = [group for group in groups if distance(group) < 0.12 and won[group["task_id"]] in (0, 8)]
    assert counted(both) == (15, 15, 0)
    assert upper_bound(0, 61, 0.95) == pytest.approx(0.048, abs=5e-4)


def test_seeds(shared_data: Path) -> None:
    runs = rows(shared_data, "multiseed_summary.csv")
    shown = {
        name: [float(run[name]) for run in runs] for name in ("wall_saved_pct", "delta_pp", "cut_rate_pct")
    }
    assert round(mean(float(run["grad_amp"]) for run in runs), 2) == 1.16
    center, margin = mean(shown["delta_pp"]), 3.182 * stdev(shown["delta_pp"]) / 2  # Student's t, 3 degrees
    assert (round(center - margin, 1), round(center + margin, 1)) == (-2.9, 7.9)
    summary = {name: (round(mean(values), 1), round(stdev(values), 1)) for name, values in shown.items()}
    assert summary == {"wall_saved_pct": (10.7, 2.4), "delta_pp": (2.5, 3.4), "cut_rate_pct": (17.7, 3.0)}


def test_distance_is_at_chance_on_airline_tasks(shared_data: Path) -> None:
    recorded: dict[str, list[Rollout]] = {}
    for line in (shared_data / "tau_airline_gpt4o.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        members = recorded.setdefault(str(row["group_id"]), [])
        steps = tuple(Step(k, canonicalise(action)) for k, action in enumerate(row["actions"], start=1))
        members.append(Rollout(len(members), steps, RolloutStatus.FINISHED, row["reward"]))
    groups = [Group(task, 4, tuple(members), task) for task, members in recorded.items()]
    replays = [replay(group, GateConfig()) for group in groups]
    apart = [checks[0].distance for checks in (replayed.checks for replayed in replays)]
    equal = [bool(group_label(group).zero_variance) for group in groups]
    assert (len(groups), {len(group.rollouts) for group in groups}) == (50, {4})
    assert auroc([-value for value in apart if value is not None], equal) == pytest.approx(0.45, abs=5e-3)
    assert [replayed for replayed in replays if replayed.fires_at(0.12)] == []
