"""The two-sided score: the chance that a group carries a signal, from a few of its facts at one position.

Groups end with equal rewards for two opposite reasons: all succeed, or all fail. They leave opposite traces,
so one linear score per side is fitted against the signal-bearing groups (a logistic model of three classes),
and what the gate compares with its threshold is the probability that neither happens. Weights and signs
belong to the workload they were fitted on (`analysis.fit_score`); they do not transfer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from selective_rollout.errors import ConfigError

HISTORY_FEATURE: Final = "history_p_zero_variance"
"""The feature that is known before the first step, if the prompt has a history."""

_VECTORS: Final = ("centre", "scale", "fail", "success")


@dataclass(frozen=True, slots=True)
class TwoSidedScore:
    """Weights of a fitted score.

    With z = (value - centre) / scale, the log odds of "all fail" against "signal-bearing" are
    `fail_intercept + sum(fail * z)`, and those of "all succeed" alike.

    Raises:
        ConfigError: lengths that differ, a repeated feature, a number that is not finite, or a scale of 0.
    """

    features: tuple[str, ...]
    """Names of signals (`gate.signals.SIGNALS`), one weight of each side per feature."""
    centre: tuple[float, ...]
    """Mean of each feature in the data of the fit."""
    scale: tuple[float, ...]
    """Standard deviation of each feature in the data of the fit."""
    fail: tuple[float, ...]
    success: tuple[float, ...]
    fail_intercept: float
    success_intercept: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))
        if not self.features or len(set(self.features)) < len(self.features):
            raise ConfigError(f"score.features must name each signal once, not {list(self.features)!r}")
        for name in _VECTORS:
            object.__setattr__(self, name, self._vector(name))
        for name in ("fail_intercept", "success_intercept"):
            object.__setattr__(self, name, _finite(name, getattr(self, name)))
        if min(self.scale) <= 0:
            raise ConfigError(f"score.scale must be above 0, not {min(self.scale)!r}")

    @property
    def reads_history(self) -> bool:
        """Whether the prompt's earlier rewards are a feature."""
        return HISTORY_FEATURE in self.features

    def p_signal(self, values: Sequence[float | None]) -> float | None:
        """P(signal-bearing) = 1 - P(all fail) - P(all succeed); None if a feature is unknown.

        Args:
            values: `values[i]` of `features[i]` at the position the score was fitted for.
        """
        z = [
            (value - centre) / scale
            for value, centre, scale in zip(values, self.centre, self.scale, strict=True)
            if value is not None
        ]
        if len(z) < len(self.features):
            return None
        fail = self.fail_intercept + math.fsum(map(float.__mul__, self.fail, z))
        success = self.success_intercept + math.fsum(map(float.__mul__, self.success, z))
        largest = max(0.0, fail, success)
        mixed = math.exp(-largest)
        return mixed / (mixed + math.exp(fail - largest) + math.exp(success - largest))

    def to_dict(self) -> dict[str, Any]:
        """Plain data in field order; the inverse of `from_dict`."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "score") -> TwoSidedScore:
        """Read weights from plain data, such as a TOML table.

        Raises:
            ConfigError: a key is missing or unknown, or a value is no weight.
        """
        known = [field.name for field in fields(cls)]
        for problem, names in (
            ("unknown key", [name for name in values if name not in known]),
            ("missing key", [name for name in known if name not in values]),
        ):
            if names:
                raise ConfigError(f"{where}: {problem} {', '.join(names)}; the keys are {', '.join(known)}")
        features = values["features"]
        if not isinstance(features, (list, tuple)) or not all(isinstance(name, str) for name in features):
            raise ConfigError(f"{where}: features must be a list of names, not {features!r}")
        return cls(**values)

    def _vector(self, name: str) -> tuple[float, ...]:
        numbers = getattr(self, name)
        if not isinstance(numbers, (list, tuple)) or len(numbers) != len(self.features):
            raise ConfigError(
                f"score.{name} must hold {len(self.features)} numbers, one per feature, not {numbers!r}"
            )
        return tuple(_finite(name, number) for number in numbers)


def _finite(name: str, number: object) -> float:
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
        raise ConfigError(f"score.{name} must be finite, not {number!r}")
    return float(number)
