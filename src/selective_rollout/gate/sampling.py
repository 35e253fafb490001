"""Are the members of a group equal by construction?

Only declared facts count. Equal text is no evidence: a sharp policy may well produce it from honest samples.
"""

from __future__ import annotations

from collections.abc import Sequence

from selective_rollout.types import SamplingInfo


def identical_sampling(sampling: Sequence[SamplingInfo] | None) -> str | None:
    """The reason why siblings are copies of one sample, or None if nothing declared says so.

    Returns:
        "seed" (all share one explicit seed), "temperature_zero" (all decode greedily), "response_id" (one
        sample counted twice), "cached" (an answer out of a cache), "fewer_choices" (the server returned fewer
        samples than asked for, so some were filled up).
    """
    if not sampling or len(sampling) < 2:
        return None
    seeds = {info.seed for info in sampling}
    if len(seeds) == 1 and None not in seeds:
        return "seed"
    if all(info.temperature == 0 for info in sampling):
        return "temperature_zero"
    response_ids = [info.response_id for info in sampling if info.response_id]
    if len(set(response_ids)) < len(response_ids):
        return "response_id"
    if any(info.cached for info in sampling):
        return "cached"
    if any(_fell_short(info) for info in sampling):
        return "fewer_choices"
    return None


def sampling_is_unknown(sampling: Sequence[SamplingInfo] | None) -> bool:
    """True if nothing was declared from which sameness could be told; reports then say "unknown"."""
    return not sampling or all(info == SamplingInfo() for info in sampling)


def _fell_short(info: SamplingInfo) -> bool:
    if info.choices_requested is None or info.choices_returned is None:
        return False
    return info.choices_returned < info.choices_requested
