"""A Beta prior over the prompts' pass rates, and the chance of an all-equal group under it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BetaPrior:
    """Beta(a, b) over a prompt's pass rate."""

    a: float
    b: float

    def p_zero_variance(self, group_size: int, trials: float = 0.0, successes: float = 0.0) -> float:
        """P(all fail) + P(all succeed) of the next group, after some (possibly decayed) trials."""
        a, b = self.a + successes, self.b + trials - successes
        base = _log_beta(a, b)
        all_succeed = math.exp(_log_beta(a + group_size, b) - base)
        all_fail = math.exp(_log_beta(a, b + group_size) - base)
        return min(1.0, all_succeed + all_fail)


def fit_beta_prior(counts: Sequence[tuple[float, float]]) -> BetaPrior:
    """Fit the prior to (trials, successes) of many prompts by the method of moments.

    The variance between prompts is what remains after the binomial noise of each prompt's own trials. With
    fewer than two prompts, or when nothing remains, there is no telling: Jeffreys' Beta(1/2, 1/2) and a tight
    prior around the mean respectively.
    """
    counts = [(trials, successes) for trials, successes in counts if trials > 1]
    if len(counts) < 2:
        return BetaPrior(0.5, 0.5)
    rates = [successes / trials for trials, successes in counts]
    mean = sum(rates) / len(rates)
    spread = mean * (1 - mean)
    if spread == 0:
        return BetaPrior(0.5, 0.5)
    observed = sum((rate - mean) ** 2 for rate in rates) / (len(rates) - 1)
    inverse_trials = sum(1 / trials for trials, _ in counts) / len(counts)
    share = (observed / spread - inverse_trials) / (1 - inverse_trials)
    strength = min(max(1 / min(max(share, 1e-9), 1.0) - 1, 0.1), 100.0)
    return BetaPrior(mean * strength, (1 - mean) * strength)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
