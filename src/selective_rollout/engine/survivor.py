"""Who goes on alone when a group is cut at inference.

The order is drawn from the group id, so it is known before the group starts, the same in every process, and
independent of who happens to be fast: choosing the first to finish would favour short answers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from selective_rollout.draws import survivor_order

__all__ = ["first_of", "survivor_order"]


def first_of(order: Sequence[int], candidates: Collection[int]) -> int | None:
    """The first rollout of the order that is a candidate, or None."""
    return next((rollout for rollout in order if rollout in candidates), None)
