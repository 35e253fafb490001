"""Differences with intervals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selective_rollout.analysis.report.diff import Change, compare, difference
from selective_rollout.analysis.report.quantities import Quantity
from selective_rollout.stats import Interval


def quantity(name: str, value: float | None, interval: Interval | None = None) -> Quantity:
    return Quantity(name, name, value, interval)


def test_with_wilson_intervals_it_is_newcombes_published_one() -> None:
    """56/70 against 48/80 (Newcombe 1998, table II, method 10): 0.0524 to 0.3339."""
    wilson_a, wilson_b = Interval(0.6919, 0.8769), Interval(0.4904, 0.7004)
    found = difference(0.8, wilson_a, 0.6, wilson_b)
    assert found.low == pytest.approx(0.0524, abs=2e-4)
    assert found.high == pytest.approx(0.3339, abs=2e-4)


parts = st.tuples(st.floats(0, 1), st.floats(0, 0.5), st.floats(0, 0.5))


@given(parts, parts)
def test_it_holds_the_difference_and_swaps_sign_with_its_sides(
    a: tuple[float, float, float], b: tuple[float, float, float]
) -> None:
    of_a, of_b = (Interval(value - below, value + above) for value, below, above in (a, b))
    forth, back = difference(a[0], of_a, b[0], of_b), difference(b[0], of_b, a[0], of_a)
    assert forth.low <= a[0] - b[0] <= forth.high
    assert (forth.low, forth.high) == pytest.approx((-back.high, -back.low))


def test_pairs_are_made_by_name() -> None:
    changes = compare(
        [quantity("loss", 0.2), quantity("new", 1)], [quantity("old", 1), quantity("loss", 0.1)]
    )
    assert [(change.now.name, change.value) for change in changes] == [("loss", 0.1)]


@pytest.mark.parametrize(
    ("now", "before", "clear"),
    [
        (quantity("x", 0.9, Interval(0.8, 1)), quantity("x", 0.1, Interval(0, 0.2)), True),
        (quantity("x", 0.5, Interval(0, 1)), quantity("x", 0.4, Interval(0, 1)), False),
        (quantity("x", 0.5), quantity("x", 0.4, Interval(0, 1)), None),
    ],
)
def test_a_change_is_clear_if_its_interval_excludes_none(
    now: Quantity, before: Quantity, clear: bool | None
) -> None:
    assert Change(now, before).is_clear is clear


def test_unknown_stays_unknown() -> None:
    change = Change(quantity("x", None), quantity("x", 0.5, Interval(0, 1)))
    assert change.to_dict() == {"now": None, "before": 0.5, "change": None, "interval_95": None}
