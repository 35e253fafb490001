"""Curves of many groups in one pass: to the last bit what one group after the other gives."""

from __future__ import annotations

import string
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.analysis import batch_curve
from selective_rollout.analysis.batch_curve import mean_curves, renamed
from selective_rollout.analysis.curve import MemberRow, distance_curve, member_rows, rows_curve
from selective_rollout.distance import GroupDistance
from selective_rollout.distance.reference import mean_distance
from selective_rollout.types import Group, Padding, Rollout, RolloutStatus, Step

ROWS = st.tuples(st.text("ab", max_size=9), st.booleans())
GROUPS = st.lists(st.lists(ROWS, max_size=5), max_size=6)
PADDING = st.sampled_from(["end", "none"])


def members(rows: list[tuple[str, bool]]) -> list[MemberRow]:
    return [MemberRow(text, len(text) if leaves else None) for text, leaves in rows]


def oracle(rows: list[tuple[str, bool]], padding: Padding) -> list[Fraction]:
    """Textbook distances of the members present at each position, up to where fewer than two are."""
    curve = []
    for k in range(1, max((len(text) for text, _ in rows), default=0) + 1):
        present = [text for text, leaves in rows if len(text) >= k or not leaves]
        mean = mean_distance(present, k, padding)
        if mean is None:
            break
        curve.append(mean)
    return curve


@settings(max_examples=80)
@given(GROUPS, PADDING)
def test_every_mean_is_the_exact_fraction_rounded_once(
    groups: list[list[tuple[str, bool]]], padding: Padding
) -> None:
    curves = mean_curves([members(rows) for rows in groups], padding)
    assert [curve.tolist() for curve in curves] == [
        [float(mean) for mean in oracle(rows, padding)] for rows in groups
    ]


@settings(max_examples=25)
@given(
    st.lists(
        st.lists(st.text(string.ascii_letters[:6], min_size=1, max_size=200), min_size=2, max_size=4),
        min_size=1,
        max_size=4,
    ),
    PADDING,
)
def test_rows_of_several_words_agree_with_the_live_distance(
    groups: list[list[str]], padding: Padding
) -> None:
    curves = mean_curves([[MemberRow(text, None) for text in rows] for rows in groups], padding)
    for rows, curve in zip(groups, curves, strict=True):
        live = GroupDistance(len(rows), padding)
        for member, text in enumerate(rows):
            for symbol in text:
                live.push(member, symbol)
            live.finish(member)
        live.advance_to(max(map(len, rows)))
        assert curve.tolist() == live.curve()


@settings(max_examples=40)
@given(GROUPS, PADDING, st.integers(1, 12))
def test_how_groups_are_put_together_changes_nothing(
    groups: list[list[tuple[str, bool]]], padding: Padding, size: int
) -> None:
    rows = [members(group) for group in groups]
    together = mean_curves(rows, padding)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_curve, "_PAIRS", size)
        patch.setattr(batch_curve, "_LONGEST", size)
        apart = mean_curves(rows, padding)
    assert [curve.tolist() for curve in together] == [curve.tolist() for curve in apart]


@settings(max_examples=40)
@given(GROUPS, PADDING)
def test_one_group_has_the_same_curve_without_numpy(
    groups: list[list[tuple[str, bool]]], padding: Padding
) -> None:
    for rows in groups:
        assert rows_curve(members(rows), padding) == mean_curves([members(rows)], padding)[0].tolist()


def recorded(*actions: list[str], status: RolloutStatus = RolloutStatus.FINISHED) -> Group:
    rollouts = tuple(
        Rollout(i, tuple(Step(k, a) for k, a in enumerate(row, start=1)), status)
        for i, row in enumerate(actions)
    )
    return Group("g", len(rollouts), rollouts, "t")


def test_recorded_groups_and_their_tool_names() -> None:
    group = recorded(["look", "take mug 1"], ["look", "take mug 2"], ["look", "go", "look"])
    assert mean_curves([member_rows(group)])[0].tolist() == distance_curve(group) == [0.0, 1 / 2, 5 / 9]
    names = mean_curves([renamed(member_rows(group), lambda action: action.split()[0])])
    assert names[0].tolist() == [0.0, 1 / 3, 4 / 9]


def test_members_that_were_lost_or_cut_leave_at_their_last_step() -> None:
    group = recorded(["a", "b", "c"], ["a", "x"], status=RolloutStatus.CUT)
    assert distance_curve(group) == mean_curves([member_rows(group)])[0].tolist() == [0.0, 0.5]


def test_of_two_members_that_never_acted_one_may_leave() -> None:
    rows = members([("", True), ("", False), ("a", False), ("ab", False)])
    assert mean_curves([rows], "none")[0].tolist() == rows_curve(rows, "none") == [2 / 3, 5 / 6]


def test_groups_without_pairs_have_no_curve() -> None:
    groups = [recorded(), recorded(["a"]), recorded([], [])]
    assert [curve.tolist() for curve in mean_curves(list(map(member_rows, groups)))] == [[]] * 3
