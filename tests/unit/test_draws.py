"""Draws from ids."""

from __future__ import annotations

from selective_rollout.draws import stable_fraction, stable_order


def test_fractions_are_uniform_and_the_same_everywhere() -> None:
    draws = [stable_fraction("audit", 0, f"g{i}") for i in range(2000)]
    assert all(0 <= draw < 1 for draw in draws)
    assert abs(sum(draws) / len(draws) - 0.5) < 0.03
    assert stable_fraction("audit", 0, "g1") == 0.27319300213528963


def test_parts_do_not_run_together() -> None:
    assert stable_fraction("ab", "c") != stable_fraction("a", "bc")


def test_every_member_may_come_first() -> None:
    firsts = {stable_order(8, "survivor", f"g{i}")[0] for i in range(200)}
    assert firsts == set(range(8))
    assert sorted(stable_order(8, "x")) == list(range(8))
