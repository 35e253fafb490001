"""When a step of a rollout that broke is tried again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from langgraph.types import RetryPolicy

from selective_rollout.errors import EnvironmentFault, PolicyError

_TRANSIENT: Final = ("connection", "timeout", "overloaded", "rate_limit", "server")
_DEFAULT: Final = RetryPolicy().retry_on


def may_retry(policy: RetryPolicy | None, error: Exception, attempts: int) -> bool:
    """Whether a step is tried once more.

    LangGraph's default leaves out runtime errors, and with them every failure of an endpoint or an
    environment; here those that may pass are tried again as well.

    Args:
        policy: the user's; None: nothing is tried again.
        error: what broke the step.
        attempts: how often it has been tried.
    """
    if policy is None or attempts >= policy.max_attempts:
        return False
    wanted = policy.retry_on
    if wanted is _DEFAULT and isinstance(error, PolicyError):
        return error.kind in _TRANSIENT
    if wanted is _DEFAULT and isinstance(error, EnvironmentFault):
        return True
    if isinstance(wanted, type):
        return isinstance(error, wanted)
    if isinstance(wanted, Sequence):
        return isinstance(error, tuple(wanted))
    return bool(wanted(error))


def pause_s(policy: RetryPolicy, attempts: int) -> float:
    """Seconds before the next attempt, as LangGraph counts them."""
    pause = policy.initial_interval * policy.backoff_factor ** (attempts - 1)
    return min(policy.max_interval, pause) + (random.uniform(0, 1) if policy.jitter else 0.0)
