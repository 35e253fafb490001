"""Two public libraries agree: MAPIE on the certified thresholds, scikit-learn on the weights of the score."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selective_rollout.analysis.certify import Question, largest_tau
from selective_rollout.analysis.logistic import fit_sides
from selective_rollout.analysis.sample import Unit
from selective_rollout.stats import decimal_grid

pytestmark = pytest.mark.stats


def mapie_tau(
    distances: np.ndarray[Any, Any], zero_variance: np.ndarray[Any, Any], question: Question
) -> float | None:
    """The largest tau of MAPIE's fixed sequence, which predicts zero variance from a score threshold up."""
    control = pytest.importorskip("mapie.risk_control", exc_type=ImportError)
    taus = decimal_grid(question.grid)
    between = 1e-7  # a score of exactly 1 - tau must not be cut

    def scores(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        column = 1 - x[:, 0]
        return np.stack([1 - column, column], axis=1)

    controller = control.BinaryClassificationController(
        predict_function=scores,
        risk="fpr",
        target_level=question.alpha,
        confidence_level=1 - question.delta,
        list_predict_params=np.array([1 - tau + between for tau in taus]),
        fwer_method="fixed_sequence",
    )
    controller.calibrate(distances.reshape(-1, 1), zero_variance.astype(int))
    valid = [float(value) for value in np.ravel(controller.valid_predict_params)]
    return round(1 - min(valid), 6) if valid else None


def compare(distances: list[float], zero_variance: list[bool], question: Question) -> None:
    units = [
        Unit(str(i), z, ((d, 1),), 1) for i, (d, z) in enumerate(zip(distances, zero_variance, strict=True))
    ]
    theirs = mapie_tau(np.array(distances), np.array(zero_variance), question)
    assert largest_tau(units, question) == theirs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("step", [10, 15, 20])
@pytest.mark.parametrize("alpha", [0.05, 0.10, 0.15, 0.20])
def test_on_the_published_distances(shared_data: Path, step: int, alpha: float) -> None:
    with (shared_data / "paper" / "hybrid_gate_features.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if int(row["K"]) == step]
    distances = [float(row["prefix_edit_distance_mean"]) for row in rows]
    compare(distances, [row["label"] != "mixed" for row in rows], Question(alpha, 0.05, "0.005:0.300:0.005"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(12))
def test_on_drawn_distances(seed: int) -> None:
    rng = random.Random(seed)
    labels = [rng.random() < 0.5 for _ in range(rng.choice([40, 90, 200]))]
    distances = [round(rng.betavariate(1, 3) if z else rng.betavariate(3, 3), 2) for z in labels]
    compare(distances, labels, Question(rng.choice([0.05, 0.1, 0.2]), 0.1, "0.02:0.40:0.02"))


def test_scikit_learn_finds_the_same_weights() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    rng = random.Random(0)
    rows = [[rng.gauss(0, 1) for _ in range(4)] for _ in range(400)]
    classes = [rng.choices(range(3), [1.0, np.exp(row[0]), np.exp(row[1] - row[0])])[0] for row in rows]
    model = linear.LogisticRegression(C=0.5, tol=1e-10, max_iter=10_000).fit(rows, classes)
    for side, label in zip(fit_sides(rows, classes, 0.5), (1, 2), strict=True):
        np.testing.assert_allclose(side.weights, model.coef_[label] - model.coef_[0], atol=1e-5)
        np.testing.assert_allclose(side.intercept, model.intercept_[label] - model.intercept_[0], atol=1e-5)
