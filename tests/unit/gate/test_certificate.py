"""What a certificate claims, and which rules it covers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from selective_rollout.errors import ConfigError
from selective_rollout.gate.certificate import (
    Certificate,
    Stratum,
    Workload,
    accepts,
    workload_differences,
)
from selective_rollout.gate.config import VETOES, GateConfig
from selective_rollout.gate.score import TwoSidedScore

RULE = GateConfig(start_step=10, tau=0.12, check_every=5, history_mixed=4, vetoes=VETOES[:2])
SURVIVOR = replace(RULE, outcome="survivor")
SCORE = TwoSidedScore(("distance",), (0.4,), (0.2,), (-1.0,), (-2.0,), 0.1, -0.3)


def certificate(rule: GateConfig = RULE, **changes: Any) -> Certificate:
    fields: dict[str, Any] = {
        "alpha": 0.15,
        "delta": 0.05,
        "n_signal": 61,
        "false_cuts": 4,
        "cuts": 21,
        "groups": 100,
        "grid": "0.005:0.300:0.005",
        "choose_share": 0.4,
        "split_seed": 0,
        "workload": Workload(group_size=8),
    }
    return Certificate(rule, **{**fields, **changes})


class TestClaim:
    def test_the_bound_is_the_exact_one(self) -> None:
        made = certificate()
        assert made.confidence == 0.95
        assert made.bound == pytest.approx(0.14380495454117287)

    @pytest.mark.parametrize(
        "changes",
        [
            {"false_cuts": 5},
            {"alpha": 0.10},
            {"false_cuts": 70},
            {"chains": 4},
            {"recertification": 3, "audit_rate": 1.0},
        ],
    )
    def test_counts_that_do_not_carry_the_claim_are_refused(self, changes: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="do not support alpha"):
            certificate(**changes)

    @pytest.mark.parametrize("name", ["alpha", "delta"])
    def test_probabilities_are_probabilities(self, name: str) -> None:
        with pytest.raises(ConfigError, match=f"certificate.{name} must be strictly between 0 and 1"):
            certificate(**{name: 1.0})

    def test_a_renewal_from_audits_is_bounded_through_the_thinning(self) -> None:
        made = certificate(recertification=1, audit_rate=0.5, n_signal=100, false_cuts=2, alpha=0.15)
        assert made.level == 0.025
        assert made.bound < 0.15
        assert made.bound > 2 * 0.02, "half of the wrong cuts went unseen"

    def test_strata_have_their_own_thresholds(self) -> None:
        strata = (Stratum("clean", 0.12, 30, 0, 5, 60), Stratum("heat", 0.05, 40, 1, 6, 60))
        made = certificate(n_signal=70, false_cuts=1, strata=strata, stratum_key="type", chains=2)
        assert made.tau_for({"type": "clean"}) == 0.12
        assert made.tau_for({"type": "heat"}) == 0.05
        assert made.tau_for({"type": "cool"}) == made.tau_for({}) == 0.0
        assert "for all strata at once" in made.describe()
        assert "per stratum, not for all" in replace(made, joint=False).describe().replace("\n", " ")
        assert accepts(made, RULE) == ["tau: it is certified per type; give each group its own"]
        assert accepts(made, RULE, per_stratum=True) == []
        with pytest.raises(ConfigError, match="stratum_key and the strata belong together"):
            certificate(strata=strata)

    def test_without_strata_every_group_has_the_same_threshold(self) -> None:
        assert certificate().tau_for({"type": "clean"}) == 0.12

    def test_a_bound_on_answers_is_over_all_groups(self) -> None:
        made = certificate(SURVIVOR, risk="answer", n_signal=None, alpha=0.1)
        assert (made.trials, certificate().trials) == (100, 61)
        assert made.bound == pytest.approx(0.08919, abs=1e-5)
        text = made.describe().replace("\n", " ")
        assert (
            "at most 10% of all groups are cut and then answered differently than by their full vote" in text
        )
        assert "21 of 100 observed, and 4 of the survivors would have answered differently" in text
        assert "no audit watches answers" in text
        assert made.alarm(0.1) is None, "audits are booked by rewards"
        assert certificate().alarm(0.1) is not None
        assert certificate().alarm(0.0) is None

    @pytest.mark.parametrize(
        ("rule", "changes", "message"),
        [
            (SURVIVOR, {"n_signal": None, "alpha": 0.08}, "4 false cuts of 100 groups do not support"),
            (SURVIVOR, {"n_signal": 61}, "certificate.n_signal: signal-bearing groups are counted with"),
            (RULE, {"n_signal": None}, "the rule's outcome must be survivor, not 'drop'"),
            (SURVIVOR, {"n_signal": None, "risk": "signal"}, "certificate.n_signal"),
            (SURVIVOR, {"n_signal": None, "risk": "both"}, "certificate.risk must be signal or answer"),
            (SURVIVOR, {"n_signal": None, "recertification": 1, "audit_rate": 1.0}, "cannot be renewed"),
        ],
    )
    def test_a_bound_on_answers_needs_answers(
        self, rule: GateConfig, changes: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            certificate(rule, **{"risk": "answer", **changes})

    def test_it_says_that_it_is_about_the_recorded_policy(self) -> None:
        text = certificate().describe().replace("\n", " ")
        assert "With 95% confidence this gate cuts at most 15% of the signal-bearing groups" in text
        assert "It certifies the policy that was recorded" in text
        assert "4 of 61" in text


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"tau": 0.119},
        {"tau": 0.0},
        {"check_every": 10},
        {"check_every": None},
        {"start_step": 15},
        {"start_step": 20, "check_every": 15},
        {"vetoes": VETOES},
        {"min_members": 4},
        {"min_members": 8},
        {"history_mixed": 8},
        {"separator": "|"},
    ],
)
def test_rules_that_cut_a_subset_are_covered(change: dict[str, Any]) -> None:
    assert accepts(certificate(), replace(RULE, **change)) == []


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"tau": 0.121}, "tau: 0.121 is above the certified 0.12"),
        ({"start_step": 9}, "start_step, check_every: checks at step 9 and every 5 steps are not all among"),
        ({"start_step": 12}, "start_step"),
        ({"check_every": 3}, "start_step, check_every"),
        ({"check_every": 1}, "start_step, check_every"),
        ({"level": "token"}, "level: 'token' instead of the certified 'action'"),
        ({"padding": "none"}, "padding"),
        ({"outcome": "survivor"}, "outcome"),
        ({"vetoes": VETOES[:1]}, "vetoes: known_answers_differ was on"),
        ({"vetoes": ()}, "vetoes: known_rewards_differ, known_answers_differ was on"),
        ({"min_members": 3}, "min_members: 3 instead of the certified None"),
        ({"history_mixed": 3}, "history_mixed: 3 is below the certified 4"),
        ({"history_mixed": 0}, "history_mixed"),
        ({"reward_tolerance": 0.5}, "reward_tolerance"),
        ({"score": SCORE, "check_every": None}, "score: the weights are not those of the certificate"),
    ],
)
def test_all_else_is_refused_by_name(change: dict[str, Any], key: str) -> None:
    [reason] = accepts(certificate(), replace(RULE, **change))
    assert reason.startswith(key)


def test_every_difference_is_named() -> None:
    live = GateConfig(level="char", padding="none", start_step=1, tau=0.5, vetoes=())
    named = {reason.split(":")[0] for reason in accepts(certificate(), live)}
    assert named == {"level", "padding", "start_step, check_every", "tau", "vetoes", "history_mixed"}


def test_one_check_covers_no_second_one() -> None:
    once = replace(RULE, check_every=None)
    assert accepts(certificate(once), once) == []
    assert (
        "step 10 and every 5 steps are not all among the certified ones, step 10"
        in accepts(certificate(once), RULE)[0]
    )


def test_members_are_compared_at_the_recorded_group_size() -> None:
    three = replace(RULE, min_members=3)
    assert accepts(certificate(three), RULE) == [], "half of 8 is more than 3"
    assert accepts(certificate(replace(RULE, min_members=5)), RULE) != []
    unknown = certificate(three, workload=Workload())
    assert accepts(unknown, RULE) != []
    assert accepts(unknown, replace(RULE, min_members=4)) == []


def test_at_char_level_the_separator_counts() -> None:
    char = GateConfig(level="char", padding="none", separator=" | ")
    assert accepts(certificate(char), replace(char, separator="\n"))[0].startswith("separator")


def test_a_bound_on_answers_covers_stricter_survivor_gates_only() -> None:
    made = certificate(SURVIVOR, risk="answer", n_signal=None)
    assert accepts(made, replace(SURVIVOR, tau=0.1, min_members=6, history_mixed=5)) == []
    assert accepts(made, replace(SURVIVOR, outcome="drop"))[0].startswith("outcome: 'drop' instead of")
    assert accepts(made, replace(SURVIVOR, tau=0.2))[0].startswith("tau")


def test_another_workload_is_a_warning() -> None:
    made = certificate(workload=Workload(model="a", group_size=8, max_steps=30))
    live = Workload(model="b", group_size=8, sampling="temperature 1", max_steps=None)
    assert workload_differences(made, live) == ["model: running 'b', certified on 'a'"]
