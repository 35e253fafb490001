"""Ridge logistic regression with three classes, by Newton's method on the standard library.

The fit is the one of a softmax over "signal-bearing", "all fail" and "all succeed" with the penalty
|w|^2 / (2 C) on all three weight vectors (intercepts free), written in differences against the first class,
since only those matter. It is meant for a handful of features and some thousands of groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import mul
from typing import Final

_MOST_STEPS: Final = 50
_INTERCEPT_RIDGE: Final = 1e-6
"""Keeps the intercept of a class finite that the data does not hold."""

Matrix = list[list[float]]


@dataclass(frozen=True, slots=True)
class SideWeights:
    """Log odds of one side against "signal-bearing": `intercept + sum(weights * x)`."""

    weights: tuple[float, ...]
    intercept: float


def fit_sides(
    rows: Sequence[Sequence[float]], classes: Sequence[int], strength: float
) -> tuple[SideWeights, SideWeights]:
    """Fit the weights of "all fail" (class 1) and "all succeed" (class 2) against class 0.

    Args:
        rows: `rows[i]`, standardised features of one group.
        classes: `classes[i]`, 0, 1 or 2.
        strength: C; smaller is stronger shrinkage.
    """
    problem = _Problem(rows, classes, strength)
    theta = [0.0] * (2 * problem.width)
    value = problem.objective(theta)
    for _ in range(_MOST_STEPS):
        gradient, hessian = problem.derivatives(theta)
        step = _solve(hessian, gradient)
        decrement = sum(map(mul, gradient, step))
        size = 1.0
        while size > 1e-6:
            moved = [a - size * b for a, b in zip(theta, step, strict=True)]
            reached = problem.objective(moved)
            if reached <= value - 1e-4 * size * decrement:
                break
            size /= 2
        else:
            break
        theta, value = moved, reached
        if decrement < 1e-12:
            break
    fail, success = theta[: problem.width], theta[problem.width :]
    return SideWeights(tuple(fail[:-1]), fail[-1]), SideWeights(tuple(success[:-1]), success[-1])


class _Problem:
    """Objective and derivatives; parameters are [fail weights, intercept, success weights, intercept]."""

    def __init__(self, rows: Sequence[Sequence[float]], classes: Sequence[int], strength: float) -> None:
        self._columns = [list(column) for column in zip(*rows, strict=True)] + [[1.0] * len(rows)]
        self.width = len(self._columns)
        self._products = {
            (i, j): list(map(mul, self._columns[i], self._columns[j]))
            for i in range(self.width)
            for j in range(i, self.width)
        }
        self._is = [[float(label == side) for label in classes] for side in (1, 2)]
        self._ridge = [1 / strength] * (self.width - 1) + [_INTERCEPT_RIDGE]

    def objective(self, theta: Sequence[float]) -> float:
        """Negative log likelihood plus penalty."""
        fail, success = self._logits(theta)
        loss = 0.0
        for a, b, is_a, is_b in zip(fail, success, *self._is, strict=True):
            top = max(0.0, a, b)
            normaliser = top + math.log(math.exp(-top) + math.exp(a - top) + math.exp(b - top))
            loss += normaliser - is_a * a - is_b * b
        u, v = theta[: self.width], theta[self.width :]
        # The least |w|^2 over three vectors with differences u and v.
        return loss + sum(r * (p * p + q * q - p * q) / 3 for r, p, q in zip(self._ridge, u, v, strict=True))

    def derivatives(self, theta: Sequence[float]) -> tuple[list[float], Matrix]:
        """Gradient and Hessian."""
        p_fail, p_success = self._probabilities(theta)
        u, v = theta[: self.width], theta[self.width :]
        gradient = [
            *self._side_gradient(p_fail, self._is[0], u, v),
            *self._side_gradient(p_success, self._is[1], v, u),
        ]
        blocks = {
            (0, 0): [p * (1 - p) for p in p_fail],
            (0, 1): [-p * q for p, q in zip(p_fail, p_success, strict=True)],
            (1, 1): [q * (1 - q) for q in p_success],
        }
        hessian = [[0.0] * (2 * self.width) for _ in range(2 * self.width)]
        for (a, b), weights in blocks.items():
            for (i, j), product in self._products.items():
                entry = sum(map(mul, weights, product))
                if i == j:
                    entry += self._ridge[i] * (2 if a == b else -1) / 3
                for row, column in ((a, i), (b, j)), ((a, j), (b, i)):
                    x, y = row[0] * self.width + row[1], column[0] * self.width + column[1]
                    hessian[x][y] = hessian[y][x] = entry
        return gradient, hessian

    def _side_gradient(
        self, p: list[float], label: list[float], own: Sequence[float], other: Sequence[float]
    ) -> list[float]:
        errors = [a - b for a, b in zip(p, label, strict=True)]
        return [
            sum(map(mul, errors, column)) + ridge * (2 * mine - theirs) / 3
            for column, ridge, mine, theirs in zip(self._columns, self._ridge, own, other, strict=True)
        ]

    def _logits(self, theta: Sequence[float]) -> tuple[list[float], list[float]]:
        sides = []
        for weights in (theta[: self.width], theta[self.width :]):
            parts = [[w * x for x in column] for w, column in zip(weights, self._columns, strict=True)]
            sides.append([sum(row) for row in zip(*parts, strict=True)])
        return sides[0], sides[1]

    def _probabilities(self, theta: Sequence[float]) -> tuple[list[float], list[float]]:
        p_fail, p_success = [], []
        for a, b in zip(*self._logits(theta), strict=True):
            top = max(0.0, a, b)
            e_a, e_b = math.exp(a - top), math.exp(b - top)
            total = math.exp(-top) + e_a + e_b
            p_fail.append(e_a / total)
            p_success.append(e_b / total)
        return p_fail, p_success


def _solve(matrix: Matrix, right: Sequence[float]) -> list[float]:
    """Solve a positive definite system by Gaussian elimination with pivoting."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for column in range(size):
        pivot = max(range(column, size), key=lambda i: abs(rows[i][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for i in chain(range(column), range(column + 1, size)):
            factor = rows[i][column] / rows[column][column]
            if factor:
                rows[i] = [x - factor * y for x, y in zip(rows[i], rows[column], strict=True)]
    return [row[size] / row[column] for column, row in enumerate(rows)]
