"""Cuts counted by label."""

from __future__ import annotations

from selective_rollout.analysis.rates import CutCounts, Rate


def test_cuts_are_counted_by_the_label_of_their_group() -> None:
    counts = CutCounts()
    for zero_variance, cut in ((True, True), (True, False), (False, True), (False, False), (None, True)):
        counts.count(zero_variance, cut)
    assert (counts.zero_variance, counts.signal, counts.unknown) == (2, 2, 1)
    assert (counts.right, counts.wrong, counts.unknown_cuts, counts.cuts) == (1, 1, 1, 3)
    assert (counts.base_rate, counts.precision, counts.loss) == (Rate(2, 4), Rate(1, 2), Rate(1, 2))


def test_a_share_of_nothing_is_unknown() -> None:
    rate = CutCounts().loss
    assert (rate.value, rate.interval) == (None, None)
    assert rate.to_dict() == {"hits": 0, "trials": 0, "value": None, "interval_95": None}
