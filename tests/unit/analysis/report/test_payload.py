"""What the page is given: exact curves, each text once, and JSON that cannot break out."""

from __future__ import annotations

import json
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from selective_rollout.analysis.report.payload import _curve, to_safe_json
from selective_rollout.distance.curve import mean_curve


def decoded(curve: list[float]) -> list[float]:
    """What the page's script makes of it."""
    pairs, *values = curve
    return [value / (pairs * (k + 1)) for k, value in enumerate(values)] if pairs else values


@given(st.lists(st.text("abc", min_size=9, max_size=9), min_size=2, max_size=6))
def test_a_padded_curve_comes_back_to_the_last_bit(texts: list[str]) -> None:
    distances = mean_curve(texts, 9)
    pairs = len(texts) * (len(texts) - 1) // 2
    packed = _curve(distances, pairs)
    assert packed[0] == pairs
    assert all(isinstance(value, int) for value in packed)
    assert decoded(packed) == distances


@given(st.lists(st.text("abc", min_size=1, max_size=9), min_size=2, max_size=6))
def test_any_other_curve_stays_on_the_right_side_of_every_threshold(texts: list[str]) -> None:
    distances = mean_curve(texts, 9)
    shown = decoded(_curve(distances, len(texts) * (len(texts) - 1) // 2))
    for tau in (Fraction(i, 200) for i in range(201)):
        assert [d < float(tau) for d in distances] == [d < float(tau) for d in shown]


def test_gaps_stay_gaps() -> None:
    assert decoded(_curve([0.5, None, 0.25], 1)) == [0.5, None, 0.25]
    assert _curve([], 0) == [0]


@given(st.text(), st.text("<>&!-/script\u2028\u2029\"'\\", max_size=30))
def test_json_inside_a_script_element_ends_nowhere_and_reads_back(key: str, text: str) -> None:
    safe = to_safe_json({key: [text]})
    assert json.loads(safe) == {key: [text]}
    assert safe.isascii()
    assert not set("<>&") & set(safe)
