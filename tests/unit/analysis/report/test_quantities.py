"""Intervals by resampling tasks: they cover, they follow the clusters, and they know when to be silent."""

from __future__ import annotations

import random

import pytest

from selective_rollout.analysis.rates import Rate
from selective_rollout.analysis.report.quantities import FEWEST_TASKS, TaskBootstrap, counted_share, hull
from selective_rollout.stats import Interval


def filled(values: list[tuple[str, float]]) -> TaskBootstrap:
    resampled = TaskBootstrap(["part", "whole"])
    for task, part in values:
        resampled.add(task, {"part": part, "whole": 1})
    return resampled


def share_of(resampled: TaskBootstrap) -> Interval | None:
    return resampled.interval(lambda sums: sums["part"] / sums["whole"])


def test_the_interval_of_a_mean_is_about_two_standard_errors_wide() -> None:
    draws = random.Random(1)
    interval = share_of(filled([(f"task {i}", draws.random()) for i in range(400)]))
    assert interval is not None
    assert interval.low < 0.5 < interval.high
    assert interval.high - interval.low == pytest.approx(4 * 0.2887 / 20, rel=0.15)


def test_groups_of_one_prompt_rise_and_fall_together() -> None:
    alone = share_of(filled([(f"task {i}", i % 2) for i in range(200)]))
    clustered = share_of(filled([(f"task {i // 10}", (i // 10) % 2) for i in range(200)]))
    assert alone is not None
    assert clustered is not None
    widths = [interval.high - interval.low for interval in (alone, clustered)]
    assert widths[1] > 2 * widths[0]


def test_it_is_the_same_in_any_order_and_process() -> None:
    values = [(f"task {i}", i / 30) for i in range(30)]
    one, other = share_of(filled(values)), share_of(filled(values[::-1]))
    assert one is not None
    assert other is not None
    assert one.low == pytest.approx(other.low)


def test_too_few_tasks_or_no_variation_give_no_interval() -> None:
    assert share_of(filled([(f"task {i}", i) for i in range(FEWEST_TASKS - 1)])) is None
    assert share_of(filled([(f"task {i}", 0) for i in range(50)])) is None
    never = filled([(f"task {i}", 1) for i in range(50)])
    assert never.interval(lambda sums: sums["part"] / (sums["whole"] * 0)) is None


def test_a_share_is_exact_and_at_most_widened() -> None:
    exact = Rate(3, 50).interval
    assert exact is not None
    assert counted_share("loss", "lost", Rate(3, 50)).interval == exact
    wider = counted_share("loss", "lost", Rate(3, 50), Interval(0.03, 0.4)).interval
    assert wider == Interval(exact.low, 0.4)
    assert counted_share("loss", "lost", Rate(0, 0)).interval is None


def test_the_hull_covers_both() -> None:
    assert hull(Interval(0, 2), Interval(1, 3)) == Interval(0, 3)


def test_repeats_are_noticed() -> None:
    assert not filled([("a", 1), ("b", 1)]).repeats
    assert filled([("a", 1), ("a", 1)]).repeats
