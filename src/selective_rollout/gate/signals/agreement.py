"""Signals of agreement: how alike the members' behaviour is so far.

Unless said otherwise: rows are the first k actions of the present members, filled with END; a value lies in
[0, 1], is None with fewer than two present members, and points down (direction -1: alike is likelier to end
in equal rewards). The definitions called the paper's are those behind the published feature table of
"Selective Rollout" (arXiv 2605.05802), with the members present in place of the group size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from statistics import fmean
from typing import ClassVar, Final, TypeVar

from selective_rollout.actions import ActionOptions, canonicalise
from selective_rollout.distance import GroupDistance
from selective_rollout.errors import ConfigError
from selective_rollout.gate.signals.base import Direction
from selective_rollout.gate.signals.futility import termination_fraction
from selective_rollout.gate.signals.view import GroupView
from selective_rollout.types import END, Padding

T = TypeVar("T")

_NAME_ONLY: Final = ActionOptions(name_only=True)


def distance(view: GroupView, k: int) -> float | None:
    """Mean pairwise edit distance divided by k (the paper's `prefix_edit_distance_mean`)."""
    return _mean_distance(view.prefixes(k), k, "end")


def distance_unpadded(view: GroupView, k: int) -> float | None:
    """The same without END: each pair's edit distance divided by the longer of its two prefixes."""
    return _mean_distance(view.prefixes(k), k, "none")


def tool_distance(view: GroupView, k: int) -> float | None:
    """`distance` of tool names alone, of text actions the first words.

    Steadier than full actions wherever arguments or messages are free text.
    """
    return _mean_distance([[_tool_name(action) for action in row] for row in view.prefixes(k)], k, "end")


def unique_action_ratio(view: GroupView, k: int) -> float | None:
    """Distinct actions at step k, END among them, per member (the paper's)."""
    return _distinct_share([row[-1] for row in view.padded(k)])


def unique_prefix_ratio(view: GroupView, k: int) -> float | None:
    """Distinct rows per member (the paper's)."""
    return _distinct_share(view.padded(k))


def action_entropy(view: GroupView, k: int) -> float | None:
    """Entropy of the actions at step k, END among them, over its maximum log2(members) (the paper's)."""
    rows = view.padded(k)
    if len(rows) < 2:
        return None
    size = len(rows)
    counts = Counter(row[-1] for row in rows).values()
    bits = math.fsum(count / size * math.log2(size / count) for count in counts)
    return min(1.0, bits / math.log2(size))


def action_bigram_jaccard_mean(view: GroupView, k: int) -> float | None:
    """Mean pairwise Jaccard distance of the rows' sets of neighbouring action pairs (the paper's).

    END takes part, so a member's end is a bigram like any other. At k = 1 there are no bigrams: None.
    """
    if k < 2:
        return None
    return mean_of_pairs([set(pairwise(row)) for row in view.padded(k)], _jaccard_distance)


def obs_unique_ratio(view: GroupView, k: int) -> float | None:
    """Distinct observations that action k answers, END for ended members, per member (the paper's).

    That observation is the reply to step k-1. At k = 1 it is the task's opening, which is no reply: None.
    """
    if k < 2:
        return None
    seen: list[object] = []
    for member in view.present(k):
        acted = len(view.actions[member]) >= k
        seen.append(view.reply(view.observation_hashes, member, k - 2) if acted else END)
    return None if None in seen else _distinct_share(seen)


@dataclass(frozen=True, slots=True)
class OrRule:
    """`distance`, or 0 once the share of ended members reaches `t_high`.

    So `value < d_low`, for d_low > 0, is the paper's rule "distance < d_low or termination >= t_high" (at
    step 10: d_low 0.12, t_high 0.90), and stays one threshold that a certificate can walk along.

    Raises:
        ConfigError: t_high outside (0, 1].
    """

    t_high: float

    name: ClassVar[str] = "or_rule"
    needs: ClassVar[frozenset[str]] = frozenset({"actions"})
    direction: ClassVar[Direction] = -1

    def __post_init__(self) -> None:
        number = isinstance(self.t_high, (int, float)) and not isinstance(self.t_high, bool)
        if not number or not 0.0 < self.t_high <= 1.0:
            raise ConfigError(f"or_rule: t_high must be a number in (0, 1], not {self.t_high!r}")

    def value(self, view: GroupView, k: int) -> float | None:
        """The distance at k, or 0."""
        apart, ended = distance(view, k), termination_fraction(view, k)
        if apart is None or ended is None:
            return None
        return 0.0 if ended >= self.t_high else apart


def mean_of_pairs(rows: Sequence[T], compare: Callable[[T, T], float]) -> float | None:
    """Mean of a comparison over all pairs; None below two rows."""
    return fmean(compare(a, b) for a, b in combinations(rows, 2)) if len(rows) > 1 else None


def _mean_distance(rows: Sequence[Sequence[str]], k: int, padding: Padding) -> float | None:
    if len(rows) < 2:
        return None
    group = GroupDistance(len(rows), padding)
    group.extend(rows)
    for member, row in enumerate(rows):
        if len(row) < k:
            group.finish(member)
    group.advance_to(k)
    return group.mean


@lru_cache(maxsize=4096)
def _tool_name(action: str) -> str:
    return canonicalise(action, _NAME_ONLY)


def _distinct_share(symbols: Sequence[Hashable]) -> float | None:
    return len(set(symbols)) / len(symbols) if len(symbols) > 1 else None


def _jaccard_distance(a: set[T], b: set[T]) -> float:
    return len(a ^ b) / len(a | b)
