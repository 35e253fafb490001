"""The metric in one call, on prefixes as they are (no padding)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb

from selective_rollout.distance.pairs import check_tau, exact_mean, pair_sums
from selective_rollout.distance.symbols import SymbolTable
from selective_rollout.errors import ConfigError


def mean_pairwise_distance(prefixes: Iterable[Sequence[object]]) -> float:
    """Return the mean over all pairs of d(a, b) / max(len(a), len(b)).

    Args:
        prefixes: one per rollout. All strings: compared by character. All other sequences:
            `prefixes[g][t]` is one action symbol, compared by `==`. The two are different scales.

    Returns:
        A distance in [0, 1], correctly rounded. Two empty prefixes are at distance 0; one prefix alone has
        no pair to agree with and reads 1.0, so that no threshold stops it.

    Raises:
        ConfigError: no prefix, strings mixed with sequences, or a symbol that cannot be compared.
    """
    return _mean(_texts(_rows(prefixes)))


def should_stop_group(prefixes: Iterable[Sequence[object]], tau: float = 0.05) -> bool:
    """Return whether the mean pairwise distance of the prefixes is strictly below tau.

    A single prefix never stops, nor does a group in which nobody has acted yet (all prefixes empty, or
    nothing in them but the empty action), nor any group at tau 0.

    Args:
        prefixes: as for `mean_pairwise_distance`.
        tau: threshold in [0, 1].

    Raises:
        ConfigError: tau is NaN or outside [0, 1], or the prefixes are bad.
    """
    check_tau(tau)
    rows = _rows(prefixes)
    texts = _texts(rows)
    nobody_acted = all(symbol == "" for row in rows for symbol in row)
    return not nobody_acted and _mean(texts) < tau


def _mean(texts: Sequence[str]) -> float:
    if len(texts) == 1:
        return 1.0
    return exact_mean(pair_sums(texts), comb(len(texts), 2))


def _rows(prefixes: Iterable[Sequence[object]]) -> list[Sequence[object]]:
    if isinstance(prefixes, str):
        raise ConfigError("prefixes is one string: pass a list with one prefix per rollout")
    rows = list(prefixes)
    if not rows:
        raise ConfigError("prefixes is empty: pass one prefix per rollout")
    return rows


def _texts(rows: Sequence[Sequence[object]]) -> list[str]:
    """Turn every prefix into a string with one character a symbol."""
    strings = [row for row in rows if isinstance(row, str)]
    if len(strings) == len(rows):
        return strings
    if strings:
        raise ConfigError("prefixes mix strings (character level) with sequences (action level): use one")
    table = SymbolTable()
    return [table.encode(row) for row in rows]
