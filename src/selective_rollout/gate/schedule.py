"""How tau may change while training goes on.

A schedule maps progress to a threshold; the gate clips whatever it says at the rule's own tau, which is the
certified one. So a schedule can only tighten a certificate, never stretch it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from selective_rollout.errors import ConfigError
from selective_rollout.gate.audit import Seen

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


class AuditedController:
    """A schedule that steers tau so that the audited false-cut rate comes out at a target.

    After each observed signal-bearing group tau moves by `gain` times the target minus what that group says
    of the rate: 1/audit_rate if it was an audited would-be cut, else 0. This is the update of adaptive
    conformal inference (Gibbs and Candes, NeurIPS 2021): over a long run the rate approaches the target, or
    tau stays at its ceiling, also while the policy drifts. It bounds no single stretch, so it never replaces
    a certificate.

    Args:
        target: the false-cut rate aimed at, strictly between 0 and 1.
        ceiling: the highest tau, which is the certified one, and where to start.
        gain: how far a group moves tau.

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(self, target: float, ceiling: float, gain: float = 0.001) -> None:
        if not 0.0 < target < 1.0:
            raise ConfigError(f"schedule: target must be strictly between 0 and 1, not {target!r}")
        if not gain > 0:
            raise ConfigError(f"schedule: gain must be above 0, not {gain!r}")
        _require_tau(ceiling)
        self.target = target
        self.ceiling = ceiling
        self.tau = ceiling
        self.gain = gain

    def __call__(self, progress: float) -> float:
        """The threshold now, whatever the progress."""
        return self.tau

    def observe(self, seen: Seen, audit_rate: float | None) -> None:
        """Learn from a group that has ended; without audits there is nothing to learn from."""
        if audit_rate is None or seen.cut or seen.zero_variance is not False:
            return
        rate = 1.0 / audit_rate if seen.would_cut else 0.0
        self.tau = min(self.ceiling, max(0.0, self.tau + self.gain * (self.target - rate)))


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
