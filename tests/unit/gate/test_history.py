"""A prompt's earlier rewards."""

from __future__ import annotations

import math
from math import comb
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selective_rollout.errors import ConfigError
from selective_rollout.gate.history import PromptHistory
from selective_rollout.gate.priors import BetaPrior, fit_beta_prior


def recorded(*groups: list[float | None]) -> PromptHistory:
    history = PromptHistory()
    for number, rewards in enumerate(groups):
        history.record("t", f"t@{number}", rewards)
    return history


def test_last_rewards_come_newest_last() -> None:
    history = recorded([0.0, 1.0], [1.0, 1.0, 1.0])
    assert history.last("t", 4) == (1.0, 1.0, 1.0, 1.0)
    assert history.last("t", 9) == (0.0, 1.0, 1.0, 1.0, 1.0)
    assert history.last("t", 0) == ()
    assert history.last("unknown", 3) == ()


def test_rewards_of_cut_groups_and_unscored_members_never_enter() -> None:
    history = recorded([None, 1.0, math.nan])
    history.record("t", "cut", [0.0, 0.0], was_cut=True)
    history.record("t", "nothing", [None, None])
    assert history.last("t", 9) == (1.0,)


def test_old_policy_versions_are_forgotten() -> None:
    history = PromptHistory(max_version_gap=2)
    for version in range(5):
        history.record("t", f"g{version}", [float(version)], policy_version=version)
    assert history.last("t", 9) == (2.0, 3.0, 4.0)


def test_only_so_many_visits_are_kept() -> None:
    history = PromptHistory(keep=2)
    for number in range(4):
        history.record("t", f"g{number}", [float(number)])
    assert history.last("t", 9) == (2.0, 3.0)


class TestPrediction:
    def test_without_history_nothing_is_known(self) -> None:
        assert PromptHistory().p_zero_variance("t", 8) is None

    def test_extreme_prompts_are_likely_to_stay_so(self) -> None:
        history = PromptHistory()
        for number in range(10):
            history.record("easy", f"e{number}", [1.0] * 8)
            history.record("hard", f"h{number}", [0.0] * 8)
            history.record("mixed", f"m{number}", [0.0, 1.0] * 4)
        chances = {task: history.p_zero_variance(task, 8) for task in ("easy", "hard", "mixed")}
        assert chances["easy"] is not None
        assert chances["hard"] is not None
        assert chances["mixed"] is not None
        assert min(chances["easy"], chances["hard"]) > 0.9
        assert chances["mixed"] < 0.05

    def test_newer_visits_weigh_more(self) -> None:
        rising = recorded([0.0] * 4, [1.0] * 4).p_zero_variance("t", 4)
        level = recorded([0.0, 1.0] * 2, [0.0, 1.0] * 2).p_zero_variance("t", 4)
        assert rising is not None
        assert level is not None
        assert rising > level

    @given(st.integers(1, 12), st.integers(1, 8), st.integers(0, 12), st.integers(0, 12))
    def test_whole_counts_agree_with_the_beta_binomial_sum(self, g: int, a: int, s: int, f: int) -> None:
        """For whole parameters the probabilities are ratios of binomial coefficients."""
        prior = BetaPrior(float(a), 2.0)
        a_, b_ = a + s, 2 + f
        all_succeed = comb(a_ + g - 1, g) / comb(a_ + b_ + g - 1, g)
        all_fail = comb(b_ + g - 1, g) / comb(a_ + b_ + g - 1, g)
        expected = min(1.0, all_succeed + all_fail)
        assert prior.p_zero_variance(g, s + f, s) == pytest.approx(expected)

    def test_the_prior_learns_the_spread_between_prompts(self) -> None:
        split = fit_beta_prior([(16.0, 0.0), (16.0, 16.0)] * 20)
        alike = fit_beta_prior([(16.0, 8.0)] * 40)
        assert split.p_zero_variance(8) > 0.8
        assert alike.p_zero_variance(8) < 0.02

    def test_little_or_one_sided_history_falls_back_to_jeffreys(self) -> None:
        assert fit_beta_prior([(8.0, 3.0)]) == BetaPrior(0.5, 0.5)
        assert fit_beta_prior([(8.0, 8.0), (8.0, 8.0)]) == BetaPrior(0.5, 0.5)


class TestSkipping:
    def test_only_prompts_without_signal_are_skipped_and_never_always(self) -> None:
        equal, mixed = recorded([1.0] * 8), recorded([1.0, 0.0] * 4)
        draws = [equal.should_skip("t", f"g{i}", last=8, probability=0.7) for i in range(400)]
        assert 0.6 < sum(draws) / len(draws) < 0.8
        assert not any(mixed.should_skip("t", f"g{i}", last=8, probability=0.9) for i in range(50))
        assert not any(equal.should_skip("t", f"g{i}", last=9, probability=0.9) for i in range(50))

    def test_a_draw_depends_on_the_group_alone(self) -> None:
        history = recorded([1.0] * 4)
        calls = [history.should_skip("t", "g", last=4, probability=0.5, seed=1) for _ in range(5)]
        assert len(set(calls)) == 1

    def test_skipping_for_certain_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"skip probability must be in \[0, 1\)"):
            PromptHistory().should_skip("t", "g", last=4, probability=1.0)
        with pytest.raises(ConfigError, match="looks at 1 reward or more, not 0"):
            PromptHistory().should_skip("t", "g", last=0, probability=0.5)

    def test_rounding_residue_is_no_signal(self) -> None:
        history = recorded([0.35, 0.35000002, 0.35, 0.3499999])
        assert any(history.should_skip("t", f"g{i}", last=4, probability=0.9) for i in range(50))


class TestMergingAndSaving:
    @given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=12), st.integers(0, 12))
    def test_merge_order_does_not_matter_and_groups_count_once(
        self, visits: list[tuple[int, int]], cut: int
    ) -> None:
        def history(rows: list[tuple[int, tuple[int, int]]]) -> PromptHistory:
            built = PromptHistory()
            for group, (reward, version) in rows:
                built.record("t", f"g{group}", [float(reward)], policy_version=version)
            return built

        rows = list(enumerate(visits))
        a, b = history(rows[:cut]), history(rows[max(0, cut - 2) :])
        a2, b2 = history(rows[:cut]), history(rows[max(0, cut - 2) :])
        a.merge(b)
        b2.merge(a2)
        assert a.last("t", 99) == b2.last("t", 99)
        assert len(a.last("t", 99)) == len(rows)
        before = a.to_dict()
        a.merge(b)
        assert a.to_dict() == before

    def test_saved_and_loaded_it_is_the_same(self, tmp_path: Path) -> None:
        history = recorded([0.0, 1.0], [1.0])
        history.save(tmp_path / "history.json")
        loaded = PromptHistory.load(tmp_path / "history.json")
        assert loaded.to_dict() == history.to_dict()
        loaded.record("t", "new", [0.5])
        assert loaded.last("t", 2) == (1.0, 0.5)
        assert list(tmp_path.iterdir()) == [tmp_path / "history.json"]

    def test_its_folder_is_made_and_a_place_that_cannot_be_is_named(self, tmp_path: Path) -> None:
        recorded([1.0]).save(tmp_path / "new" / "history.json")
        assert PromptHistory.load(tmp_path / "new" / "history.json").last("t", 1) == (1.0,)
        with pytest.raises(ConfigError, match=r"history\.json/h\.json: cannot write the prompt history"):
            recorded([1.0]).save(tmp_path / "new" / "history.json" / "h.json")

    @pytest.mark.parametrize("text", ["", "[]", '{"history_version": 99}', '{"history_version": 1}'])
    def test_what_is_no_history_is_named(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "history.json"
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"history\.json"):
            PromptHistory.load(path)


@pytest.mark.parametrize(("name", "value"), [("half_life", 0.0), ("keep", 0)])
def test_bad_settings_are_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"history.{name}"):
        PromptHistory(**{name: value})  # type: ignore[arg-type]


def test_an_empty_copy_counts_on() -> None:
    history = PromptHistory(half_life=2.0, keep=5, max_version_gap=7, success_above=0.1)
    history.record("p", "first", (1, 1))
    copy = history.empty()
    copy.record("p", "second", (0, 0))
    history.merge(copy)
    assert history.last("p", 4) == (1, 1, 0, 0)
    assert {**copy.to_dict(), "tasks": {}} == {**history.to_dict(), "tasks": {}}
