"""Public recorded rollouts, imported and read back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from selective_rollout.rewards import group_label
from selective_rollout.trace.importers import ColumnMapping, ImportReport, import_rollouts, replacing_recorder
from selective_rollout.trace.reader import RecordedGroup, read_groups


def imported(source: Path, target: Path, *maps: str) -> tuple[ImportReport, list[RecordedGroup]]:
    mapping = ColumnMapping.parse(["group=source+model+group_id", *maps])
    with replacing_recorder(target) as out:
        report = import_rollouts("generic", source, out, mapping=mapping)
    return report, list(read_groups(target))


def test_tau_bench_airline(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "tau_airline_gpt4o.jsonl"
    report, groups = imported(source, tmp_path / "t.jsonl", "metadata=model")
    assert (report.groups, report.rollouts, report.sizes) == (50, 200, {4: 50})
    assert (report.zero_variance, report.signal_bearing, report.unknown) == (24, 26, 0)
    assert (report.problem_count, report.skipped, report.warnings) == (0, 0, [])
    kinds = Counter(group_label(recorded.group).kind for recorded in groups)
    assert kinds == {"mixed": 26, "all_fail": 14, "all_success": 10}
    lengths = [len(rollout.steps) for recorded in groups for rollout in recorded.group.rollouts]
    assert round(sum(lengths) / len(lengths), 1) == 12.3
    assert max(lengths) == 30
    assert all(recorded.begin.metadata["model"] == "gpt-4o" for recorded in groups)
    first = groups[0].group.rollouts[0].actions
    assert first[0].startswith("respond(To assist you")
    assert first[2] == 'get_user_details({"user_id":"mia_li_3668"})'


@pytest.mark.parametrize(
    ("reward", "zero_variance"), [("success", {"wordle": 15, "math_python": 37}), ("reward", {"wordle": 0})]
)
def test_verifiers_by_success_and_by_shaped_reward(
    shared_data: Path, tmp_path: Path, reward: str, zero_variance: dict[str, int]
) -> None:
    source = shared_data / "verifiers_wordle_math_python.jsonl"
    report, groups = imported(source, tmp_path / "t.jsonl", f"reward={reward}", "metadata=source")
    assert (report.groups, report.rollouts, report.sizes, report.unknown) == (75, 225, {3: 75}, 0)
    names = [str(recorded.begin.metadata["source"]).removeprefix("verifiers/") for recorded in groups]
    assert Counter(names) == {"wordle": 30, "math_python": 45}
    found = Counter(
        name
        for name, recorded in zip(names, groups, strict=True)
        if group_label(recorded.group).zero_variance
    )
    assert {name: found[name] for name in zero_variance} == zero_variance
