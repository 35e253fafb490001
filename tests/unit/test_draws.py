"""Draws from ids."""

from __future__ import annotations

from selective_rollout.draws import is_audited, sampling_seed, stable_fraction, stable_order


def test_fractions_are_uniform_and_the_same_everywhere() -> None:
    draws = [stable_fraction("audit", 0, f"g{i}") for i in range(2000)]
    assert all(0 <= draw < 1 for draw in draws)
    assert abs(sum(draws) / len(draws) - 0.5) < 0.03
    assert stable_fraction("audit", 0, "g1") == 0.27319300213528963


def test_parts_do_not_run_together() -> None:
    assert stable_fraction("ab", "c") != stable_fraction("a", "bc")


def test_groups_of_one_prompt_sample_differently_and_siblings_count_up() -> None:
    seeds = [sampling_seed(0, "t", i) for i in range(4)]
    assert [seed - seeds[0] for seed in seeds] == [0, 1, 2, 3]
    assert not set(seeds) & {sampling_seed(0, "t@2", i) for i in range(4)}
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_audits_are_drawn_at_their_rate() -> None:
    drawn = sum(is_audited(0, f"g{i}", 0.2) for i in range(2000))
    assert 340 < drawn < 460
    assert not is_audited(0, "g", 0.0)
    assert is_audited(0, "g", 1.0)


def test_every_member_may_come_first() -> None:
    firsts = {stable_order(8, "survivor", f"g{i}")[0] for i in range(200)}
    assert firsts == set(range(8))
    assert sorted(stable_order(8, "x")) == list(range(8))
