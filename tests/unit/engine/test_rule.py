"""Where a rule comes from, and what certifies it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.certified import claim_of

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.rule import AcceptedRule, WorkloadWarning, accepted_rule
from selective_rollout.errors import ConfigError
from selective_rollout.gate.certificate import Certificate, Stratum, Workload
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.gate_file import write_gate_file
from selective_rollout.gate.toml_text import to_toml

RULE = GateConfig(start_step=3, outcome="survivor")
OBSERVE, ENFORCE = RunConfig(), RunConfig(mode="enforce")


def certificate(**changes: Any) -> Certificate:
    return claim_of(RULE, alpha=0.15, workload=Workload(group_size=8), **changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_gate_file(tmp_path / "gate.toml", certificate())
    return tmp_path / "gate.toml"


def test_a_rule_of_ones_own_is_as_good_as_its_owners_word() -> None:
    assert accepted_rule(RULE, ENFORCE) == AcceptedRule(RULE)
    assert accepted_rule(RULE, ENFORCE, certified=True) == AcceptedRule(RULE, certified=True)


@pytest.mark.parametrize("spelled", [str, Path])
def test_a_gate_file_brings_its_certificate(path: Path, spelled: Any) -> None:
    assert accepted_rule(spelled(path), ENFORCE) == AcceptedRule(RULE, certificate(), certified=True)


def test_a_gate_file_without_a_certificate_is_a_rule_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "rule.toml"
    path.write_text(to_toml({"gate": {"tau": 0.1}}, comment="mine"))
    assert accepted_rule(path, ENFORCE) == AcceptedRule(GateConfig(tau=0.1))
    with pytest.raises(ConfigError, match="holds a rule without a certificate"):
        accepted_rule(GateConfig(tau=0.1), ENFORCE, certified=path)


def test_a_certificate_covers_rules_that_cut_a_subset_and_no_other(path: Path) -> None:
    sharper = replace(RULE, tau=0.05)
    assert accepted_rule(sharper, ENFORCE, certified=path) == AcceptedRule(sharper, certificate(), True)
    with pytest.raises(ConfigError, match=r"gate\.toml: .* outcome: 'drop' .*; .*tau: 0\.2 is above"):
        accepted_rule(GateConfig(start_step=3, tau=0.2), ENFORCE, certified=path)


def test_a_changed_file_is_refused(path: Path) -> None:
    path.write_text(path.read_text().replace("tau = 0.12", "tau = 0.3"))
    with pytest.raises(ConfigError, match="edited after calibration"):
        accepted_rule(path, OBSERVE)


def test_another_group_size_is_warned_about_when_enforced(path: Path) -> None:
    with pytest.warns(WorkloadWarning, match="group_size: running 4, certified on 8") as caught:
        accepted_rule(path, RunConfig(group_size=4, mode="enforce"))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accepted_rule(path, RunConfig(group_size=4))


def test_a_group_has_the_threshold_of_its_stratum(tmp_path: Path) -> None:
    strata = (Stratum("clean", 0.12, 30, 0, 5, 60), Stratum("heat", 0.05, 40, 1, 6, 60))
    made = certificate(strata=strata, stratum_key="type", chains=2, joint=False)
    write_gate_file(tmp_path / "gate.toml", made)
    accepted = accepted_rule(tmp_path / "gate.toml", ENFORCE)
    assert [accepted.tau_for({"type": name}) for name in ("clean", "heat", "cool")] == [0.12, 0.05, 0.0]
    assert accepted.tau_for(None) == 0.0
    assert AcceptedRule(RULE, certificate(), certified=True).tau_for({"type": "clean"}) is None


@pytest.mark.parametrize(
    ("certified", "config", "watched"),
    [
        (True, RunConfig(mode="enforce", audit_rate=0.5), True),
        (False, RunConfig(mode="enforce", audit_rate=0.5), False),
        (True, RunConfig(mode="enforce"), False),
        (True, RunConfig(audit_rate=0.5), False),
    ],
    ids=["covered", "not covered", "no audits", "observing"],
)
def test_only_audits_of_an_enforced_and_covered_rule_can_raise_the_alarm(
    certified: bool, config: RunConfig, watched: bool
) -> None:
    assert (AcceptedRule(RULE, certificate(), certified).alarm(config) is not None) == watched
    assert AcceptedRule(RULE, certified=certified).alarm(config) is None
