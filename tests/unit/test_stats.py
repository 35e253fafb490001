"""Exact statistics at known points and against SciPy."""

import math
import random
from statistics import fmean

import numpy as np
import pytest
import scipy.stats

from selective_rollout.errors import ConfigError
from selective_rollout.stats import (
    EProcess,
    Interval,
    auroc,
    beats_base_rate,
    binom_cdf,
    bootstrap_interval,
    clopper_pearson,
    decimal_grid,
    fixed_sequence,
    hypergeom_tail,
    needed_at_rate,
    needed_with,
    needed_zero_false,
    power,
    spearman,
    upper_bound,
)


class TestBinomial:
    @pytest.mark.parametrize(
        ("k", "n", "p", "expected"),
        [
            (-1, 5, 0.5, 0.0),
            (5, 5, 0.5, 1.0),
            (9, 5, 0.5, 1.0),
            (0, 5, 0.0, 1.0),
            (4, 5, 1.0, 0.0),
            (0, 0, 0.3, 1.0),
        ],
    )
    def test_edges(self, k: int, n: int, p: float, expected: float) -> None:
        assert binom_cdf(k, n, p) == expected

    @pytest.mark.parametrize(
        ("k", "n", "p"),
        [
            (2, 61, 0.1),
            (5_000, 100_000, 0.05),
            (4_800, 100_000, 0.05),
            (5_300, 100_000, 0.05),
            (3, 100_000, 1e-5),
            (99_990, 100_000, 0.9999),
            (1, 100_000, 0.01),
        ],
    )
    def test_against_scipy(self, k: int, n: int, p: float) -> None:
        assert binom_cdf(k, n, p) == pytest.approx(scipy.stats.binom.cdf(k, n, p), rel=1e-8)

    @pytest.mark.parametrize(
        ("k", "n"), [(0, 1), (1, 1), (4, 61), (0, 100_000), (17, 100_000), (50_000, 100_000)]
    )
    def test_intervals_against_scipy(self, k: int, n: int) -> None:
        ours, theirs = clopper_pearson(k, n), scipy.stats.binomtest(k, n).proportion_ci(method="exact")
        assert ours.low == pytest.approx(theirs.low, rel=1e-8, abs=1e-15)
        assert ours.high == pytest.approx(theirs.high, rel=1e-8)

    def test_a_bound_may_lie_below_what_was_seen(self) -> None:
        assert upper_bound(2, 10, 0.01) == pytest.approx(scipy.stats.beta.ppf(0.01, 3, 8), rel=1e-9)

    def test_nothing_seen_says_nothing(self) -> None:
        assert clopper_pearson(0, 0) == Interval(0.0, 1.0)
        assert upper_bound(0, 0) == 1.0

    def test_published_losses_of_the_group_gate(self) -> None:
        assert clopper_pearson(4, 61, confidence=0.9).high == pytest.approx(0.144, abs=5e-4)

    @pytest.mark.parametrize(
        "call",
        [
            lambda: binom_cdf(0, -1, 0.5),
            lambda: binom_cdf(0, 1, 1.5),
            lambda: upper_bound(3, 2),
            lambda: upper_bound(-1, 2),
            lambda: upper_bound(1, 2, confidence=1.0),
            lambda: clopper_pearson(1, 2, confidence=95),
            lambda: hypergeom_tail(1, 5, 2, 4),
        ],
    )
    def test_impossible_numbers(self, call: object) -> None:
        with pytest.raises(ConfigError):
            call()  # type: ignore[operator]


class TestHowMuchData:
    @pytest.mark.parametrize(("alpha", "needed"), [(0.10, 29), (0.05, 59), (0.02, 149), (0.01, 299)])
    def test_without_false_cuts(self, alpha: float, needed: int) -> None:
        assert needed_zero_false(alpha, delta=0.05) == needed
        assert binom_cdf(0, needed - 1, alpha) > 0.05

    def test_at_a_rate(self) -> None:
        assert needed_at_rate(0.0, 0.05, 0.05) == 59
        assert needed_at_rate(0.02, 0.05, 0.05) == 181
        assert needed_at_rate(0.05, 0.05, 0.05) is None
        assert needed_at_rate(0.2, 0.05, 0.05) is None

    @pytest.mark.parametrize(
        ("rate", "alpha"), [(0.07, 0.1), (0.04, 0.05), (0.3, 0.5), (0.002, 0.02), (0.13, 0.15)]
    )
    def test_at_a_rate_by_brute_force(self, rate: float, alpha: float) -> None:
        n = np.arange(1, 5000)
        thousandths = round(rate * 1000)
        certified = scipy.stats.binom.cdf(-(-n * thousandths // 1000), n, alpha) <= 0.05
        assert needed_at_rate(rate, alpha, 0.05) == n[certified][0]

    def test_very_many(self) -> None:
        exact, close = needed_at_rate(0.0473, 0.05, 0.05), needed_at_rate(0.0499, 0.05, 0.05)
        assert exact is not None
        assert close is not None
        assert exact == pytest.approx(1.6449**2 * 0.0475 / 0.0027**2, rel=0.05)
        assert close > 10_000_000

    def test_settings_are_checked(self) -> None:
        with pytest.raises(ConfigError, match="alpha must be strictly between 0 and 1"):
            needed_zero_false(0.0, 0.05)
        with pytest.raises(ConfigError, match="delta"):
            needed_at_rate(0.01, 0.05, 1.0)
        with pytest.raises(ConfigError, match="rate"):
            needed_at_rate(-0.1, 0.05, 0.05)
        with pytest.raises(ConfigError, match="rate must be 0 or more, not nan"):
            needed_at_rate(math.nan, 0.05, 0.05)

    @pytest.mark.parametrize("false_cuts", [0, 1, 4])
    def test_with_so_many_false_cuts_no_smaller_number_is_enough(self, false_cuts: int) -> None:
        enough = [n for n in range(400) if binom_cdf(false_cuts, n, 0.05) <= 0.05]
        assert needed_with(false_cuts, 0.05, 0.05) == enough[0]
        assert needed_with(0, 0.05, 0.05) == needed_zero_false(0.05, 0.05)


class TestFixedSequence:
    def test_the_walk_ends_at_the_first_failure(self) -> None:
        assert fixed_sequence([0, 0, 1, 4, 6], 61, alpha=0.10, delta=0.05) == 2
        assert fixed_sequence([0, 0], 61, alpha=0.10, delta=0.05) == 1
        assert fixed_sequence([3, 0], 61, alpha=0.10, delta=0.05) == -1
        assert fixed_sequence([], 61, alpha=0.10, delta=0.05) == -1
        assert fixed_sequence([0], 0, alpha=0.10, delta=0.05) == -1

    def test_recorded_airline_tasks(self) -> None:
        assert fixed_sequence([0, 1], 26, alpha=0.15, delta=0.05) == 0
        assert fixed_sequence([0, 1, 2], 26, alpha=0.20, delta=0.05) == 1

    def test_impossible_counts(self) -> None:
        with pytest.raises(ConfigError, match="grid point 1"):
            fixed_sequence([0, 12], 11, alpha=0.5, delta=0.05)


class TestBaseRate:
    def test_against_scipy(self) -> None:
        p = beats_base_rate(right=17, cuts=21, base_right=39, n=100)
        assert p == pytest.approx(scipy.stats.hypergeom.sf(16, 100, 39, 21), rel=1e-9)
        assert p < 0.001

    def test_cutting_everything_or_nothing_proves_nothing(self) -> None:
        assert beats_base_rate(39, 100, 39, 100) == pytest.approx(1.0)
        assert beats_base_rate(0, 0, 39, 100) == 1.0
        assert beats_base_rate(0, 1, 39, 100) == pytest.approx(1.0)

    def test_impossible_counts(self) -> None:
        with pytest.raises(ConfigError, match="do not fit"):
            beats_base_rate(3, 2, 39, 100)
        with pytest.raises(ConfigError, match="do not fit"):
            beats_base_rate(40, 50, 39, 100)


class TestGrid:
    def test_points_are_decimals(self) -> None:
        assert decimal_grid("0.1:0.3:0.1") == [0.1, 0.2, 0.3]
        fine = decimal_grid("0.005:0.300:0.005")
        assert len(fine) == 60
        assert {0.12, 0.15, 0.3} <= set(fine)

    def test_forms(self) -> None:
        assert decimal_grid("0.12") == [0.12]
        assert decimal_grid("0.12, 0.05,0.12,") == [0.05, 0.12]
        assert decimal_grid("0:0.25:0.1") == [0.0, 0.1, 0.2]
        assert decimal_grid("0.5, 0.1:0.2:0.1") == [0.1, 0.2, 0.5]

    @pytest.mark.parametrize(
        "text",
        [
            "",
            ",",
            "a",
            "0.1:0.2",
            "0.3:0.1:0.1",
            "0.1:0.2:0",
            "0.1:0.2:-0.1",
            "-0.1",
            "nan",
            "inf",
            "0:1:1e-9",
            "0:1:1e-999999999",
            "1e999999999",
        ],
    )
    def test_errors(self, text: str) -> None:
        with pytest.raises(ConfigError, match="grid"):
            decimal_grid(text)


class TestRanks:
    def test_auroc(self) -> None:
        assert auroc([0.1, 0.2, 0.3, 0.4], [False, False, True, True]) == 1.0
        assert auroc([0.4, 0.3, 0.2, 0.1], [False, False, True, True]) == 0.0
        assert auroc([1.0, 1.0, 1.0], [True, False, True]) == 0.5
        assert auroc([1.0, 2.0, 2.0, 3.0], [False, True, False, True]) == 0.875

    def test_one_class_has_no_area(self) -> None:
        assert auroc([0.1, 0.2], [True, True]) is None
        assert auroc([], []) is None

    def test_spearman_needs_two_spreads(self) -> None:
        assert spearman([1, 2, 3], [3, 2, 1]) == -1.0
        assert spearman([1, 1, 1], [3, 2, 1]) is None
        assert spearman([1], [1]) is None
        assert spearman([], []) is None

    def test_misaligned_or_missing_values(self) -> None:
        with pytest.raises(ConfigError, match="align"):
            auroc([0.1], [True, False])
        with pytest.raises(ConfigError, match="NaN"):
            spearman([math.nan, 1.0], [1.0, 2.0])


class TestBootstrap:
    def test_a_seed_gives_one_interval(self) -> None:
        data = list(range(50))
        first, second = (bootstrap_interval(fmean, data, resamples=200, seed=7) for _ in range(2))
        assert first == second != bootstrap_interval(fmean, data, resamples=200, seed=8)

    def test_it_is_near_the_normal_interval_of_a_mean(self) -> None:
        draw = random.Random(3)
        data = [draw.gauss(0, 1) for _ in range(200)]
        interval = bootstrap_interval(fmean, data, resamples=1000)
        assert interval is not None
        half = 1.96 * float(np.std(data)) / math.sqrt(200)
        assert interval.low == pytest.approx(fmean(data) - half, abs=0.03)
        assert interval.high == pytest.approx(fmean(data) + half, abs=0.03)

    def test_quantiles_are_numpys(self) -> None:
        draw = random.Random(5)
        drawn = [fmean(draw.choices([0.0, 1.0, 5.0], k=3)) for _ in range(99)]
        interval = bootstrap_interval(fmean, [0.0, 1.0, 5.0], confidence=0.9, resamples=99, seed=5)
        assert interval is not None
        assert [interval.low, interval.high] == pytest.approx(np.quantile(drawn, [0.05, 0.95]))

    def test_undefined_statistics(self) -> None:
        assert bootstrap_interval(lambda sample: None, [1, 2]) is None
        assert bootstrap_interval(fmean, []) is None
        sometimes = bootstrap_interval(lambda sample: 1.0 if 1 in sample else None, [1, 2, 3], resamples=100)
        assert sometimes == Interval(1.0, 1.0)

    def test_settings_are_checked(self) -> None:
        with pytest.raises(ConfigError, match="confidence"):
            bootstrap_interval(fmean, [1.0], confidence=1.0)
        with pytest.raises(ConfigError, match="resamples"):
            bootstrap_interval(fmean, [1.0], resamples=0)


class TestEProcess:
    def test_it_starts_at_one_and_follows_the_evidence(self) -> None:
        process = EProcess(0.05)
        assert process.e_value == 1.0
        assert process.update(False) < 1.0
        assert process.peak == 1.0
        assert process.update(True) > 1.0
        assert (process.hits, process.misses) == (1, 1)

    def test_an_alarm_stays(self) -> None:
        process = EProcess(0.05)
        for _ in range(3):
            process.update(True)
        assert process.alarm()
        assert not process.alarm(level=1e-6)
        for _ in range(200):
            process.update(False)
        assert process.e_value < 1
        assert process.peak > 20
        assert process.alarm()

    def test_evidence_beyond_a_float(self) -> None:
        process = EProcess(0.001)
        for _ in range(400):
            process.update(True)
        assert process.e_value == math.inf
        assert process.alarm(level=1e-300)

    @pytest.mark.parametrize("bound", [0.0, 1.0, -0.1, math.nan])
    def test_the_bound_is_checked(self, bound: float) -> None:
        with pytest.raises(ConfigError, match="bound"):
            EProcess(bound)

    def test_level_is_checked(self) -> None:
        with pytest.raises(ConfigError, match="level"):
            EProcess(0.1).alarm(level=0)

    @pytest.mark.parametrize("bound", [0.005, 0.05, 0.5])
    def test_false_alarms_stay_below_the_level_at_any_time(self, bound: float) -> None:
        assert power(bound, 1000, bound=bound, level=0.05) <= 0.05

    def test_power_grows_with_rate_and_data(self) -> None:
        assert power(0.0, 100, bound=0.05) == 0.0
        assert power(1.0, 100, bound=0.05) == pytest.approx(1.0)
        assert power(0.2, 0, bound=0.05) == 0.0
        assert power(0.2, 50, bound=0.05) < power(0.2, 200, bound=0.05) < power(0.4, 200, bound=0.05)

    def test_power_against_simulation(self) -> None:
        draw, alarms, runs, n = random.Random(11), 0, 1000, 60
        for _ in range(runs):
            process = EProcess(0.05)
            for _ in range(n):
                process.update(draw.random() < 0.15)
            alarms += process.alarm()
        exact = power(0.15, n, bound=0.05)
        assert alarms / runs == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / runs))
