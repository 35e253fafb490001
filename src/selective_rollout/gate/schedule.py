"""How tau may change while training goes on.

A schedule maps progress to a threshold; the gate clips whatever it says at the rule's own tau, which is the
certified one. So a schedule can only tighten a certificate, never stretch it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from selective_rollout.errors import ConfigError

Schedule: TypeAlias = Callable[[float], float]
"""Maps progress in [0, 1] (share of the planned training done) to tau."""


def constant(tau: float) -> Schedule:
    """The same threshold throughout."""
    _require_tau(tau)
    return lambda progress: tau


def linear(start: float, end: float) -> Schedule:
    """Anneal from `start` to `end`, linearly in progress; progress outside [0, 1] is clamped."""
    _require_tau(start)
    _require_tau(end)
    return lambda progress: start + (end - start) * min(max(progress, 0.0), 1.0)


def tau_at(schedule: Schedule, progress: float, ceiling: float) -> float:
    """The threshold at some progress, clipped at the certified ceiling.

    Raises:
        ConfigError: the schedule returned something that is no tau.
    """
    tau = schedule(progress)
    _require_tau(tau)
    return min(tau, ceiling)


def _require_tau(tau: float) -> None:
    if not 0.0 <= tau <= 1.0:
        raise ConfigError(f"schedule: tau must be a number in [0, 1], not {tau!r}")
