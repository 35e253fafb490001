"""Audits in simulation: how often the alarm cries wolf, how soon it rings, and renewals that spend delta."""

from __future__ import annotations

import math
import random

import pytest

from selective_rollout.gate.audit import Alarm, AuditCounts, Seen, thinned
from selective_rollout.stats import fixed_sequence

pytestmark = pytest.mark.stats

ALPHA, AUDIT_RATE = 0.1, 0.2


def group(rng: random.Random, false_cut_rate: float) -> Seen:
    """A group of an enforcing run: half are signal-bearing, the gate finds 40% of the others."""
    signal = rng.random() < 0.5
    fires = rng.random() < (false_cut_rate if signal else 0.4)
    audited = rng.random() < AUDIT_RATE
    if fires and not audited:
        return Seen(cut=True, would_cut=False, zero_variance=None)
    return Seen(cut=False, would_cut=fires, zero_variance=not signal)


def rings_within(rng: random.Random, false_cut_rate: float, observed: int) -> bool:
    alarm = Alarm(ALPHA, AUDIT_RATE)
    while alarm.counts.kept_signal + alarm.counts.audited_signal < observed:
        if alarm.add(group(rng, false_cut_rate)):
            return True
    return False


def test_at_the_bound_it_rings_in_at_most_five_percent_of_runs() -> None:
    rng, runs = random.Random(0), 1000
    rung = sum(rings_within(rng, ALPHA, 400) for _ in range(runs))
    assert rung / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


@pytest.mark.parametrize("rate", [0.2, 0.4])
def test_its_power_is_the_one_it_prints(rate: float) -> None:
    rng, runs = random.Random(1), 600
    rung = sum(rings_within(rng, rate, 300) for _ in range(runs)) / runs
    assert rung == pytest.approx(Alarm(ALPHA, AUDIT_RATE).power(rate, 300), abs=3 * math.sqrt(0.25 / runs))


def test_in_the_order_of_arrival_it_would_cry_wolf() -> None:
    """Would-be cuts that end sooner than other groups would all be seen first."""
    rng, runs, sooner = random.Random(2), 500, 150
    by_arrival = as_begun = 0
    for _ in range(runs):
        begun = [group(rng, ALPHA) for _ in range(500)]
        arrived, ours = Alarm(ALPHA, AUDIT_RATE), Alarm(ALPHA, AUDIT_RATE)
        for i in sorted(range(500), key=lambda i: i - sooner * begun[i].would_cut):
            arrived.add(begun[i])
            ours.note(i, begun[i])
        as_begun += ours.rung
        by_arrival += arrived.rung
    assert as_begun / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)
    assert by_arrival / runs > 0.15


def test_the_interval_of_the_false_cut_rate_covers() -> None:
    rng, runs, covered = random.Random(3), 400, 0
    for _ in range(runs):
        counts = AuditCounts(AUDIT_RATE)
        for _ in range(400):
            counts.add(group(rng, 0.15))
        rate = counts.false_cut_rate
        assert rate is not None
        covered += rate.interval.low <= 0.15 <= rate.interval.high
    assert covered / runs >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / runs)


def test_any_number_of_renewals_together_fail_in_at_most_delta_of_runs() -> None:
    rng, runs, delta = random.Random(4), 3000, 0.05
    wrong_ever = wrong_without_spending = 0
    rate = thinned(0.101, AUDIT_RATE)
    for _ in range(runs):
        spending = plain = False
        for j in range(1, 13):
            hits = sum(rng.random() < rate for _ in range(300))
            spending |= fixed_sequence([hits], 300, thinned(ALPHA, AUDIT_RATE), delta / (j * (j + 1))) == 0
            plain |= fixed_sequence([hits], 300, thinned(ALPHA, AUDIT_RATE), delta) == 0
        wrong_ever += spending
        wrong_without_spending += plain
    assert wrong_ever / runs <= delta + 3 * math.sqrt(delta * (1 - delta) / runs)
    assert wrong_without_spending / runs > 2 * delta
