"""Exact binomial and hypergeometric tails, and the intervals that follow from them.

Tails are summed term by term from the largest one down, so that also tiny probabilities keep their relative
precision; for n up to 100,000 they agree with SciPy to about nine digits.

References: C. Clopper, E. Pearson, "The use of confidence or fiducial limits illustrated in the case of the
binomial", Biometrika 26 (1934).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from selective_rollout.errors import ConfigError

_NEGLIGIBLE = 1e-18


@dataclass(frozen=True, slots=True)
class Interval:
    """A closed interval; `low` and `high` are in the unit of the estimate."""

    low: float
    high: float


def binom_cdf(k: int, n: int, p: float) -> float:
    """P(X <= k) for X ~ Binomial(n, p).

    Raises:
        ConfigError: n is negative, or p is not a probability.
    """
    if n < 0:
        raise ConfigError(f"number of trials must be 0 or more, not {n}")
    if not 0 <= p <= 1:
        raise ConfigError(f"probability must be between 0 and 1, not {p}")
    if k < 0:
        return 0.0
    if k >= n or p == 0:
        return 1.0
    if p == 1:
        return 0.0
    if k <= n * p:
        return _lower_tail(k, n, p)
    return 1.0 - _lower_tail(n - k - 1, n, 1 - p, log_q=math.log(p))


def clopper_pearson(k: int, n: int, confidence: float = 0.95) -> Interval:
    """Exact two-sided interval for a rate of which k of n were seen; (0, 1) if n is 0.

    Raises:
        ConfigError: k is not in 0..n, or confidence is not strictly between 0 and 1.
    """
    one_sided = (1 + check_fraction("confidence", confidence)) / 2
    return Interval(1 - upper_bound(n - k, n, one_sided), upper_bound(k, n, one_sided))


def upper_bound(k: int, n: int, confidence: float = 0.95) -> float:
    """Exact one-sided upper bound for a rate of which k of n were seen; 1 if n is 0.

    Raises:
        ConfigError: k is not in 0..n, or confidence is not strictly between 0 and 1.
    """
    check_fraction("confidence", confidence)
    if not 0 <= k <= n:
        raise ConfigError(f"a count of {k} does not fit into {n} trials")
    if k == n:
        return 1.0
    return _falling_root(lambda p: binom_cdf(k, n, p) - (1 - confidence), 0.0, 1.0)


def hypergeom_tail(seen: int, drawn: int, marked: int, total: int) -> float:
    """P(X >= seen) for X the marked items among `drawn` ones out of `total`, of which `marked` are marked.

    Raises:
        ConfigError: the counts do not fit into each other.
    """
    if not (0 <= drawn <= total and 0 <= marked <= total and seen <= drawn):
        raise ConfigError(f"counts do not fit: {seen} of {drawn} drawn, {marked} marked, {total} in all")
    first, last = max(seen, drawn + marked - total, 0), min(drawn, marked)
    ways = _log_comb(total, drawn)
    terms = (
        math.exp(_log_comb(marked, x) + _log_comb(total - marked, drawn - x) - ways)
        for x in range(first, last + 1)
    )
    return min(1.0, math.fsum(terms))


def check_fraction(name: str, value: float) -> float:
    """Return a value strictly between 0 and 1.

    Raises:
        ConfigError: it is not.
    """
    if not 0 < value < 1:
        raise ConfigError(f"{name} must be strictly between 0 and 1, not {value}")
    return value


def _lower_tail(k: int, n: int, p: float, *, log_q: float | None = None) -> float:
    """Sum P(X = k), P(X = k - 1), ... for k not above the mean, where the terms fall."""
    log_q = math.log1p(-p) if log_q is None else log_q
    term = math.exp(_log_comb(n, k) + k * math.log(p) + (n - k) * log_q)
    odds = math.exp(log_q) / p
    total = term
    for x in range(k, 0, -1):
        term *= x / (n - x + 1) * odds
        total += term
        if term < total * _NEGLIGIBLE:
            break
    return min(1.0, total)


def _log_comb(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _falling_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a falling function crosses 0, to the last bits of a float."""
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return high
        if function(middle) > 0:
            low = middle
        else:
            high = middle
