"""Fitting the two-sided score, and judging it out of fold."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.analysis.fit_score import Example, fit_score
from selective_rollout.analysis.logistic import SideWeights, fit_sides
from selective_rollout.errors import ConfigError
from selective_rollout.gate.priors import fit_beta_prior
from selective_rollout.stats import Interval


def penalised_loss(
    rows: Sequence[Sequence[float]],
    classes: Sequence[int],
    strength: float,
    vectors: Sequence[Sequence[float]],
) -> float:
    """The textbook objective on three full weight vectors, each [weights..., intercept]."""
    loss = 0.0
    for row, label in zip(rows, classes, strict=True):
        logits = [sum(w * x for w, x in zip(v, (*row, 1.0), strict=True)) for v in vectors]
        loss += math.log(sum(map(math.exp, logits))) - logits[label]
    return loss + sum(w * w for v in vectors for w in v[:-1]) / (2 * strength)


def full(fail: SideWeights, success: SideWeights) -> list[list[float]]:
    """Three weight vectors with these differences and the least penalty: those that sum to zero."""
    u, v = (*fail.weights, fail.intercept), (*success.weights, success.intercept)
    middle = [(a + b) / 3 for a, b in zip(u, v, strict=True)]
    return [
        [-m for m in middle],
        [a - m for a, m in zip(u, middle, strict=True)],
        [b - m for b, m in zip(v, middle, strict=True)],
    ]


class TestLogistic:
    @settings(max_examples=40)
    @given(st.integers(0, 10_000), st.sampled_from([0.05, 0.5, 5.0]))
    def test_no_other_weights_are_better(self, seed: int, strength: float) -> None:
        rng = random.Random(seed)
        rows = [[rng.gauss(0, 1), rng.gauss(0, 1)] for _ in range(30)]
        classes = [0, 1, 2, *(rng.randrange(3) for _ in range(27))]
        best = full(*fit_sides(rows, classes, strength))
        least = penalised_loss(rows, classes, strength, best)
        for size in (0.001, 0.1, 1.0):
            moved = [[w + rng.gauss(0, size) for w in vector] for vector in best]
            assert least <= penalised_loss(rows, classes, strength, moved) + 1e-7

    def test_a_class_that_never_occurs_is_improbable_and_finite(self) -> None:
        rows = [[float(i % 5)] for i in range(40)]
        fail, success = fit_sides(rows, [i % 2 for i in range(40)], 0.5)
        assert math.isfinite(success.intercept)
        assert success.intercept < -10
        assert abs(fail.intercept) < 1

    def test_data_that_separates_perfectly_stays_finite(self) -> None:
        fail, _ = fit_sides([[-1.0]] * 20 + [[1.0]] * 20, [0] * 20 + [1] * 20, 0.5)
        assert 0 < fail.weights[0] < 10


def two_sided(n: int, seed: int = 0, noise: float = 0.5) -> list[Example]:
    """`futility` finds all-fail groups and `agreement` all-success ones; `junk` is nothing."""
    rng = random.Random(seed)
    made = []
    for i in range(n):
        kind = rng.choice(["all_fail", "all_success", "mixed", "mixed"])
        values: dict[str, float | None] = {
            "futility": (kind == "all_fail") + rng.gauss(0, noise),
            "agreement": (kind == "all_success") + rng.gauss(0, noise),
            "junk": rng.random(),
        }
        made.append(Example(f"t{i}", kind, values))  # type: ignore[arg-type]
    return made


FEATURES = ("futility", "agreement", "junk")


class TestFit:
    def test_both_sides_are_found_and_recommended(self) -> None:
        fit = fit_score(two_sided(400), features=FEATURES)
        assert fit.recommended
        assert fit.auroc is not None
        assert fit.best_single_auroc is not None
        assert fit.auroc > fit.best_single_auroc + 0.1
        fail = dict(zip(fit.score.features, fit.score.fail, strict=True))
        success = dict(zip(fit.score.features, fit.score.success, strict=True))
        assert fail["futility"] > 0.5 > abs(fail["junk"])
        assert success["agreement"] > 0.5 > abs(success["junk"])
        assert fit.warnings == ()

    def test_out_of_fold_noise_is_worth_nothing(self) -> None:
        rng = random.Random(3)
        noise = [
            Example(f"t{i}", rng.choice(["all_fail", "mixed"]), {name: rng.random() for name in FEATURES})  # type: ignore[arg-type]
            for i in range(200)
        ]
        fit = fit_score(noise, features=FEATURES)
        assert fit.auroc is not None
        assert 0.35 < fit.auroc < 0.62
        assert not fit.recommended

    def test_one_signal_that_says_all_is_not_beaten(self) -> None:
        examples = [
            Example(e.task_id, e.outcome, {**e.values, "junk": float(e.zero_variance)})
            for e in two_sided(200)
        ]
        fit = fit_score(examples, features=FEATURES)
        assert fit.best_single == "junk"
        assert fit.best_single_auroc == 1.0
        assert not fit.recommended

    def test_repeated_groups_of_a_task_do_not_leak_between_folds(self) -> None:
        rng = random.Random(0)
        ids = {f"t{i}": rng.random() for i in range(40)}
        examples = [
            Example(task, "mixed" if rng.random() < 0.5 else "all_fail", {"id": value})
            for task, value in ids.items()
        ]
        fit = fit_score([e for e in examples for _ in range(20)], features=("id",))
        assert fit.auroc is not None
        assert fit.auroc < 0.75
        assert not fit.recommended

    def test_features_that_are_mostly_unknown_or_never_vary_are_left_out(self) -> None:
        examples = [
            Example(e.task_id, e.outcome, {**e.values, "junk": None if i % 3 else 0.5, "same": 1.0})
            for i, e in enumerate(two_sided(200))
        ]
        fit = fit_score(examples, features=(*FEATURES, "same", "absent"))
        assert fit.score.features == ("futility", "agreement")
        assert fit.unused == ("junk", "same", "absent")
        assert (fit.examples, fit.left_out) == (200, 0)

    def test_a_feature_known_for_most_groups_only_must_make_up_for_the_others(self) -> None:
        worthless = [
            Example(e.task_id, e.outcome, {**e.values, "junk": e.values["junk"] if i % 4 else None})
            for i, e in enumerate(two_sided(300))
        ]
        fit = fit_score(worthless, features=FEATURES)
        assert fit.score.features == ("futility", "agreement")
        rng = random.Random(0)
        telling = [
            Example(
                e.task_id,
                e.outcome,
                {**e.values, "junk": e.zero_variance + rng.gauss(0, 0.1) if i % 10 else None},
            )
            for i, e in enumerate(two_sided(300, noise=3.0))
        ]
        fit = fit_score(telling, features=FEATURES)
        assert "junk" in fit.score.features
        assert (fit.examples, fit.left_out) == (270, 30)

    def test_the_seed_alone_decides(self) -> None:
        examples = two_sided(150)
        shuffled = examples.copy()
        random.Random(1).shuffle(shuffled)
        assert (
            fit_score(examples, features=FEATURES, seed=1).auroc
            == fit_score(shuffled, features=FEATURES, seed=1).auroc
        )

    def test_what_cannot_be_fitted_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="none of absent varies and is known in 50% of the groups"):
            fit_score(two_sided(50), features=("absent",))
        one_kind = [example for example in two_sided(80) if example.outcome == "mixed"]
        with pytest.raises(ConfigError, match="signal-bearing and zero-variance groups"):
            fit_score(one_kind, features=FEATURES)

    def test_what_is_worse_than_a_coin_is_not_recommended_for_beating_something_worse(self) -> None:
        fit = fit_score(two_sided(150), features=FEATURES)
        assert fit.recommended
        assert not replace(fit, auroc=0.375, best_single_auroc=0.09, gain=Interval(0.1, 0.4)).recommended

    def test_little_data_is_pointed_out(self) -> None:
        assert "plan 300 labelled groups" in fit_score(two_sided(120), features=FEATURES).warnings[0]


@pytest.mark.parametrize(("step", "plain", "with_history"), [(10, 0.79, 0.87), (15, 0.79, 0.87)])
def test_on_the_published_features_the_score_beats_the_distance(
    shared_data: Path, step: int, plain: float, with_history: float
) -> None:
    with (shared_data / "paper" / "wallclock_ab.csv").open() as file:
        wins = {row["task_id"]: int(row["won"]) for row in csv.DictReader(file) if row["label"] == "baseline"}
    prior = fit_beta_prior([(8, won) for won in wins.values()])
    columns = ("prefix_edit_distance_mean", "mean_repeat_K", "obs_unique_ratio", "termination_fraction")
    outcomes = {"mixed": "mixed", "all_fail": "all_fail", "all_succeed": "all_success"}
    examples = []
    with (shared_data / "paper" / "hybrid_gate_features.csv").open() as file:
        for row in csv.DictReader(file):
            if int(row["K"]) == step:
                values: dict[str, float | None] = {name: float(row[name]) for name in columns}
                values["history"] = prior.p_zero_variance(8, 8, wins[row["task_id"]])
                examples.append(Example(row["task_id"], outcomes[row["label"]], values))  # type: ignore[arg-type]
    for features, least in ((columns, plain), ((*columns, "history"), with_history)):
        fit = fit_score(examples, features=features)
        assert fit.auroc is not None
        assert fit.auroc > least
        assert fit.recommended
