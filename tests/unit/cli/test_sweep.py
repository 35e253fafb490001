"""`sweep` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from selective_rollout.cli.sweep import sweep
from selective_rollout.errors import ConfigError, TraceError
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Usage

FEW = ("--start-step", "2", "--tau", "0.1,0.3", "--signal", "distance", "--signal", "repeat_rate")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Groups that agree exactly if they carry no signal; every prompt comes twice."""
    with Recorder(tmp_path / "t.jsonl") as recorder:
        for visit in range(2):
            for task in range(24):
                with recorder.group(f"g{task}/{visit}", 2, task_id=f"t{task}") as group:
                    for rollout in range(2):
                        for step in range(4):
                            group.step(rollout, f"a{step}" if task % 2 else f"a{step} of {rollout}")
                        group.finish(rollout, float(task % 2 == 0 and rollout))
    return tmp_path / "t.jsonl"


def invoke(*arguments: Any) -> Result:
    result = CliRunner().invoke(sweep, list(map(str, arguments)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_people_read_verdict_signals_rules_and_history(trace: Path) -> None:
    result = invoke(trace, "--all", *FEW)
    assert result.exit_code == 0
    for words in (
        "Better than chance: the best of 2 configurations, distance at step 2, reaches AUROC 1.00",
        "48 groups of 24 tasks looked at (all tasks): 24 all fail, 0 all succeed, 24 signal-bearing",
        "1.00 (1.00-1.00)*",
        "distance < 0.1 at 2",
        "The prompts' own past",
        "gate, if the last 2 rewards were equal",
    ):
        assert words in " ".join(result.stdout.split())
    assert "record fresh groups" in result.stderr
    assert "MB/s" in result.stderr


def test_with_prices_every_rule_has_its_money(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder:
        for task in range(24):
            with recorder.group(f"g{task}", 2) as group:
                for rollout in range(2):
                    for step in range(4):
                        usage = Usage(prompt=1_000_000, completion=0, source="server")
                        group.step(rollout, f"a{step}" if task % 2 else f"a{step} of {rollout}", usage=usage)
                    group.finish(rollout, float(task % 2 == 0 and rollout))
    prices = ("--price-prompt", 0.5, "--price-completion", 0)
    result = invoke(tmp_path / "t.jsonl", "--all", *FEW, *prices)
    assert "unspent, lossless" in result.stdout
    document = json.loads(invoke(tmp_path / "t.jsonl", "--all", *FEW, *prices, "--json").stdout)
    [rule] = [rule for rule in document["rules"] if rule["name"] == "distance < 0.1 at 2"]
    assert rule["money"] == {
        "spent": 24 * 2 * 4 * 0.5,
        "lossless_not_spent": 12 * 2 * 2 * 0.5,
        "lossy_not_spent": 0.0,
        "unlabelled_not_spent": 0.0,
    }
    assert document["no_gate"]["money"]["spent"] == 96.0


def test_programs_read_one_document(trace: Path, tmp_path: Path) -> None:
    result = invoke(trace, "--json", *FEW, "--check-every", "once", "--out", tmp_path / "out")
    document = json.loads(result.stdout)
    assert document["looked_at"] == "choose"
    assert document["split"] == {"choose_share": 0.4, "seed": 0}
    assert document["grid"]["check_everys"] == [None]
    assert document == json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert (tmp_path / "out" / "signals.png").exists()
    assert trace.with_name("t.jsonl.swept").exists()


def test_one_configuration_is_replayed(trace: Path) -> None:
    once = ("--signal", "distance", "--tau", "0.12", "--start-step", "2", "--check-every", "once")
    result = invoke(trace, "--all", *once)
    assert "distance < 0.12 at 2, replayed" in result.stdout
    assert "cuts: right / wrong / missed 24 / 0 / 0" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--check-every", "often"), 'write "once" or a number of steps'),
        (("--check-every", "0"), "gate.check_every"),
        (("--start-step", "0"), "gate.start_step"),
        (("--tau", "2"), "gate.tau"),
        (("--choose-share", "0"), "say --all"),
    ],
)
def test_wrong_options_are_named(trace: Path, arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        invoke(trace, *arguments)
    assert not trace.with_name("t.jsonl.swept").exists(), "nothing was looked at"


def test_a_check_behind_the_end_of_all_rollouts_is_pointed_out(trace: Path) -> None:
    result = invoke(trace, "--all", "--start-step", "2", "--start-step", "4", "--start-step", "9")
    assert "no rollout goes beyond step 4, 9: a check there saves nothing" in " ".join(result.stderr.split())
    result = invoke(trace, "--all", "--start-step", "9", "--signal", "distance")
    assert "No rule cuts anything." in result.stdout


def test_with_one_kind_of_group_there_is_no_table_of_unknowns(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder:
        for task in range(3):
            with recorder.group(f"g{task}", 2) as group:
                for rollout in range(2):
                    group.step(rollout, "a")
                    group.finish(rollout, float(rollout))
    result = invoke(tmp_path / "t.jsonl", "--all", *FEW)
    assert "with one kind only there is nothing to tell apart" in " ".join(result.stdout.split())
    assert "AUROC" not in result.stdout


def test_an_older_sweep_is_not_overwritten(trace: Path, tmp_path: Path) -> None:
    invoke(trace, *FEW, "--out", tmp_path / "out")
    before = (tmp_path / "out" / "sweep.json").read_bytes()
    with pytest.raises(ConfigError, match="exists: name another folder with --out"):
        invoke(trace, "--all", *FEW, "--out", tmp_path / "out")
    assert (tmp_path / "out" / "sweep.json").read_bytes() == before


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file or folder"):
        invoke(tmp_path / "nowhere")
