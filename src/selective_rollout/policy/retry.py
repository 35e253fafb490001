"""When a failed request is sent again.

A model request has no side effects, so it may always be repeated as a whole, also after a part of the answer
had come: that part is thrown away and counted as wasted, which is cheaper than losing the whole rollout.
"""

from __future__ import annotations

import math
from typing import Final

from selective_rollout.draws import stable_fraction
from selective_rollout.policy.failures import Failure
from selective_rollout.policy.options import RequestLimits

_PASSING: Final = frozenset({"connection", "rate_limit", "overloaded", "server"})
_ONCE: Final = frozenset({"timeout", "protocol"})
"""Retried once: a lost packet or a proxy may be to blame, but a long or broken answer tends to stay so."""
_LONGEST_BACKOFF_S: Final = 30.0


def retry_delay_s(failure: Failure, retries: int, limits: RequestLimits, *key: object) -> float | None:
    """Seconds to wait before the next attempt; None if there is none.

    The wait doubles from `limits.backoff_s` and is drawn from its upper half, so that rollouts that failed
    together do not come back together. A wait that the server asked for is added to it.

    Args:
        failure: why the last attempt failed.
        retries: retries already made.
        limits: how many there may be.
        key: ids of the request, which the draw depends on.
    """
    allowed = limits.max_retries if failure.kind in _PASSING else min(1, limits.max_retries)
    if failure.final or failure.kind not in _PASSING | _ONCE or retries >= allowed:
        return None
    backoff = min(_LONGEST_BACKOFF_S, math.ldexp(limits.backoff_s, retries))
    return (failure.retry_after_s or 0.0) + backoff * (1 + stable_fraction("backoff", retries, *key)) / 2
