"""What a sweep says about public recorded rollouts."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from selective_rollout.analysis.ranking import ResampledAreas, rank_correlation
from selective_rollout.analysis.sweep import sweep_traces
from selective_rollout.analysis.sweep_grid import SweepGrid
from selective_rollout.analysis.sweep_result import SweepVerdict
from selective_rollout.gate.history import PromptHistory
from selective_rollout.trace.importers import ColumnMapping, import_rollouts, replacing_recorder


def test_tau_bench_airline_is_no_better_than_chance(shared_data: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    with replacing_recorder(trace) as out:
        mapping = ColumnMapping.parse(["group=source+model+group_id"])
        import_rollouts("generic", shared_data / "tau_airline_gpt4o.jsonl", out, mapping=mapping)
    result = sweep_traces([trace], SweepGrid(), split=None)
    assert result.verdict is SweepVerdict.NO_BETTER_THAN_CHANCE
    found = {(r.measure.name, r.step): r.area for r in result.ranked}
    assert found["distance", 10].value == pytest.approx(0.46, abs=0.01)
    assert found["tool_distance", 10].value == pytest.approx(0.57, abs=0.01)
    interval = found["distance", 10].interval
    assert interval is not None
    assert interval.low < 0.5 < interval.high
    assert result.chance is not None
    assert result.chance.p95 > 0.65
    assert all((rule.accounting.efficiency or 0) < 1.01 for rule in result.front)


@pytest.fixture(scope="module")
def table(shared_data: Path) -> list[dict[str, str]]:
    with (shared_data / "paper" / "hybrid_gate_features.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["K"] == "10"]


def test_the_papers_own_correlations(shared_data: Path, table: list[dict[str, str]]) -> None:
    with (shared_data / "paper" / "correlation_table.csv").open() as file:
        published = {row["metric"]: row for row in csv.DictReader(file) if row["K"] == "10"}
    variance = np.array([float(row["reward_var"]) for row in table])
    bootstrap = ResampledAreas([row["task_id"] for row in table])
    for metric in ("prefix_edit_distance_mean", "unique_prefix_ratio", "obs_unique_ratio"):
        values = np.array([float(row[metric]) for row in table])
        area = bootstrap.area(-values, variance == 0, np.ones(len(values), np.bool_))
        assert area.value == pytest.approx(float(published[metric]["auroc_nonzero_var"]))
        assert rank_correlation(values, variance) == pytest.approx(float(published[metric]["spearman_rho"]))
    interval = bootstrap.area(-values, variance == 0, np.ones(len(values), np.bool_)).interval
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((0.65, 0.85), abs=0.02)


def test_an_earlier_epoch_predicts_better_than_distance(
    shared_data: Path, table: list[dict[str, str]]
) -> None:
    history = PromptHistory()
    with (shared_data / "paper" / "wallclock_ab.csv").open() as file:
        for row in csv.DictReader(file):
            if row["label"] == "baseline":
                won = int(row["won"])
                history.record(row["task_id"], row["task_id"], [1.0] * won + [0.0] * (8 - won))
    chances = [history.p_zero_variance(row["task_id"], 8) for row in table]
    labels = np.array([float(row["reward_var"]) == 0 for row in table])
    bootstrap = ResampledAreas([row["task_id"] for row in table])
    area = bootstrap.area(np.array(chances, dtype=float), labels, np.ones(len(table), np.bool_))
    assert area.value == pytest.approx(0.81, abs=0.01)
