"""Statistics against SciPy and brute force."""

from fractions import Fraction
from math import comb, log

import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.stats import (
    EProcess,
    auroc,
    binom_cdf,
    clopper_pearson,
    decimal_grid,
    fixed_sequence,
    hypergeom_tail,
    needed_zero_false,
    spearman,
    upper_bound,
)

FEW = settings(max_examples=100, deadline=None)

trials = st.integers(0, 300) | st.sampled_from([1_000, 100_000])
rates = st.floats(0.0, 1.0) | st.sampled_from([1e-6, 1e-3, 0.999])
fractions = st.floats(0.001, 0.999)
scores = st.lists(st.tuples(st.integers(-3, 3).map(float), st.booleans()), min_size=1, max_size=30)


@FEW
@given(n=trials, share=st.floats(0, 1), p=rates)
def test_binomial_tail(n: int, share: float, p: float) -> None:
    k = round(share * n)
    assert binom_cdf(k, n, p) == pytest.approx(scipy.stats.binom.cdf(k, n, p), rel=1e-8, abs=1e-290)


@FEW
@given(total=st.integers(1, 60), data=st.data())
def test_hypergeometric_tail_by_counting(total: int, data: st.DataObject) -> None:
    marked, drawn = data.draw(st.integers(0, total)), data.draw(st.integers(0, total))
    seen = data.draw(st.integers(0, drawn))
    ways = sum(comb(marked, x) * comb(total - marked, drawn - x) for x in range(seen, drawn + 1))
    assert hypergeom_tail(seen, drawn, marked, total) == pytest.approx(
        float(Fraction(ways, comb(total, drawn))), rel=1e-9, abs=1e-300
    )


@FEW
@given(n=st.integers(1, 2000), share=st.floats(0, 1), confidence=fractions)
def test_an_interval_ends_where_the_tails_say(n: int, share: float, confidence: float) -> None:
    k = round(share * n)
    interval = clopper_pearson(k, n, confidence)
    assert interval.low <= k / n <= interval.high
    tail = (1 - confidence) / 2
    if k < n:
        assert binom_cdf(k, n, interval.high) == pytest.approx(tail, rel=1e-6)
    if k > 0:
        assert 1 - binom_cdf(k - 1, n, interval.low) == pytest.approx(tail, rel=1e-6)


@FEW
@given(
    n=st.integers(0, 200),
    shares=st.lists(st.floats(0, 0.3), max_size=8),
    alpha=st.floats(0.01, 0.5),
    delta=st.floats(0.01, 0.5),
)
def test_the_walk_certifies_what_the_upper_bound_allows(
    n: int, shares: list[float], alpha: float, delta: float
) -> None:
    counts = sorted(round(share * n) for share in shares)
    accepted = [upper_bound(count, n, 1 - delta) <= alpha for count in counts]
    last = accepted.index(False) - 1 if False in accepted else len(counts) - 1
    assert fixed_sequence(counts, n, alpha, delta) == last


@FEW
@given(alpha=st.floats(0.001, 0.9), delta=st.floats(0.001, 0.9))
def test_the_number_needed_is_the_smallest(alpha: float, delta: float) -> None:
    needed = needed_zero_false(alpha, delta)
    assert (1 - alpha) ** needed <= delta * (1 + 1e-9)
    assert needed == 1 or (1 - alpha) ** (needed - 1) > delta * (1 - 1e-9)


@FEW
@given(pairs=scores)
def test_auroc_counts_pairs(pairs: list[tuple[float, bool]]) -> None:
    positives = [score for score, label in pairs if label]
    negatives = [score for score, label in pairs if not label]
    wins = sum(Fraction((p > n) * 2 + (p == n), 2) for p in positives for n in negatives)
    expected = float(wins / (len(positives) * len(negatives))) if positives and negatives else None
    assert auroc([score for score, _ in pairs], [label for _, label in pairs]) == expected


@FEW
@given(pairs=st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=3, max_size=20))
def test_spearman(pairs: list[tuple[int, int]]) -> None:
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    if len(set(xs)) == 1 or len(set(ys)) == 1:
        assert spearman(xs, ys) is None
    else:
        assert spearman(xs, ys) == pytest.approx(scipy.stats.spearmanr(xs, ys).statistic, abs=1e-12)


@FEW
@given(start=st.integers(0, 50), steps=st.integers(0, 40), step=st.integers(1, 20))
def test_a_grid_holds_the_decimals_as_written(start: int, steps: int, step: int) -> None:
    written = [f"{(start + i * step) / 1000:.3f}" for i in range(steps + 1)]
    assert decimal_grid(f"{written[0]}:{written[-1]}:{step / 1000:.3f}") == [float(text) for text in written]


@FEW
@given(bound=fractions, hits=st.lists(st.booleans(), max_size=40))
def test_the_e_value_is_a_fair_bet_at_the_bound(bound: float, hits: list[bool]) -> None:
    process = EProcess(bound)
    for hit in hits:
        process.update(hit)
    now = process.e_value
    won, lost = EProcess(bound), EProcess(bound)
    for hit in hits:
        won.update(hit)
        lost.update(hit)
    assert bound * won.update(True) + (1 - bound) * lost.update(False) == pytest.approx(now, rel=1e-9)
    assert log(process.peak) >= -1e-12
