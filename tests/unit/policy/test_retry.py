import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.policy import RequestLimits
from selective_rollout.policy.failures import Failure
from selective_rollout.policy.retry import retry_delay_s

LIMITS = RequestLimits(max_retries=4, backoff_s=0.5)


@pytest.mark.parametrize(
    ("kind", "retries"),
    [
        ("connection", 4),
        ("rate_limit", 4),
        ("overloaded", 4),
        ("server", 4),
        ("timeout", 1),
        ("protocol", 1),
        ("auth", 0),
        ("bad_request", 0),
        ("context_length", 0),
        ("model_not_found", 0),
    ],
)
def test_how_often_each_kind_is_retried(kind, retries):
    granted = [retry_delay_s(Failure(kind, ""), done, LIMITS, "g", 0, 1) is not None for done in range(6)]
    assert granted == [True] * retries + [False] * (6 - retries)
    assert retry_delay_s(Failure(kind, ""), 0, RequestLimits(max_retries=0), "g") is None


def test_a_final_failure_is_never_retried():
    assert retry_delay_s(Failure("rate_limit", "", final=True), 0, LIMITS, "g") is None


@given(st.integers(0, 40), st.none() | st.floats(0, 120), st.text())
@settings(max_examples=100, deadline=None)
def test_the_wait_doubles_within_bounds_and_honours_the_server(retries, asked, key):
    limits = RequestLimits(max_retries=100, backoff_s=0.5)
    failure = Failure("server", "", retry_after_s=asked)
    delay = retry_delay_s(failure, retries, limits, key)
    full = min(30.0, 0.5 * 2**retries)
    assert (asked or 0) + full / 2 <= delay <= (asked or 0) + full
    assert delay == retry_delay_s(failure, retries, limits, key)


def test_rollouts_that_fail_together_do_not_come_back_together():
    delays = {retry_delay_s(Failure("server", ""), 0, LIMITS, "g", rollout, 1) for rollout in range(16)}
    assert len(delays) == 16
