"""Exact small-sample statistics on the standard library."""

from selective_rollout.stats.binomial import Interval, binom_cdf, clopper_pearson, hypergeom_tail, upper_bound
from selective_rollout.stats.certify import (
    beats_base_rate,
    decimal_grid,
    fixed_sequence,
    needed_at_rate,
    needed_with,
    needed_zero_false,
)
from selective_rollout.stats.eprocess import EProcess, power
from selective_rollout.stats.ranks import auroc, bootstrap_interval, spearman

__all__ = [
    "EProcess",
    "Interval",
    "auroc",
    "beats_base_rate",
    "binom_cdf",
    "bootstrap_interval",
    "clopper_pearson",
    "decimal_grid",
    "fixed_sequence",
    "hypergeom_tail",
    "needed_at_rate",
    "needed_with",
    "needed_zero_false",
    "power",
    "spearman",
    "upper_bound",
]
