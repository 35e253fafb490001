"""Sweeps against their readable twins: replays of one gate, areas of one ranking, resamples drawn by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.actions import ActionOptions, canonicalise
from selective_rollout.analysis.accounting import Accounting
from selective_rollout.analysis.open_checks import open_positions
from selective_rollout.analysis.ranking import ResampledAreas, best_by_chance, rank_correlation
from selective_rollout.analysis.replay import replay
from selective_rollout.analysis.resampling import task_weights
from selective_rollout.analysis.sweep_grid import SweepGrid
from selective_rollout.analysis.sweep_result import pareto
from selective_rollout.analysis.sweep_table import SweepCollector, with_cuts
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import Reason
from selective_rollout.gate.signals import GroupView, signal
from selective_rollout.stats import auroc, spearman
from selective_rollout.types import Group, Rollout, RolloutStatus, SamplingInfo, Step, Usage

STATUSES = [
    *[RolloutStatus.FINISHED] * 3,
    RolloutStatus.TRUNCATED,
    RolloutStatus.FAILED,
    RolloutStatus.RUNNING,
]
ACTIONS = ["", "go east", "go west", "look()", 'take({"id": 1})']
USAGES = [None, Usage(completion=3), Usage()]


@st.composite
def rollouts(draw: st.DrawFn, index: int) -> Rollout:
    actions = draw(st.lists(st.sampled_from(ACTIONS), max_size=7))
    return Rollout(
        index,
        tuple(Step(k, a, usage=draw(st.sampled_from(USAGES))) for k, a in enumerate(actions, start=1)),
        draw(st.sampled_from(STATUSES)),
        draw(st.sampled_from([0.0, 1.0, 1.0, None])),
        late_reward=draw(st.booleans()),
    )


@st.composite
def groups(draw: st.DrawFn) -> list[Group]:
    made = []
    for number in range(draw(st.integers(1, 5))):
        size = draw(st.integers(1, 4))
        recorded = draw(st.lists(st.integers(0, size - 1), unique=True, max_size=size))
        sampling = draw(st.sampled_from([None, None, (SamplingInfo(temperature=0.0),) * size]))
        members = tuple(draw(rollouts(index)) for index in sorted(recorded))
        made.append(Group(f"g{number}", size, members, f"t{number % 3}", sampling=sampling))
    return made


@settings(max_examples=60)
@given(groups(), st.sampled_from(["end", "none"]))
def test_a_gate_may_fire_where_its_replay_says(groups: list[Group], padding: str) -> None:
    rule = GateConfig.from_dict({"start_step": 1, "check_every": 1, "padding": padding})
    for group in groups:
        fires = {check.step for check in replay(group, rule).checks if check.reason is Reason.FIRED}
        opened = open_positions(group, rule)
        assert {k for k, is_open in enumerate(opened, start=1) if is_open} == fires


def named(group: Group) -> Group:
    options = ActionOptions(name_only=True)
    members = [
        replace(r, steps=tuple(replace(step, action=canonicalise(step.action, options)) for step in r.steps))
        for r in group.rollouts
    ]
    return replace(group, rollouts=tuple(members))


@settings(max_examples=40)
@given(groups(), st.integers(1, 6), st.sampled_from([None, 1, 2]))
def test_a_sweep_is_a_replay_of_every_rule(groups: list[Group], start: int, every: int | None) -> None:
    names = ("distance", "distance_unpadded", "tool_distance", "char_distance")
    grid = SweepGrid(
        taus=(0.05, 0.25, 0.5, 1.0), start_steps=(start, 3), check_everys=(every,), signals=names
    )
    collector = SweepCollector(grid)
    for group in groups:
        collector.add(group)
    table = collector.table()
    for (name, first, again), sums in table.cuts.items():
        measure = next(measure for measure in table.measures if measure.name == name)
        for i, tau in enumerate(grid.taus):
            rule = measure.gate(tau, first, again)
            assert rule is not None
            account = Accounting(first)
            for group in groups:
                seen = named(group) if name == "tool_distance" else group
                account.add(group, replay(seen, rule).fires_at(tau))
            assert with_cuts(table.accounting(first), sums[i]).to_dict() == account.to_dict()


@settings(max_examples=30)
@given(groups(), st.integers(1, 9))
def test_a_sweep_reads_the_signals_that_a_gate_reads(groups: list[Group], step: int) -> None:
    grid = SweepGrid(start_steps=(step,), check_everys=(None,))
    collector = SweepCollector(grid)
    for group in groups:
        collector.add(group)
    for name, values in collector.table().compared.items():
        wanted = [signal(name).value(GroupView.of(group), step) for group in groups]
        if signal(name).direction == 1:
            wanted = [None if value is None else 1 - value for value in wanted]
        assert [None if math.isnan(value) else value for value in values[:, 0].tolist()] == wanted


ROWS = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from([0.0, 0.1, 0.5, 0.7, math.nan]), st.booleans()),
    min_size=1,
    max_size=25,
)


def columns(rows: list[tuple[int, float, bool]]) -> tuple[list[str], np.ndarray, np.ndarray]:
    tasks, scores, labels = zip(*rows, strict=True)
    return [f"t{task}" for task in tasks], np.array(scores), np.array(labels)


@settings(max_examples=60)
@given(ROWS)
def test_areas_are_those_of_one_ranking(rows: list[tuple[int, float, bool]]) -> None:
    tasks, scores, labels = columns(rows)
    known = ~np.isnan(scores)
    area = ResampledAreas(tasks, resamples=20).area(scores, labels, np.ones(len(rows), np.bool_))
    assert area.value == auroc(scores[known].tolist(), labels[known].tolist())
    assert (area.positives, area.negatives) == (int(labels[known].sum()), int((~labels[known]).sum()))


@settings(max_examples=60)
@given(ROWS)
def test_the_interval_comes_from_resampled_tasks(rows: list[tuple[int, float, bool]]) -> None:
    tasks, scores, labels = columns(rows)
    bootstrap = ResampledAreas(tasks, resamples=30, seed=3)
    weights = [task_weights(task, 30, seed=3).tolist() for task in tasks]
    drawn = []
    for draw in range(30):
        sample = [i for i in range(len(tasks)) for _ in range(weights[i][draw])]
        known = [i for i in sample if not math.isnan(scores[i])]
        drawn.append(auroc(scores[known].tolist(), labels[known].tolist()))
    areas = [area for area in drawn if area is not None]
    interval = bootstrap.area(scores, labels, np.ones(len(rows), np.bool_)).interval
    if 2 * len(areas) < 30 or auroc(scores[~np.isnan(scores)], labels[~np.isnan(scores)]) is None:
        assert interval is None
    else:
        assert interval is not None
        low, high = np.quantile(areas, [0.025, 0.975])
        assert (interval.low, interval.high) == pytest.approx((low, high))


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 2.0, math.nan]), st.integers(0, 3)), max_size=12))
def test_rank_correlations_are_spearmans(rows: list[tuple[float, int]]) -> None:
    xs, ys = [x for x, _ in rows], [float(y) for _, y in rows]
    known = [(x, y) for x, y in zip(xs, ys, strict=True) if not math.isnan(x)]
    wanted = spearman([x for x, _ in known], [y for _, y in known])
    assert rank_correlation(np.array(xs), np.array(ys)) == (None if wanted is None else pytest.approx(wanted))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.booleans()), min_size=4, max_size=12))
def test_chance_is_the_best_area_over_shuffled_labels(rows: list[tuple[float, float, bool]]) -> None:
    scores = np.array([[a, b] for a, b, _ in rows])
    labels = np.array([label for _, _, label in rows])
    tasks = [f"t{i:02}" for i in range(len(rows))]
    chance = best_by_chance(scores, labels, tasks, permutations=40, seed=1)
    if labels.all() or not labels.any():
        assert chance is None
        return
    draw = np.random.default_rng(1)
    best = []
    for _ in range(40):
        shuffled = labels[draw.permutation(len(rows))].tolist()
        best.append(max(auroc(column.tolist(), shuffled) or 0.0 for column in scores.T))
    assert chance is not None
    assert (chance.median, chance.p95) == pytest.approx(tuple(np.quantile(best, [0.5, 0.95])))
    observed = max(auroc(column.tolist(), labels.tolist()) or 0.0 for column in scores.T)
    assert chance.p_value == (sum(area >= observed for area in best) + 1) / 41


@given(st.lists(st.none() | st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=10))
def test_nothing_on_the_front_is_dominated(points: list[tuple[int, int] | None]) -> None:
    front = pareto(points)
    for i, point in enumerate(points):
        others = [p for j, p in enumerate(points) if p is not None and j != i]
        if point is None:
            assert not front[i]
        elif front[i]:
            assert not any(a >= point[0] and b >= point[1] and (a, b) != point for a, b in others)
        else:
            assert any(a >= point[0] and b >= point[1] for a, b in others)
