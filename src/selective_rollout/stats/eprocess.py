"""An alarm that may be looked at after every observation.

Tests "each observation is a hit with probability at most `bound`, whatever came before" by betting: the
e-value is the mean, over a fixed family of higher rates, of their likelihood ratio against `bound`. Under the
hypothesis it is a supermartingale that starts at 1, so it ever reaches 1/level with probability at most level
(Ville's inequality). It depends on the numbers of hits and misses only, which makes its power exact.

References: G. Shafer, "Testing by betting", JRSS A 184 (2021); A. Ramdas et al., "Game-theoretic statistics
and safe anytime-valid inference", Statistical Science 38 (2023).
"""

from __future__ import annotations

import math
from typing import Final

from selective_rollout.stats.binomial import check_fraction

_ODDS_RATIOS: Final = tuple(2 ** (half / 2) for half in range(1, 11))
"""Alternatives as odds relative to the bound's, from 1.4 to 32 times."""


class EProcess:
    """Running evidence against "the rate is at most `bound`".

    Args:
        bound: the rate under the hypothesis, strictly between 0 and 1.

    Raises:
        ConfigError: bound is out of range.
    """

    __slots__ = ("_family", "_peak", "bound", "hits", "misses")

    def __init__(self, bound: float) -> None:
        self.bound = check_fraction("bound", bound)
        self.hits = 0
        self.misses = 0
        self._peak = 0.0
        self._family = _family(bound)

    @property
    def e_value(self) -> float:
        """Evidence now; 1 at the start, infinite if it exceeds what a float holds."""
        return _exp(_log_e(self._family, self.hits, self.misses))

    @property
    def peak(self) -> float:
        """Largest evidence so far, which is what an alarm goes by."""
        return _exp(self._peak)

    @property
    def log_peak(self) -> float:
        """Logarithm of the peak, which does not overflow."""
        return self._peak

    def resume(self, hits: int, misses: int, log_peak: float) -> None:
        """Go on from what an earlier process of the same bound had seen."""
        self.hits, self.misses, self._peak = hits, misses, log_peak

    def update(self, hit: bool) -> float:
        """Add one observation and return the e-value."""
        if hit:
            self.hits += 1
        else:
            self.misses += 1
        log_e = _log_e(self._family, self.hits, self.misses)
        self._peak = max(self._peak, log_e)
        return _exp(log_e)

    def alarm(self, level: float = 0.05) -> bool:
        """Tell whether the evidence ever reached 1/level.

        Raises:
            ConfigError: level is not strictly between 0 and 1.
        """
        return self._peak >= -math.log(check_fraction("level", level))


def power(true_rate: float, n: int, *, bound: float, level: float = 0.05) -> float:
    """Probability that an `EProcess` raises its alarm within n independent observations; exact.

    Args:
        true_rate: probability of a hit per observation.
        n: observations; time and memory grow with n times the number of hits that raise the alarm.
        bound: the rate under the hypothesis.
        level: the alarm is at 1/level.

    Raises:
        ConfigError: bound or level is not strictly between 0 and 1.
    """
    family = _family(check_fraction("bound", bound))
    threshold = -math.log(check_fraction("level", level))
    alive = [1.0]  # alive[h]: probability of h hits so far and no alarm yet
    alarmed = 0.0
    for seen in range(1, n + 1):
        moved = [
            (alive[hits] * (1 - true_rate) if hits < len(alive) else 0.0)
            + (alive[hits - 1] * true_rate if hits else 0.0)
            for hits in range(len(alive) + 1)
        ]
        # More hits are more evidence: those that raise the alarm are at the end of the list.
        while moved and _log_e(family, len(moved) - 1, seen - len(moved) + 1) >= threshold:
            alarmed += moved.pop()
        alive = moved
    return min(1.0, alarmed)


def _family(bound: float) -> tuple[tuple[float, float], ...]:
    """Return, per alternative rate, the logarithm of what a hit and what a miss multiply its wealth by."""
    odds = bound / (1 - bound)
    rates = (ratio * odds / (1 + ratio * odds) for ratio in _ODDS_RATIOS)
    return tuple((math.log(rate / bound), math.log((1 - rate) / (1 - bound))) for rate in rates)


def _log_e(family: tuple[tuple[float, float], ...], hits: int, misses: int) -> float:
    logs = [hits * hit + misses * miss for hit, miss in family]
    largest = max(logs)
    return largest + math.log(math.fsum(math.exp(log - largest) for log in logs) / len(logs))


def _exp(log: float) -> float:
    return math.exp(log) if log < 709 else math.inf
