"""The two-sided score: its weights, and a gate that decides by it."""

from __future__ import annotations

import math

import pytest

from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import GateDecision, Reason, judge
from selective_rollout.gate.group import GroupGate
from selective_rollout.gate.registry import GateRegistry
from selective_rollout.gate.score import TwoSidedScore


def score(*features: str, **changes: object) -> TwoSidedScore:
    """Equal weights: each unit of a feature doubles the odds of either kind of zero variance."""
    names = features or ("repeat_rate",)
    ones = (1.0,) * len(names)
    fields: dict[str, object] = {
        "features": names,
        "centre": (0.0,) * len(names),
        "scale": ones,
        "fail": tuple(math.log(2) * one for one in ones),
        "success": tuple(math.log(2) * one for one in ones),
        "fail_intercept": 0.0,
        "success_intercept": 0.0,
    }
    return TwoSidedScore(**{**fields, **changes})  # type: ignore[arg-type]


class TestWeights:
    def test_the_probability_is_what_neither_side_takes(self) -> None:
        assert score().p_signal([0.0]) == pytest.approx(1 / 3)
        assert score().p_signal([1.0]) == pytest.approx(1 / 5)
        sided = score(success=(-math.log(2),), success_intercept=math.log(4))
        assert sided.p_signal([1.0]) == pytest.approx(1 / (1 + 2 + 2))

    def test_features_are_standardised(self) -> None:
        assert score(centre=(10.0,), scale=(5.0,)).p_signal([15.0]) == pytest.approx(1 / 5)

    def test_an_unknown_feature_makes_the_score_unknown(self) -> None:
        assert score("repeat_rate", "distance").p_signal([0.1, None]) is None

    @pytest.mark.parametrize("value", [1e6, -1e6])
    def test_extreme_values_stay_probabilities(self, value: float) -> None:
        p = score(fail=(1.0,), success=(-1.0,)).p_signal([value])
        assert p is not None
        assert 0.0 <= p <= 1.0

    def test_plain_data_round_trips(self) -> None:
        weights = score("repeat_rate", "distance")
        assert TwoSidedScore.from_dict(weights.to_dict()) == weights

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"features": ()}, "must name each signal once"),
            ({"features": ("a", "a")}, "must name each signal once"),
            ({"scale": (0.0,)}, "score.scale must be above 0"),
            ({"fail": (1.0, 2.0)}, "score.fail must hold 1 numbers, one per feature"),
            ({"fail": (math.nan,)}, "score.fail must be finite, not nan"),
            ({"centre": (True,)}, "score.centre must be finite, not True"),
            ({"fail_intercept": math.inf}, "score.fail_intercept must be finite"),
            ({"success_intercept": "0"}, "score.success_intercept must be finite, not '0'"),
        ],
    )
    def test_bad_weights_are_refused(self, change: dict[str, object], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            score(**change)

    def test_unknown_and_missing_keys_are_named(self) -> None:
        plain = score().to_dict()
        with pytest.raises(ConfigError, match=r"gate\.toml: unknown key module"):
            TwoSidedScore.from_dict({**plain, "module": "os:system"}, where="gate.toml")
        with pytest.raises(ConfigError, match="missing key scale, fail"):
            TwoSidedScore.from_dict({k: v for k, v in plain.items() if k not in ("scale", "fail")})
        with pytest.raises(ConfigError, match="features must be a list of names"):
            TwoSidedScore.from_dict({**plain, "features": "distance"})


def play(gate: GroupGate, rows: list[str], **reply: object) -> GateDecision:
    """Report rows of one-letter actions in lockstep."""
    decision = None
    for k in range(max(map(len, rows))):
        for rollout, row in enumerate(rows):
            if k < len(row):
                decision = gate.report(rollout, row[k], **reply)  # type: ignore[arg-type]
    assert decision is not None
    return decision


class TestGate:
    def test_it_fires_below_tau_whatever_the_distance(self) -> None:
        rule = GateConfig(start_step=4, tau=0.25, score=score())
        decision = play(GroupGate(rule, 2), ["aaaa", "bbbb"])
        assert decision.fires
        assert decision.distance == 1.0
        assert decision.p_signal == pytest.approx(1 / (1 + 2 * 2**0.75))
        assert decision.compared == decision.p_signal
        assert decision.facts is not None
        assert decision.facts.features == (0.75,)

    def test_tau_is_strict_and_clipped(self) -> None:
        at_zero = score().p_signal([0.0])
        assert at_zero is not None
        rule = GateConfig(start_step=2, tau=at_zero, score=score())
        assert play(GroupGate(rule, 2), ["ab", "ab"]).reason is Reason.SCORE
        above = GateConfig(start_step=2, tau=0.34, score=score())
        assert play(GroupGate(above, 2), ["ab", "ab"]).fires
        assert not play(GroupGate(above, 2, tau=0.3), ["ab", "ab"]).fires

    def test_a_feature_that_nobody_feeds_keeps_the_group_and_says_so(self) -> None:
        rule = GateConfig(start_step=2, tau=0.9, score=score("observation_novelty"))
        decision = play(GroupGate(rule, 2), ["ab", "ab"])
        assert decision.reason is Reason.SCORE_UNKNOWN
        assert decision.p_signal is None
        assert play(GroupGate(rule, 2), ["ab", "ab"], observation="same").fires
        assert play(GroupGate(rule, 2), ["ab", "ab"], state_key="same").fires

    def test_errors_and_history_are_features_too(self) -> None:
        rule = GateConfig(start_step=1, tau=0.9, score=score("error_share", "history_p_zero_variance"))
        gate = GroupGate(rule, 2, history_p=0.5)
        gate.report(0, "a", is_error=True)
        decision = gate.finish(1, action="b", is_error=False)
        assert decision.facts is not None
        assert decision.facts.features == (0.5, 0.5)

    def test_vetoes_hold_as_ever(self) -> None:
        rule = GateConfig(start_step=3, tau=0.9, score=score())
        gate = GroupGate(rule, 3)
        gate.finish(0, reward=1.0, action="a")
        gate.finish(1, reward=0.0, action="a")
        assert play(gate, ["", "", "aaa"]).reason is Reason.KNOWN_REWARDS_DIFFER

    def test_members_far_ahead_are_read_up_to_the_check(self) -> None:
        rule = GateConfig(start_step=2, tau=0.9, score=score("termination_fraction", "repeat_rate"))
        gate = GroupGate(rule, 3)
        for action in "abbb":
            gate.report(0, action)
        gate.finish(0)
        gate.finish(1, action="a")
        gate.report(2, "a")
        decision = gate.report(2, "a")
        assert decision.facts is not None
        assert decision.facts.features == (pytest.approx(1 / 3), pytest.approx(0.5 / 3))

    def test_a_decision_replays_from_its_facts(self) -> None:
        rule = GateConfig(start_step=2, tau=0.3, score=score())
        for rows in (["aa", "aa"], ["ab", "ab"]):
            decision = play(GroupGate(rule, 2), rows)
            assert decision.facts is not None
            assert judge(rule, decision.facts) is decision.reason
            assert rule.score is not None
            assert rule.score.p_signal(decision.facts.features) == decision.p_signal

    def test_an_unknown_signal_is_named(self) -> None:
        with pytest.raises(ConfigError, match="unknown signal 'vibes'"):
            GroupGate(GateConfig(score=score("vibes")), 2)

    def test_without_a_score_nothing_of_the_replies_is_kept(self) -> None:
        gate = GroupGate(GateConfig(start_step=1), 2)
        decision = play(gate, ["a", "a"], observation="x", is_error=False)
        assert decision.facts is not None
        assert decision.facts.features == ()
        assert (decision.p_signal, decision.compared) == (None, 0.0)

    def test_the_registry_passes_the_facts_on(self) -> None:
        rule = GateConfig(start_step=1, tau=0.9, score=score("error_share", "history_p_zero_variance"))
        registry = GateRegistry(rule)
        registry.open("g", 2, history_p=1.0)
        registry.report("g", 0, "a", observation="o", state_key="s", is_error=True)
        decision = registry.finish("g", 1, action="b", is_error=True)
        assert decision.facts is not None
        assert decision.facts.features == (1.0, 1.0)
