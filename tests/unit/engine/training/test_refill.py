"""Replacing dropped groups within a budget."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.engine.training import Refill
from selective_rollout.errors import ConfigError


def test_dropped_groups_are_replaced_until_the_budget_is_spent() -> None:
    refill = Refill(wanted=4, extra=2)
    assert refill.start() == 4
    assert refill.start() == 0
    refill.ended(kept=False)
    assert refill.start() == 1
    for _ in range(3):
        refill.ended(kept=False)
    assert refill.start() == 1
    refill.ended(kept=True)
    assert (refill.start(), refill.missing) == (0, 3)


def test_bad_settings_are_named() -> None:
    with pytest.raises(ConfigError, match=r"refill\.wanted must be at least 1, not 0"):
        Refill(0, 1)
    with pytest.raises(ConfigError, match=r"refill\.extra must be at least 0, not -1"):
        Refill(1, -1)


EVENT = st.sampled_from(["kept", "dropped", "back"])


@given(wanted=st.integers(1, 6), extra=st.integers(0, 6), events=st.lists(EVENT, max_size=60))
@settings(max_examples=150)
def test_it_never_exceeds_its_budget_and_comes_to_an_end(wanted: int, extra: int, events: list[str]) -> None:
    refill, under_way, turns = Refill(wanted, extra), 0, 0
    stream = iter([*events, *["dropped"] * 100])
    while under_way or (taken := refill.start()):
        under_way += 0 if under_way else taken
        turns += 1
        assert turns < 4 * (wanted + extra) + 4
        event = next(stream)
        under_way -= 1
        refill.unstarted() if event == "back" else refill.ended(kept=event == "kept")
        assert refill.kept + refill.dropped <= wanted + extra
        assert refill.kept <= wanted


@given(wanted=st.integers(1, 6), extra=st.integers(0, 6))
@settings(max_examples=50)
def test_giving_back_for_ever_ends_too(wanted: int, extra: int) -> None:
    refill, turns = Refill(wanted, extra), 0
    while taken := refill.start():
        refill.unstarted(taken)
        turns += 1
        assert turns <= wanted + extra + 1
    assert refill.missing == wanted
