"""The tests behind a certificate: how far a threshold may go, how much data that takes, what it is good for.

The loss is binary (a signal-bearing group was cut or not) and the unit an independent task, so the p-value of
"the false-cut rate exceeds alpha" is an exact binomial tail. Thresholds are tested from the strictest up and
the walk ends at the first failure, which needs no correction for the number of tests.

References: A. Angelopoulos et al., "Learn then Test", arXiv:2110.01052 (fixed-sequence testing);
S. Bates et al., "Distribution-free, risk-controlling prediction sets", arXiv:2101.02703.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from statistics import NormalDist
from typing import Final

from selective_rollout.errors import ConfigError
from selective_rollout.stats.binomial import binom_cdf, check_fraction, hypergeom_tail

_EXACT_UP_TO: Final = 100_000
_MOST_GROUPS: Final = 10**9
_LONGEST_GRID: Final = 100_000
_LARGEST_POINT: Final = 1_000_000


def needed_zero_false(alpha: float, delta: float) -> int:
    """Smallest number of signal-bearing groups that certifies alpha if none of them is cut.

    Args:
        alpha: bound on P(cut | signal-bearing).
        delta: allowed probability of a wrong certificate, 1 - confidence.

    Raises:
        ConfigError: alpha or delta is not strictly between 0 and 1.
    """
    check_fraction("alpha", alpha)
    check_fraction("delta", delta)
    needed = max(1, math.floor(math.log(delta) / math.log1p(-alpha)) - 1)
    while binom_cdf(0, needed, alpha) > delta:
        needed += 1
    return needed


def needed_at_rate(rate: float | Fraction, alpha: float, delta: float) -> int | None:
    """Smallest number of signal-bearing groups that certifies alpha if this share of them is cut.

    Args:
        rate: share of signal-bearing groups cut; the count is rounded up, so ceil(rate * n) of n. Counts over
            counts should come as a Fraction: as a float they may be rounded up to one more.
        alpha: bound on P(cut | signal-bearing).
        delta: allowed probability of a wrong certificate.

    Returns:
        The number, None if no number suffices (rate >= alpha). Where it would hold more than 100,000 false
        cuts it is the normal approximation.

    Raises:
        ConfigError: alpha or delta is not strictly between 0 and 1, or rate is negative.
    """
    check_fraction("alpha", alpha)
    check_fraction("delta", delta)
    if not rate >= 0:
        raise ConfigError(f"rate must be 0 or more, not {rate}")
    if rate >= alpha:
        return None
    if rate == 0:
        return needed_zero_false(alpha, delta)
    approximate = (NormalDist().inv_cdf(1 - delta) / (alpha - rate)) ** 2 * alpha * (1 - alpha)
    expected = approximate * rate
    if expected > _EXACT_UP_TO:
        return math.ceil(approximate)
    share = Fraction(str(rate))
    # With a fixed count, more groups are better: the first count that can pass holds the smallest number. The
    # approximation is off by about one false cut more or less, which is 1 / (alpha - rate) groups.
    count = max(1, math.floor(expected - 5 * rate / (alpha - rate) - 10))
    while binom_cdf(count, math.floor(count / share), alpha) > delta:
        count += 1
    return _first_enough(count, alpha, delta, math.floor((count - 1) / share) + 1, math.floor(count / share))


def needed_with(false_cuts: int, alpha: float, delta: float) -> int:
    """Smallest number of signal-bearing groups that certifies alpha if so many of them are cut.

    Args:
        false_cuts: signal-bearing groups cut, however many groups there are.
        alpha: bound on P(cut | signal-bearing).
        delta: allowed probability of a wrong certificate.
    """
    return _first_enough(false_cuts, alpha, delta, 0, _MOST_GROUPS)


def _first_enough(false_cuts: int, alpha: float, delta: float, low: int, high: int) -> int:
    """The first number of groups in low..high that is enough; high if no smaller one is."""
    return bisect_left(
        range(high), True, low, high, key=lambda groups: binom_cdf(false_cuts, groups, alpha) <= delta
    )


def fixed_sequence(false_cuts: Sequence[int], n_signal: int, alpha: float, delta: float) -> int:
    """Walk a grid of thresholds upward and return the index of the last one that is certified, or -1.

    Args:
        false_cuts: `false_cuts[i]`, signal-bearing groups cut at grid point i; the grid was declared before
            looking and is ordered from the strictest threshold up.
        n_signal: signal-bearing groups, one per independent task.
        alpha: bound on P(cut | signal-bearing).
        delta: allowed probability of a wrong certificate.

    Raises:
        ConfigError: alpha or delta is not strictly between 0 and 1, or a count exceeds `n_signal`.
    """
    check_fraction("alpha", alpha)
    check_fraction("delta", delta)
    for index, count in enumerate(false_cuts):
        if not 0 <= count <= n_signal:
            raise ConfigError(f"grid point {index} counts {count} false cuts among {n_signal} groups")
        if binom_cdf(count, n_signal, alpha) > delta:
            return index - 1
    return len(false_cuts) - 1


def beats_base_rate(right: int, cuts: int, base_right: int, n: int) -> float:
    """Return the p-value of "these cuts are right no more often than groups drawn at random".

    One-sided exact (hypergeometric) test of the cut groups against all of them; 1 if nothing was cut.

    Args:
        right: cut groups that were zero-variance.
        cuts: cut groups.
        base_right: zero-variance groups among all.
        n: all groups.

    Raises:
        ConfigError: the counts do not fit into each other.
    """
    if not 0 <= right <= base_right:
        raise ConfigError(f"{right} right cuts do not fit into {base_right} zero-variance groups")
    return hypergeom_tail(right, cuts, base_right, n) if cuts else 1.0


def decimal_grid(text: str) -> list[float]:
    """Read "start:stop:step" or a comma-separated list as an ascending grid without duplicates.

    Points are computed as decimals and each is the float nearest to its decimal, so that "0:0.3:0.1" holds
    0.3 itself; stop is included if the steps reach it.

    Raises:
        ConfigError: the text is neither, or a number is negative or not finite.
    """
    parts = [part for part in text.split(",") if part.strip()]
    points = {point for part in parts for point in _grid_part(part, text)}
    if not points:
        raise ConfigError(f'grid {text!r} is empty: write "0.01:0.30:0.01" or "0.05,0.12"')
    return sorted(map(float, points))


def _grid_part(part: str, text: str) -> list[Decimal]:
    try:
        numbers = [Decimal(number.strip()) for number in part.split(":")]
        in_range = all(0 <= number <= _LARGEST_POINT for number in numbers)
    except InvalidOperation:
        raise ConfigError(f"grid {text!r} holds something that is no number: {part.strip()!r}") from None
    if not in_range:
        raise ConfigError(f"grid {text!r} must hold numbers from 0 to {_LARGEST_POINT:,}")
    if len(numbers) == 1:
        return numbers
    if len(numbers) != 3:
        raise ConfigError(f"grid {text!r} must be start:stop:step or a comma-separated list")
    start, stop, step = numbers
    if step == 0 or stop < start:
        raise ConfigError(f"grid {text!r} does not ascend: start <= stop and step > 0 are needed")
    if stop - start > step * _LONGEST_GRID:
        raise ConfigError(f"grid {text!r} has more than {_LONGEST_GRID:,} points: use a larger step")
    return [start + step * index for index in range(int((stop - start) / step) + 1)]
