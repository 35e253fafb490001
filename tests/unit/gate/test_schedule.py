"""Schedules of tau."""

from __future__ import annotations

import pytest

from selective_rollout.errors import ConfigError
from selective_rollout.gate.schedule import constant, linear, tau_at


def test_linear_anneals_and_stays_at_its_ends() -> None:
    schedule = linear(0.2, 0.1)
    assert [round(schedule(p), 6) for p in (-1, 0, 0.5, 1, 7)] == [0.2, 0.2, 0.15, 0.1, 0.1]


def test_no_schedule_gets_past_the_certified_tau() -> None:
    assert tau_at(constant(0.3), 0.5, ceiling=0.12) == 0.12
    assert tau_at(constant(0.05), 0.5, ceiling=0.12) == 0.05
    assert tau_at(lambda progress: progress / 2, 0.1, ceiling=0.12) == 0.05


@pytest.mark.parametrize("value", [float("nan"), -0.1, 1.1])
def test_what_is_no_tau_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="schedule: tau must be"):
        tau_at(lambda progress: value, 0.0, ceiling=0.12)
    with pytest.raises(ConfigError, match="schedule: tau must be"):
        constant(value)
