"""What the commands say about the trace of a training run, which no run folder describes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from selective_rollout.analysis.split import Split
from selective_rollout.cli.calibrate import calibrate
from selective_rollout.cli.report import report
from selective_rollout.cli.sweep import sweep
from selective_rollout.engine.training import TrainingGate
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Usage

RULE = GateConfig(start_step=3, tau=0.3)
SIZE = 4


def train(folder: str, **settings: Any) -> TrainingGate:
    """60 groups of rollouts of 4 to 7 steps; those that act alike mostly fail all."""
    rng = random.Random(0)
    with Recorder(folder) as recorder:
        gate = TrainingGate(RULE, certified=True, recorder=recorder, seed=1, **settings)
        for i in range(60):
            alike, lengths = rng.random() < 0.5, [rng.randint(4, 7) for _ in range(SIZE)]
            group = gate.open(f"p{i}", SIZE)
            for step in range(7):
                for rollout in (g for g in range(SIZE) if step < lengths[g] and not group.stopped):
                    action = f"look {step}" if alike else rng.choice("abcdef")
                    group.step(rollout, action, usage=Usage(completion=10))
                    if step + 1 == lengths[rollout] and not group.stopped:
                        group.finish(rollout)
            mixed = not alike or rng.random() < 0.1
            group.close([float(mixed and g % 2) for g in range(SIZE)])
    return gate


def told(command: Any, *arguments: str) -> str:
    """What a person reads, in one line."""
    result = CliRunner().invoke(command, list(arguments), standalone_mode=False)
    assert result.exception is None, result.exception
    return " ".join(result.stdout.split())


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


LATE = (
    "hardly any group (0 of {}) still runs at step 10, so nothing can be said about a check there; "
    "try --start-step 3, where the recorded gate decided."
)


@pytest.mark.parametrize("command", [report, calibrate])
def test_the_default_check_is_called_too_late_and_the_trainers_own_step_is_named(
    command: Callable[..., object],
) -> None:
    train("observed")
    assert LATE.format(60) in told(command, "observed")


def test_at_that_step_the_report_agrees_with_the_trainers_own_totals() -> None:
    gate = train("observed")
    told(report, "observed", "--start-step", "3", "--tau", "0.3")
    document = json.loads(Path("observed/report/report.json").read_text())
    account = document["gates"][0]["accounting"]
    metrics = gate.meter.metrics()
    assert account["steps"] == metrics["gate/steps"]
    assert account["lossless_steps"] + account["lossy_steps"] == metrics["gate/steps_avoided"]
    assert account["loss"]["value"] == metrics["gate/false_cut_rate"]
    assert account["efficiency"] == pytest.approx(metrics["gate/efficiency"])


def test_an_enforcing_run_is_told_by_what_was_stopped_and_what_audits_say() -> None:
    gate = train("enforced", mode="enforce", audit_rate=0.25)
    counts = gate.meter.counts
    assert counts is not None
    assert counts.wrong_cut_share is not None
    cut, audited = gate.meter.cut, counts.wrong_cut_share
    assert cut
    said = told(report, "enforced")
    assert LATE.format(60 - cut) in said
    assert f"The gate that was on really stopped {cut} of 60 groups." in said
    assert f"of the cuts were signal-bearing ({audited.hits} of {audited.trials}; 95%" in said
    page = Path("enforced/report/report.html").read_text()
    assert "that ran to their own end whatever the gate said. Intervals" in page
    assert "0 of 0" not in page
    refused = CliRunner().invoke(calibrate, ["enforced"], standalone_mode=False).exception
    assert isinstance(refused, ConfigError)
    assert "calibrate on groups recorded in observe mode, or renew a certificate from audits" in str(refused)


ONE_GATE = ("--signal", "distance", "--tau", "0.12", "--check-every", "once", "--all")


def test_a_sweep_of_one_gate_calls_it_too_late_whatever_its_distances_say() -> None:
    train("observed")
    said = told(sweep, "observed", *ONE_GATE, "--start-step", "10")
    assert said.startswith("Too late to tell: " + LATE.format(60))
    assert "chance here" not in said
    found = CliRunner().invoke(sweep, ["observed", *ONE_GATE, "--start-step", "10", "--json"])
    assert json.loads(found.stdout)["reach"]["try_start_step"] == 3
    assert "Too late" not in told(sweep, "observed", *ONE_GATE, "--start-step", "3")


def test_a_sweep_over_what_a_gate_let_through_says_that_it_is_a_selection() -> None:
    train("enforced", mode="enforce", audit_rate=0.25)
    free = [g for g in read_groups(["enforced"]) if Split().part(g.group.task_id) == "choose"]
    kept = [g for g in free if g.end is not None and g.end.outcome is None and not g.begin.audit]
    result = CliRunner().invoke(sweep, ["enforced", "--start-step", "3"], standalone_mode=False)
    assert result.exception is None, result.exception
    assert f"{len(kept)} groups are those that an enforcing gate let through" in result.stderr
    assert "Next: calibrate" not in result.stdout
