"""`report`: files, exit codes, one JSON document, one-line errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from selective_rollout.cli.report import report
from selective_rollout.errors import ConfigError, SelectiveRolloutError, TraceError
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Usage


class Done(NamedTuple):
    code: int
    out: str
    err: str


Invoke = Callable[..., Done]


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Invoke:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Done:
        capsys.readouterr()
        code = report.main(list(arguments), prog_name="report", standalone_mode=False) or 0
        captured = capsys.readouterr()
        return Done(int(code), captured.out, captured.err)

    return call


def record(folder: str, mixed: int = 3, groups: int = 24, name: str = "g") -> str:
    """A run folder with one trace; all groups act alike, `mixed` of them end with different rewards."""
    with Recorder(Path(folder) / "trace.jsonl", metadata={"model": "a model"}) as recorder:
        for i in range(groups):
            with recorder.group(f"{name}{i}", size=2) as group:
                for index in (0, 1):
                    for _ in range(12):
                        group.step(index, "go")
                    group.finish(index, reward=float(index) if i < mixed else 0.0, answer="x")
    return folder


@pytest.fixture(autouse=True)
def run_folder(invoke: Invoke) -> str:
    return record("run")


def test_it_prints_the_waste_and_leaves_a_page_beside_the_trace(invoke: Invoke) -> None:
    done = invoke("run")
    assert done.code == 0
    for words in (
        "Where the steps went",
        "all fail",
        "gate: distance < 0.12 at step 10",
        "If one survivor answers",
    ):
        assert words in done.out
    assert "21 of 24 labelled groups ended with equal rewards" in done.out
    names = sorted(path.name for path in Path("run/report").iterdir())
    assert names == ["distance.png", "report.html", "report.json"]


def test_it_says_what_stopping_a_vote_early_would_save(invoke: Invoke) -> None:
    done = invoke("run", "--outcome", "survivor")
    rows = [" ".join(line.split()) for line in done.out.splitlines()]
    assert "If the vote stops early" in rows
    assert "no gate 0 of 24 0 of 576 0 of unknown 1.00" in rows
    assert "survivor, lossless 24 48 (8.3%) unknown 1.00" in rows
    assert "exact rule, in two waves 0 0 (0.0%) 0 1.00" in rows
    document = json.loads(Path("run/report/report.json").read_text())
    assert document["answers"]["no_gate"]["steps"] == 576
    assert "money" not in done.out


def test_with_prices_money_stands_beside_tokens(invoke: Invoke) -> None:
    with Recorder(Path("priced/trace.jsonl")) as recorder:
        usage = Usage(prompt=1_000, cached=600, completion=100, source="server")
        for i in range(10):
            with recorder.group(f"g{i}", size=3) as group:
                for index in range(3):
                    for _ in range(12):
                        group.step(index, "go", usage=usage)
                    group.finish(index, reward=float(index if i < 5 else 0), answer="x")
    prices = ("--price-prompt", "2", "--price-completion", "8", "--price-cached", "0.5")
    done = invoke("priced", *prices)
    rows = [" ".join(line.split()) for line in done.out.splitlines()]
    assert "spent: tokens generated / money 36,000 / 0.684" in rows
    assert "not spent, lossless 3,000 / 0.057" in rows
    assert "not spent, lossy 3,000 / 0.057" in rows
    assert "exact rule, one at a time 10 120 (33.3%) 12,000 0.228 2.00" in rows
    document = json.loads(Path("priced/report/report.json").read_text())
    assert document["gates"][0]["accounting"]["money"]["spent"] == pytest.approx(0.684)
    page = Path("priced/report/report.html").read_text()
    assert "money not spent, lossless" in page
    assert "unknown" in invoke("run", *prices).out, "tokens that nobody counted cost an unknown sum"


def test_json_is_exactly_one_document_and_the_one_on_file(invoke: Invoke) -> None:
    document = json.loads(invoke("run", "--json", "--out", "there").out)
    assert document["gates"][0]["accounting"]["wrong"] == 3
    assert document["files"][0] == "there/report.html"
    assert json.loads(Path("there/report.json").read_text())["overview"] == document["overview"]


@pytest.mark.parametrize(
    ("check", "code"),
    [("loss>0.1", 1), ("loss>1", 0), ("efficiency<1", 1), ("false_cut_bound>0.1", 1), ("singletons>0", 0)],
)
def test_a_check_that_holds_is_exit_code_1(invoke: Invoke, check: str, code: int) -> None:
    done = invoke("run", "--fail-if", check)
    assert done.code == code
    assert ("check failed:" in done.err) is (code == 1)
    assert Path("run/report/report.html").exists()


def test_a_check_that_cannot_be_told_fails(invoke: Invoke) -> None:
    done = invoke("run", "--fail-if", "audited_false_cut_rate>0.1")
    assert done.code == 1
    assert "is unknown here" in done.err


def test_a_baseline_gives_differences_with_intervals(invoke: Invoke) -> None:
    record("before", mixed=20)
    done = invoke("run", "--baseline", "before", "--fail-if", "change_zero_variance>0.5")
    assert done.code == 1
    assert "Against before" in done.out
    assert "+70.8 points" in done.out
    changes = json.loads(Path("run/report/report.json").read_text())["baseline"]["changes"]
    assert changes["zero_variance"]["change"] == pytest.approx(17 / 24)
    assert "Against before" in Path("run/report/report.html").read_text()


def test_rules_come_from_gate_files(invoke: Invoke) -> None:
    Path("late.toml").write_text("[gate]\nstart_step = 11\ntau = 0.2\n")
    Path("off.toml").write_text("[gate]\ntau = 0.0\n")
    document = json.loads(invoke("run", "--gate", "late.toml", "--gate", "off.toml", "--json").out)
    assert [gate["name"] for gate in document["gates"]] == ["late", "off"]
    assert [gate["accounting"]["cuts"] for gate in document["gates"]] == [24, 0]


def accounted(done: Done) -> tuple[float, int]:
    gate = json.loads(done.out)["gates"][0]
    return gate["rule"]["tau"], gate["rule"]["start_step"]


def test_without_a_word_the_rule_is_the_one_that_was_recorded(invoke: Invoke) -> None:
    Path("run/config.toml").write_text("[run]\nseed = 0\n\n[gate]\nstart_step = 7\ntau = 0.3\n")
    assert accounted(invoke("run", "--json")) == (0.3, 7)
    assert accounted(invoke("run", "--json", "--tau", "0.2")) == (0.2, 10)
    assert accounted(invoke("run", record("other", name="h"), "--json")) == (0.12, 10), (
        "not one rule for both"
    )


def test_settings_of_a_run_that_cannot_be_read_are_named(invoke: Invoke) -> None:
    Path("run/config.toml").write_text("[gate\n")
    with pytest.raises(ConfigError, match=r"run/config\.toml: cannot read the run's settings"):
        invoke("run")


def test_a_sweep_is_drawn(invoke: Invoke) -> None:
    sweep = {
        "cells": [{"signal": "distance", "step": 10, "auroc": 0.6}],
        "points": [{"name": "x", "saved": 0, "loss": 0}],
    }
    Path("sweep.json").write_text(json.dumps({"verdict": "more", "report_view": sweep}))
    assert invoke("run", "--sweep", "sweep.json").code == 0
    assert {"signals.png", "pareto.png"} <= {path.name for path in Path("run/report").iterdir()}
    assert "Which signal sees it coming" in Path("run/report/report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("nowhere",), TraceError, "nowhere: no such file or folder"),
        (("run", "--fail-if", "loss"), ConfigError, "write a name, a comparison and a number"),
        (("run", "--fail-if", "los>1"), ConfigError, "unknown name; known are"),
        (("run", "--tau", "2"), ConfigError, "gate.tau must be a number in"),
        (("run", "--gate", "g.toml", "--tau", "0.2"), ConfigError, "leave out --tau"),
        (("run", "--gate", "none.toml"), ConfigError, "none.toml: cannot read the gate"),
        (("run", "--price-prompt", "1"), ConfigError, "money needs both --price-prompt and --price-compl"),
        (
            ("run", "--price-prompt", "-1", "--price-completion", "1"),
            ConfigError,
            "price of prompt tokens must be a number from 0 up",
        ),
        (("run", "--sweep", "g.toml"), ConfigError, "g.toml: cannot read the sweep"),
        (("run", "--sweep", "empty.json"), ConfigError, "empty.json: no sweep to draw"),
        (("run", "--out", "g.toml"), ConfigError, "cannot write the report there"),
        (("g.toml",), TraceError, "to read another format use `import`"),
    ],
)
def test_errors_are_one_line(
    invoke: Invoke, arguments: tuple[str, ...], error: type[SelectiveRolloutError], words: str
) -> None:
    Path("g.toml").write_text("[gate]\n")
    Path("empty.json").write_text("{}")
    with pytest.raises(error) as raised:
        invoke(*arguments)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_without_a_trace_it_is_a_usage_error(invoke: Invoke) -> None:
    with pytest.raises(click.UsageError):
        invoke()


def test_a_torn_last_line_is_reported_and_the_report_is_made(invoke: Invoke) -> None:
    with Path("run/trace.jsonl").open("a") as file:
        file.write('{"type":"group","gro')
    done = invoke("run")
    assert done.code == 0
    assert "skipped a line torn by a killed writer" in done.err
    assert "Repaired while reading" in Path("run/report/report.html").read_text()
