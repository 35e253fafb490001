"""`gate.toml`: what is written is read back, and nothing else is."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from selective_rollout.errors import ConfigError
from selective_rollout.gate.certificate import Certificate, Stratum, Workload
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.gate_file import gate_text, read_gate_file, require_certified, write_gate_file
from selective_rollout.gate.score import TwoSidedScore

SCORE = TwoSidedScore(
    ("distance", "repeat_rate"), (0.4, 0.0), (0.2, 1.0), (-1.0, 0.5), (-2.0, 0.1), 0.1, -0.3
)


def certificate(rule: GateConfig | None = None, **changes: Any) -> Certificate:
    fields: dict[str, Any] = {
        "rule": rule or GateConfig(),
        "alpha": 0.15,
        "delta": 0.05,
        "n_signal": 61,
        "false_cuts": 4,
        "cuts": 21,
        "groups": 100,
        "grid": "0.005:0.300:0.005",
        "choose_share": 0.4,
        "split_seed": 7,
        "workload": Workload(model='Qwen "2.5"\n\U0001f600', sampling="temperature 0.7", group_size=8),
    }
    return Certificate(**{**fields, **changes})


@pytest.mark.parametrize(
    "made",
    [
        certificate(),
        certificate(GateConfig(check_every=5, min_members=3, tau=1 / 3, vetoes=())),
        certificate(GateConfig(score=SCORE), workload=Workload()),
        certificate(recertification=1, audit_rate=0.5, n_signal=100, false_cuts=2),
        certificate(GateConfig(outcome="survivor"), risk="answer", n_signal=None, alpha=0.1),
        certificate(
            GateConfig(outcome="survivor"),
            risk="answer",
            n_signal=None,
            strata=(Stratum("clean", 0.12, None, 0, 5, 60), Stratum("b", 0.05, None, 1, 6, 60)),
            stratum_key="type",
            chains=2,
        ),
        certificate(
            strata=(Stratum("clean", 0.12, 30, 0, 5, 60), Stratum("a.b c", 0.05, 40, 1, 6, 60)),
            stratum_key="type",
            chains=2,
            joint=False,
        ),
    ],
)
def test_a_certificate_survives_the_file(tmp_path: Path, made: Certificate) -> None:
    path = tmp_path / "gate.toml"
    write_gate_file(path, made)
    assert read_gate_file(path) == (made.rule, made)
    assert [entry.name for entry in tmp_path.iterdir()] == ["gate.toml"]


def test_the_file_speaks_plainly_and_the_same_each_time() -> None:
    text = gate_text(certificate())
    assert text == gate_text(certificate())
    assert text.startswith("# With 95% confidence this gate cuts at most 15%")
    tables = tomllib.loads(text)
    assert list(tables) == ["gate", "certificate", "workload"]
    assert tables["gate"]["tau"] == 0.12
    assert tables["certificate"]["bound"] == pytest.approx(0.1438, abs=1e-4)
    assert tables["certificate"]["confidence"] == 0.95


def test_what_is_bounded_is_in_the_file() -> None:
    made = certificate(GateConfig(outcome="survivor"), risk="answer", n_signal=None, alpha=0.1)
    tables = tomllib.loads(gate_text(made))
    assert tables["certificate"]["risk"] == "answer"
    assert "n_signal" not in tables["certificate"]
    assert gate_text(made).startswith(
        "# With 95% confidence at most 10% of all groups are cut and then answered"
    )
    assert tomllib.loads(gate_text(certificate()))["certificate"]["risk"] == "signal"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("tau = 0.12", "tau = 0.2", "the rule does not match its hash"),
        ("start_step = 10", "start_step = 5", "the rule does not match its hash"),
        ('vetoes = ["known_rewards_differ", ', "vetoes = [", "the rule does not match its hash"),
        ("history_mixed = 0\n", "", "the rule does not match its hash"),
        ("n_signal = 61", "n_signal = 6100", "the certificate does not match its hash"),
        ("group_size = 8", "group_size = 16", "the certificate does not match its hash"),
        ("alpha = 0.15", "alpha = 0.01", "the certificate does not match its hash"),
        ("split_seed = 7", 'split_seed = "7"', "certificate.split_seed must be int, not '7'"),
        ("joint = true", "joint = 1", "certificate.joint must be bool, not 1"),
        ("n_signal = 61", "n_signal = true", "certificate.n_signal must be int, not True"),
        ("alpha = 0.15\n", "", "certificate: missing key alpha"),
        ("n_signal = 61\n", "", "the certificate does not match its hash"),
        ('risk = "signal"', 'risk = "answer"', "the certificate does not match its hash"),
        ("format = 1", "format = 2", "certificate.format 2 is not 1"),
        ("tau = 0.12", 'tau = "0.12"', "gate.tau must be a number"),
        ("tau = 0.12", 'tau = 0.12\nscore_fn = "os:system"', "gate: unknown key score_fn"),
        ("tau = 0.12", "tau = 0.12\nscore = {}", "the weights belong in a table of their own"),
        ("[workload]", '[run]\nreward = "os:system"\n\n[workload]', "the file: unknown key run"),
        ("group_size = 8", 'group_size = 8\nfactory = "os:system"', "workload: unknown key factory"),
        ("[gate]", "[rule]", "the file: unknown key rule"),
        ("[gate]", "[gate", "not a TOML file"),
        ("[gate]", "strata = [1]\n\n[gate]", "strata must be a table, not 1"),
    ],
)
def test_whatever_was_changed_is_named(tmp_path: Path, before: str, after: str, message: str) -> None:
    path = tmp_path / "gate.toml"
    text = gate_text(certificate())
    assert before in text
    path.write_text(text.replace(before, after, 1), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_gate_file(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_weights_are_part_of_the_rule(tmp_path: Path) -> None:
    path = tmp_path / "gate.toml"
    text = gate_text(certificate(GateConfig(score=SCORE)))
    path.write_text(text.replace("fail = [-1.0, 0.5]", "fail = [-1.0, 0.6]"), encoding="utf-8")
    with pytest.raises(ConfigError, match="the rule does not match its hash"):
        read_gate_file(path)
    path.write_text(text.replace('"repeat_rate"', '"os:system"'), encoding="utf-8")
    with pytest.raises(ConfigError, match="unknown signal 'os:system'"):
        read_gate_file(path)


def test_a_rule_alone_has_no_certificate(tmp_path: Path) -> None:
    path = tmp_path / "rule.toml"
    path.write_text("[gate]\ntau = 0.2\n")
    assert read_gate_file(path) == (GateConfig(tau=0.2), None)
    path.write_text("[gate]\ntau = 0.2\n[workload]\n")
    with pytest.raises(ConfigError, match=r"\[workload\] without \[certificate\]"):
        read_gate_file(path)
    path.write_text("gate = 1\n")
    with pytest.raises(ConfigError, match="gate must be a table"):
        read_gate_file(path)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot read the gate \(No such file"):
        read_gate_file(tmp_path / "nowhere.toml")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gate.toml"
    write_gate_file(path, certificate())
    before = path.read_text()

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", no_space)
    with pytest.raises(ConfigError, match="cannot write the file"):
        write_gate_file(path, replace(certificate(), split_seed=8))
    assert path.read_text() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["gate.toml"]
    with pytest.raises(ConfigError, match="cannot write the file"):
        write_gate_file(tmp_path / "no" / "where.toml", certificate())


def test_enforcing_needs_a_certificate_that_covers_the_rule(tmp_path: Path) -> None:
    path = tmp_path / "gate.toml"
    made = certificate()
    write_gate_file(path, made)
    assert require_certified(path) == (made, [])
    assert require_certified(path, GateConfig(tau=0.1)) == (made, [])
    assert require_certified(path, workload=Workload(group_size=16))[1] == [
        "group_size: running 16, certified on 8"
    ]
    with pytest.raises(ConfigError, match="does not cover this gate: start_step, check_every: .*; tau: 0.2"):
        require_certified(path, GateConfig(tau=0.2, start_step=5))
    path.write_text("[gate]\n")
    with pytest.raises(ConfigError, match="holds a rule without a certificate"):
        require_certified(path)
