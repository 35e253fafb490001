"""`GroupGate`: one group's decision, position by position."""

from __future__ import annotations

import math

import pytest

from selective_rollout.errors import ConfigError, GroupError, RewardError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import Reason
from selective_rollout.gate.group import GroupGate
from selective_rollout.types import END, SamplingInfo


def play(gate: GroupGate, actions: list[list[str]]) -> None:
    """Report all actions in lockstep."""
    for k in range(max(map(len, actions))):
        for rollout, row in enumerate(actions):
            if k < len(row):
                gate.report(rollout, row[k])


def test_a_converged_group_fires_at_start_step_and_not_before() -> None:
    gate = GroupGate(GateConfig(start_step=3), 3)
    for _ in range(2):
        for rollout in range(3):
            decision = gate.report(rollout, "look")
            assert not decision.fires
            assert decision.reason is Reason.BEFORE_START_STEP
    assert gate.report(0, "look").reason is Reason.WAITING
    assert gate.report(1, "look").reason is Reason.WAITING
    decision = gate.report(2, "look")
    assert decision.fires
    assert (decision.step, decision.distance) == (3, 0.0)
    assert gate.fired is decision
    assert gate.report(0, "anything").fires, "a fired group stays fired"


def test_a_diverged_group_is_checked_once_and_kept() -> None:
    gate = GroupGate(GateConfig(start_step=2), 2)
    play(gate, [["a", "b"], ["a", "c"]])
    [decision] = gate.checks
    assert not decision.fires
    assert decision.reason is Reason.DISTANCE
    assert decision.distance == 0.5
    assert gate.report(0, "d").reason is Reason.CHECKED
    assert gate.next_check is None


def test_rechecks_fire_at_the_first_position_below_tau() -> None:
    gate = GroupGate(GateConfig(start_step=2, check_every=2, tau=0.3), 2)
    play(gate, [["x", "a", "a", "a", "a", "a"], ["y", "a", "a", "a", "a", "a"]])
    assert [(d.step, d.fires) for d in gate.checks] == [(2, False), (4, True)]
    assert gate.fired is not None
    assert gate.fired.distance == 0.25


def test_checks_that_become_decidable_together_are_evaluated_in_order() -> None:
    gate = GroupGate(GateConfig(start_step=2, check_every=1, tau=0.3), 3)
    for action in ("x", "a", "a", "a", "a"):
        gate.report(0, action)
    for action in ("y", "a", "a", "a", "a"):
        gate.report(1, action)
    assert gate.checks == ()
    gate.fail(2)
    assert [(d.step, d.fires) for d in gate.checks] == [(2, False), (3, False), (4, True)]


def test_the_distance_reads_the_first_k_actions_even_if_members_are_further() -> None:
    gate = GroupGate(GateConfig(start_step=2), 2)
    for action in ("a", "b", "somewhere", "else"):
        gate.report(0, action)
    gate.report(1, "a")
    assert gate.report(1, "b").distance == 0.0


def test_before_start_step_groups_that_open_alike_are_let_through() -> None:
    gate = GroupGate(GateConfig(), 3)
    for rollout in range(3):
        decision = gate.report(rollout, "look")
    assert not decision.fires
    assert decision.reason is Reason.BEFORE_START_STEP


def test_end_padding_hides_a_difference_that_known_rewards_reveal() -> None:
    gate = GroupGate(GateConfig(), 2)
    gate.finish(0, reward=1.0, action="x1")
    decision = gate.finish(1, reward=0.0, action="y1")
    assert decision.distance == pytest.approx(0.1)
    assert not decision.fires
    assert decision.reason is Reason.KNOWN_REWARDS_DIFFER


def test_without_padding_finished_rollouts_keep_their_difference() -> None:
    gate = GroupGate(GateConfig(padding="none"), 2)
    gate.finish(0, action="x1")
    assert gate.finish(1, action="y1").distance == 1.0


def test_equal_prefixes_fire_whatever_the_rewards_will_be() -> None:
    gate = GroupGate(GateConfig(tau=1e-9), 8)
    play(gate, [[f"go {t}" for t in range(10)]] * 8)
    assert gate.fired is not None
    assert gate.fired.distance == 0.0


def test_tau_zero_never_fires() -> None:
    gate = GroupGate(GateConfig(tau=0.0, start_step=2), 2)
    play(gate, [["a", "b"], ["a", "b"]])
    assert gate.fired is None


def test_a_group_of_one_never_fires_and_has_no_distance() -> None:
    gate = GroupGate(GateConfig(start_step=3), 1)
    for action in "abc":
        decision = gate.report(0, action)
    assert decision.reason is Reason.SINGLETON
    assert decision.distance is None


def test_groups_without_extracted_actions_are_flagged_not_cut() -> None:
    gate = GroupGate(GateConfig(start_step=2), 2)
    play(gate, [["", ""], ["", ""]])
    assert [d.reason for d in gate.checks] == [Reason.NO_ACTIONS]


class TestFailures:
    def test_a_lost_sandbox_is_out_of_the_distance(self) -> None:
        gate = GroupGate(GateConfig(start_step=4), 8)
        for rollout in range(8):
            for action in "abc":
                gate.report(rollout, action)
        gate.fail(0)
        for rollout in range(1, 8):
            decision = gate.report(rollout, "d")
        assert decision.fires
        assert decision.distance == 0.0
        assert decision.facts is not None
        assert decision.facts.members == tuple(range(1, 8))

    def test_a_failure_beyond_k_does_not_change_the_decision_at_k(self) -> None:
        gate = GroupGate(GateConfig(start_step=2, check_every=1), 3)
        for action in "axy":
            gate.report(0, action)
        gate.fail(0)
        for rollout in (1, 2):
            for action in "abc":
                gate.report(rollout, action)
        at_two, at_three, *_ = gate.checks
        assert at_two.facts is not None
        assert at_two.facts.members == (0, 1, 2)
        assert at_three.facts is not None
        assert at_three.facts.members == (0, 1, 2)
        assert gate.fired is None

    def test_too_few_members_never_fire(self) -> None:
        gate = GroupGate(GateConfig(start_step=1), 4)
        gate.fail(0)
        gate.fail(1)
        gate.fail(2)
        assert gate.report(3, "a").reason is Reason.TOO_FEW_MEMBERS

    def test_min_members_can_be_raised(self) -> None:
        gate = GroupGate(GateConfig(start_step=1, min_members=4), 4)
        gate.fail(0)
        for rollout in (1, 2, 3):
            decision = gate.report(rollout, "a")
        assert decision.reason is Reason.TOO_FEW_MEMBERS


class TestVetoes:
    def test_nobody_running_leaves_nothing_to_save(self) -> None:
        gate = GroupGate(GateConfig(start_step=2), 2)
        gate.report(0, "a")
        gate.report(1, "a")
        gate.finish(0, reward=1.0, action="b")
        assert gate.finish(1, reward=1.0, action="b").reason is Reason.NOBODY_RUNNING

    def test_only_members_finished_at_k_may_veto_at_k(self) -> None:
        gate = GroupGate(GateConfig(start_step=2), 3)
        for rollout in (0, 1):
            for action in "aaa":
                gate.report(rollout, action)
            gate.finish(rollout, reward=float(rollout))
        gate.report(2, "a")
        decision = gate.report(2, "a")
        assert decision.fires, "rewards earned after k belong to no decision at k"
        assert gate.confirm().reason is Reason.LATE_VETO

    def test_a_late_reward_turns_a_cut_into_keep_once_and_for_good(self) -> None:
        gate = GroupGate(GateConfig(start_step=2, check_every=1), 4)
        for rollout in (0, 1):
            gate.report(rollout, "a")
            gate.finish(rollout, action="a")
        for rollout in (2, 3):
            gate.report(rollout, "a")
            decision = gate.report(rollout, "a")
        assert decision.fires
        gate.score(0, 1.0)
        assert gate.confirm().fires, "one known reward contradicts nothing"
        gate.score(1, 0.0)
        assert gate.confirm().reason is Reason.LATE_VETO
        assert not gate.report(2, "a").fires
        assert gate.fired is decision, "what fired stays on record"

    def test_answers_veto_at_inference_only(self) -> None:
        for outcome, fires in (("drop", True), ("survivor", False)):
            gate = GroupGate(GateConfig(start_step=2, outcome=outcome), 3)  # type: ignore[arg-type]
            for rollout in (0, 1):
                gate.report(rollout, "look")
                gate.finish(rollout, answer=f"place {rollout}", action="answer")
            gate.report(2, "look")
            assert gate.report(2, "answer").fires is fires

    def test_same_seed_everywhere_is_no_convergence(self) -> None:
        sampling = [SamplingInfo(seed=0, temperature=0.8)] * 4
        gate = GroupGate(GateConfig(start_step=3), 4, sampling=sampling)
        play(gate, [["a", "b", "c"]] * 4)
        assert gate.sampling_verdict == "seed"
        assert [(d.distance, d.reason) for d in gate.checks] == [(0.0, Reason.IDENTICAL_SAMPLING)]

    def test_a_greedy_group_is_known_as_such_before_any_step(self) -> None:
        gate = GroupGate(GateConfig(start_step=2), 8, sampling=[SamplingInfo(temperature=0.0)] * 8)
        assert gate.sampling_verdict == "temperature_zero"
        play(gate, [["a", "b"]] * 8)
        assert gate.fired is None

    @pytest.mark.parametrize(
        ("history", "fires"),
        [
            ((1.0, 1.0, 1.0), True),
            ((0.0, 1.0, 1.0, 1.0), True),
            ((1.0, 0.0, 1.0), False),
            ((1.0,), False),
            ((1.0, 1.0, math.nan), False),
        ],
    )
    def test_mixed_or_missing_history_vetoes(self, history: tuple[float, ...], fires: bool) -> None:
        gate = GroupGate(GateConfig(start_step=1, history_mixed=3), 2, history=history)
        gate.report(0, "a")
        assert gate.report(1, "a").fires is fires

    def test_history_is_not_read_by_a_rule_that_does_not_ask_for_it(self) -> None:
        gate = GroupGate(GateConfig(start_step=1), 2, history=[1.0, 0.0])
        gate.report(0, "a")
        decision = gate.report(1, "a")
        assert decision.fires
        assert decision.facts is not None
        assert decision.facts.history is None


class TestLevels:
    def test_characters_see_alikeness_where_actions_see_none(self) -> None:
        page = 'page="https://shop.example/category/garden/tools/list?sort=price"'
        actions = [[f"click(element_id={7 * t + g}, {page})" for t in range(10)] for g in range(4)]
        by_action = GroupGate(GateConfig(tau=0.05), 4)
        play(by_action, actions)
        assert by_action.checks[0].distance == 1.0
        by_character = GroupGate(GateConfig.tutorial(), 4)
        play(by_character, actions)
        assert by_character.fired is not None
        assert by_character.fired.distance == pytest.approx(0.013, abs=0.004)

    def test_tokens_are_symbols_of_their_own(self) -> None:
        gate = GroupGate(GateConfig(level="token", start_step=2, tau=0.3), 2)
        for token in (0, 7):
            gate.report(0, token)
        gate.report(1, 0)
        assert gate.report(1, 9).distance == 0.5

    def test_the_tutorial_rule_is_labelled_unsafe(self) -> None:
        assert GateConfig.tutorial().is_unsafe
        assert not GateConfig.paper().is_unsafe


class TestOwnThreshold:
    def test_a_groups_own_tau_can_only_tighten(self) -> None:
        assert GroupGate(GateConfig(tau=0.12), 2, tau=0.5).tau == 0.12
        assert GroupGate(GateConfig(tau=0.12), 2, tau=0.05).tau == 0.05

    def test_it_must_be_a_threshold(self) -> None:
        with pytest.raises(ConfigError, match=r"tau must be a number in \[0, 1\]"):
            GroupGate(GateConfig(), 2, tau=float("nan"))


class TestMisuse:
    def test_unknown_rollouts_are_named(self) -> None:
        gate = GroupGate(GateConfig(), 4, group_id="g7")
        with pytest.raises(GroupError, match="group 'g7' has rollouts 0 to 3; there is no rollout 4"):
            gate.report(4, "a")

    def test_an_ended_rollout_takes_no_more_steps(self) -> None:
        gate = GroupGate(GateConfig(), 2, group_id="g")
        gate.finish(0)
        for call in (lambda: gate.report(0, "a"), lambda: gate.finish(0), lambda: gate.fail(0)):
            with pytest.raises(GroupError, match="rollout 0 of group 'g' has already finished"):
                call()

    def test_an_action_that_cannot_be_compared_is_no_step(self) -> None:
        gate = GroupGate(GateConfig(start_step=2), 2)
        with pytest.raises(ConfigError, match="END is not a symbol"):
            gate.report(0, END)
        assert gate.actions_of(0) == 0

    def test_a_reward_before_the_end_is_refused(self) -> None:
        with pytest.raises(GroupError, match="has not finished"):
            GroupGate(GateConfig(), 2).score(0, 1.0)

    def test_a_reward_that_is_no_number_is_named(self) -> None:
        with pytest.raises(RewardError, match="group 'g' rollout 1"):
            GroupGate(GateConfig(), 2, group_id="g").finish(1, reward="high")

    def test_an_empty_group_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="group_size must be at least 1"):
            GroupGate(GateConfig(), 0)

    def test_a_disabled_gate_stays_silent(self) -> None:
        gate = GroupGate(GateConfig(start_step=1), 2)
        gate.disable()
        gate.report(0, "a")
        assert gate.report(1, "a").reason is Reason.DISABLED
