"""Audits: the two rates, and the alarm."""

from __future__ import annotations

import random

import pytest

from selective_rollout.errors import ConfigError
from selective_rollout.gate.audit import Alarm, AuditCounts, Seen, thinned, unthinned
from selective_rollout.stats import EProcess, clopper_pearson, power

KEPT = Seen(cut=False, would_cut=False, zero_variance=False)
WRONG = Seen(cut=False, would_cut=True, zero_variance=False)
RIGHT = Seen(cut=False, would_cut=True, zero_variance=True)
CUT = Seen(cut=True, would_cut=False, zero_variance=None)
QUIET = Seen(cut=False, would_cut=False, zero_variance=True)


def test_thinning_and_back() -> None:
    assert thinned(0.1, 1.0) == pytest.approx(0.1)
    assert thinned(0.1, 0.2) == pytest.approx(0.02 / 0.92)
    for rate in (0.0, 0.03, 0.5, 1.0):
        assert unthinned(thinned(rate, 0.2), 0.2) == pytest.approx(rate)


class TestCounts:
    def test_each_kind_of_group_has_its_place(self) -> None:
        counts = AuditCounts(0.5)
        unlabelled = Seen(cut=False, would_cut=True, zero_variance=None)
        said = [counts.add(seen) for seen in (KEPT, WRONG, RIGHT, CUT, QUIET, unlabelled)]
        assert said == [False, True, None, None, None, None]
        assert (counts.kept_signal, counts.audited_signal) == (1, 1)
        assert (counts.audited_zero_variance, counts.audited_unknown, counts.unobserved) == (1, 1, 1)

    def test_the_two_rates_are_two_rates(self) -> None:
        counts = AuditCounts(0.1)
        for seen in [WRONG] * 2 + [KEPT] * 80 + [RIGHT] * 6:
            counts.add(seen)
        lost, wrong = counts.false_cut_rate, counts.wrong_cut_share
        assert lost is not None
        assert wrong is not None
        assert lost.value == pytest.approx(20 / 100), "2 of about 20 cuts were audited"
        assert lost.interval.low == pytest.approx(unthinned(clopper_pearson(2, 82).low, 0.1))
        assert lost.interval.high == pytest.approx(unthinned(clopper_pearson(2, 82).high, 0.1))
        assert (wrong.hits, wrong.trials, wrong.value) == (2, 8, 0.25)
        assert wrong.interval == clopper_pearson(2, 8)

    def test_nothing_observed_is_unknown(self) -> None:
        counts = AuditCounts(1.0)
        assert counts.false_cut_rate is None
        assert counts.wrong_cut_share is None

    @pytest.mark.parametrize("rate", [0.0, -0.1, 1.1])
    def test_without_audits_nothing_can_be_said(self, rate: float) -> None:
        with pytest.raises(ConfigError, match="the audit rate must be above 0 and at most 1"):
            AuditCounts(rate)
        with pytest.raises(ConfigError, match="audit rate"):
            Alarm(0.1, rate)


class TestAlarm:
    def test_it_is_an_e_process_at_the_thinned_bound(self) -> None:
        alarm, process = Alarm(0.1, 0.5), EProcess(thinned(0.1, 0.5))
        for hit in (False, True, True, False, True):
            alarm.add(WRONG if hit else KEPT)
            process.update(hit)
        assert alarm.e_value == process.e_value
        assert (alarm.counts.audited_signal, alarm.counts.kept_signal) == (3, 2)

    def test_it_rings_and_stays_rung(self) -> None:
        alarm = Alarm(0.1, 0.2)
        assert not alarm.rung
        while not alarm.add(WRONG):
            pass
        for _ in range(500):
            alarm.add(KEPT)
        assert alarm.rung
        assert alarm.e_value < 1

    def test_groups_that_say_nothing_change_nothing(self) -> None:
        alarm = Alarm(0.1, 0.2)
        for seen in (CUT, RIGHT, QUIET):
            assert not alarm.add(seen)
        assert alarm.e_value == 1.0

    def test_arrival_order_does_not_matter(self) -> None:
        rng = random.Random(0)
        groups = [rng.choice([KEPT, KEPT, WRONG, CUT, None]) for _ in range(60)]
        in_order, shuffled = Alarm(0.3, 0.5), Alarm(0.3, 0.5)
        places = list(range(60))
        rng.shuffle(places)
        for place, seen in enumerate(groups):
            in_order.note(place, seen)
        for place in places:
            shuffled.note(place, groups[place])
        assert shuffled.e_value == in_order.e_value
        assert shuffled.rung == in_order.rung

    def test_a_group_still_out_holds_back_the_later_ones(self) -> None:
        alarm = Alarm(0.1, 0.5)
        for place in range(1, 30):
            assert not alarm.note(place, WRONG)
        assert alarm.e_value == 1.0
        assert alarm.note(0, KEPT)

    def test_its_power_is_printed(self) -> None:
        alarm = Alarm(0.1, 0.2)
        chance = alarm.power(0.2, 500)
        assert chance == power(thinned(0.2, 0.2), 500, bound=thinned(0.1, 0.2))
        assert f"rings within 500 of them with probability {chance:.0%}" in alarm.describe()
        assert "false-cut rate of 20% instead of 10%" in alarm.describe()

    @pytest.mark.parametrize("level", [0.0, 1.0])
    def test_the_level_is_checked_at_once(self, level: float) -> None:
        with pytest.raises(ConfigError, match="level"):
            Alarm(0.1, 0.2, level)
