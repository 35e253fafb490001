"""`calibrate`: one document, a gate file or none, exit codes."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from selective_rollout.analysis.split import mark_swept
from selective_rollout.cli.calibrate import calibrate
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.gate_file import read_gate_file, write_gate_file
from selective_rollout.gate.group import GroupGate
from selective_rollout.trace.group_log import GroupLog
from selective_rollout.trace.recorder import Recorder


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 groups of four in which converged members end alike, and a torn last line."""
    folder = tmp_path_factory.mktemp("recorded")
    rng = random.Random(0)
    with Recorder(folder / "trace.jsonl", metadata={"model": "m", "temperature": 0.7}) as recorder:
        for i in range(200):
            converged = rng.random() < 0.5
            with recorder.group(f"g{i}", 4, metadata={"type": "ab"[i % 2]}) as group:
                for member in range(4):
                    for _ in range(4):
                        group.step(member, "a" if converged else rng.choice("abcdef"))
                    group.finish(member, 0.0 if converged else float(member % 2))
    with (folder / "trace.jsonl").open("a") as file:
        file.write('{"type":"gro')
    return folder


@pytest.fixture
def folder(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(recorded, tmp_path / "run")
    return tmp_path / "run"


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(calibrate, [str(argument) for argument in arguments], standalone_mode=False)


def document(*arguments: object) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exception is None, result.exception
    return json.loads(result.stdout)  # type: ignore[no-any-return]


STEP = ("--start-step", 2)


class TestTraces:
    def test_a_certified_gate_is_written(self, folder: Path) -> None:
        result = invoke(folder, *STEP)
        assert result.exception is None
        assert result.stdout.startswith("On: tau 0.3 at step 2 cuts at most 0.1 of the signal-bearing groups")
        assert "It certifies the policy that was recorded" in result.stdout
        assert "wrote gate.toml" in result.stderr
        assert "skipped a line torn by a killed writer" in result.stderr
        rule, certificate = read_gate_file(Path("gate.toml"))
        assert rule == GateConfig(start_step=2, tau=0.3)
        assert certificate is not None
        assert certificate.workload.model == "m"
        assert (certificate.workload.sampling, certificate.workload.group_size) == ("temperature 0.7", 4)

    def test_json_is_one_document(self, folder: Path) -> None:
        found = document(folder, *STEP, "--out", "g.toml")
        assert (found["verdict"], found["gate"], found["tau"]) == ("certified", "on", 0.3)
        assert found["recorded_groups"] == 200
        assert Path("g.toml").exists()

    def test_off_writes_nothing_and_leaves_the_old_file(self, folder: Path) -> None:
        assert invoke(folder, *STEP).exception is None
        before = Path("gate.toml").read_text()
        result = invoke(folder, *STEP, "--alpha", 0.001)
        assert result.return_value is None
        assert result.stdout.startswith("Off: not certifiable")
        assert "gate.toml is from an earlier calibration and was left as it is" in result.stderr
        assert Path("gate.toml").read_text() == before

    def test_without_a_signal_nobody_knows_how_many_are_needed(self, tmp_path: Path) -> None:
        scores = tmp_path / "scores.csv"
        scores.write_text("group,step,distance,zero_variance\na,2,0.1,1\nb,2,0.1,1\n")
        result = invoke("--scores", scores, *STEP, "--out", tmp_path / "gate.toml")
        assert "unknown (without any false cut 29)" in result.stdout

    def test_a_certificate_can_be_required(self, folder: Path) -> None:
        assert invoke(folder, *STEP, "--require-certificate").return_value is None
        assert invoke(folder, *STEP, "--alpha", 0.001, "--require-certificate").return_value == 1

    def test_options_reach_the_rule(self, folder: Path) -> None:
        options = ("--check-every", 1, "--padding", "none", "--min-members", 3, "--history-mixed", 0)
        rule = document(folder, *STEP, *options)["rule"]
        assert (rule["check_every"], rule["padding"], rule["min_members"]) == (1, "none", 3)

    def test_rollouts_that_end_before_the_check_are_not_called_no_better_than_chance(
        self, folder: Path
    ) -> None:
        result = invoke(folder)
        told = " ".join(result.stdout.split())
        assert told.startswith(
            "Off: hardly any group (0 of 200) still runs at step 10, so nothing can be said about a check "
            "there; try --start-step 3, where 200 of 200 still run."
        )
        assert "Start step 10: too late to tell" in told
        assert "recorded groups that still run then 0 of 200" in told
        assert "chance" not in told
        assert "AUROC" not in told
        assert result.return_value is None
        assert invoke(folder, "--require-certificate").return_value == 1
        found = document(folder)
        assert (found["verdict"], found["gate"]) == ("no_better_than_chance", "off")
        assert found["reach"] == {
            "step": 10,
            "groups": 200,
            "still_running": 0,
            "too_late": True,
            "try_start_step": 3,
        }

    def test_start_steps_without_a_split(self, folder: Path) -> None:
        found = document(folder, *STEP, "--start-step", 3, "--no-split", "--seed", 4)
        assert [chain["start_step"] for chain in found["chains"]] == [2, 3]
        assert (found["choose_groups"], found["split_seed"]) == (0, 4)

    def test_strata(self, folder: Path) -> None:
        found = document(folder, *STEP, "--stratum", "type", "--alpha", 0.2)
        assert [chain["stratum"] for chain in found["chains"]] == ["a", "b"]
        result = invoke(folder, *STEP, "--stratum", "type", "--alpha", 0.2, "--per-stratum")
        assert "On in stratum a" in result.stdout
        assert "per stratum, not for all at once" in result.stdout.replace("\n", " ")

    def test_a_score_is_shown_with_its_weights(self, folder: Path) -> None:
        result = invoke(folder, *STEP, "--fit-score")
        assert "Two-sided score" in result.stdout
        assert "tool_distance" in result.stdout
        assert "plan 300 labelled groups" in result.stderr

    def test_a_swept_trace_is_refused(self, folder: Path) -> None:
        mark_swept([folder], None)
        result = invoke(folder, *STEP)
        assert isinstance(result.exception, ConfigError)
        assert "a sweep has looked at all of its tasks" in str(result.exception)

    def test_answers_at_risk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        rng = random.Random(3)
        with Recorder("votes/trace.jsonl") as recorder:
            for i in range(300):
                alike = rng.random() < 0.4
                with recorder.group(f"v{i}", 5) as group:
                    for member in range(5):
                        for _ in range(5):
                            group.step(member, "a" if alike else rng.choice("abcdef"))
                        group.finish(member, answer="x" if rng.random() < (0.98 if alike else 0.6) else "y")
        result = invoke("votes", *STEP, "--risk", "answer")
        assert result.exception is None, result.exception
        assert result.stdout.startswith("On: with tau 0.3 at step 2 at most 0.1 of all groups are cut and")
        assert "survivor agrees (base rate)" in result.stdout
        assert "efficiency" not in result.stdout
        rule, certificate = read_gate_file(Path("gate.toml"))
        assert rule.outcome == "survivor"
        assert certificate is not None
        assert (certificate.risk, certificate.n_signal) == ("answer", None)
        found = document("votes", *STEP, "--risk", "answer")
        assert (found["risk"], found["n_signal"]) == ("answer", None)
        refused = invoke("votes", "--renew", "gate.toml", "--audit-rate", 0.5)
        assert "a certificate over answers has to be made anew" in str(refused.exception)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((), "name a trace"),
            (("run", "--risk", "answer", "--outcome", "drop"), "the rule's outcome must be survivor"),
            (("--scores", "x.csv", "--risk", "answer"), "--scores holds no answers"),
            (("run", "--scores", "x.csv"), "traces or --scores, not both"),
            (("run", "--grid", "x"), "grid 'x' holds something that is no number"),
            (("run", "--choose-share", "1"), r"split: the share"),
            (("run", "--start-step", "0"), "gate.start_step must be a whole number >= 1"),
            (("run", "--fit-score", "--no-split"), "a score is fitted on tasks set aside"),
            (
                ("--scores", "x.csv", "--start-step", "1", "--start-step", "2"),
                "certified at one --start-step",
            ),
        ],
    )
    def test_wrong_usage_is_one_line(self, folder: Path, arguments: tuple[str, ...], message: str) -> None:
        result = invoke(*arguments)
        assert isinstance(result.exception, ConfigError)
        assert message in str(result.exception)
        assert "\n" not in str(result.exception)
        assert not Path("gate.toml").exists()


class TestScores:
    def test_the_document_holds_what_is_asked_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        rows = [f"z{i},10,0.05,1" for i in range(30)] + [f"s{i},10,0.5,0" for i in range(48)]
        Path("s.csv").write_text("\n".join(["group,step,distance,zero_variance", *rows]))
        found = document(
            "--scores", "s.csv", "--start-step", 10, "--alpha", 0.05, "--grid", "0.005:0.300:0.005"
        )
        assert (found["tau"], found["verdict"], found["needed"], found["needed_min"]) == (
            None,
            "not_certifiable",
            59,
            59,
        )
        found = document("--scores", "s.csv", "--alpha", 0.1, "--delta", 0.05)
        assert {k: found[k] for k in ("tau", "cuts", "false_cuts", "n_signal", "verdict", "gate")} == {
            "tau": 0.3,
            "cuts": 30,
            "false_cuts": 0,
            "n_signal": 48,
            "verdict": "certified",
            "gate": "on",
        }
        assert not Path("gate.toml").exists()
        assert invoke("--scores", "s.csv").stdout.startswith("On: tau 0.3")
        assert invoke("--scores", "s.csv", "--alpha", 0.05, "--require-certificate").return_value == 1


def live(folder: Path, rule: GateConfig, wrong: int) -> None:
    """An enforcing run: kept signal-bearing groups, a cut, and audited would-be cuts that were wrong."""
    with Recorder(folder / "live.jsonl") as recorder:
        for i in range(100 + wrong):
            same = i >= 99
            log = GroupLog(recorder.write, f"l{i}", gate=GroupGate(rule, 2, group_id=f"l{i}"))
            log.begin(size=2, task_id=f"l{i}", mode="enforce", audit=i > 99)
            for member in range(2):
                for _ in range(3):
                    log.step(member, "a" if same else str(member))
            cut = i == 99
            for member in range(2):
                log.cut(member) if cut else log.finish(member, float(member))
            log.end(outcome="drop" if cut else None, cut_at=2 if cut else None)


class TestRenewal:
    def test_a_certificate_is_renewed_from_audits(self, folder: Path) -> None:
        assert invoke(folder, *STEP).exception is None
        rule, _ = read_gate_file(Path("gate.toml"))
        Path("live").mkdir()
        live(Path("live"), rule, wrong=0)
        result = invoke("live", "--renew", "gate.toml", "--audit-rate", 0.5)
        assert result.exception is None
        assert "false_cut_rate P(cut | signal)" in result.stdout
        _, renewed = read_gate_file(Path("gate.toml"))
        assert renewed is not None
        assert (renewed.recertification, renewed.audit_rate, renewed.n_signal) == (1, 0.5, 99)

    def test_it_ends_where_the_audits_say_so(self, folder: Path) -> None:
        assert invoke(folder, *STEP).exception is None
        rule, _ = read_gate_file(Path("gate.toml"))
        Path("live").mkdir()
        live(Path("live"), rule, wrong=20)
        found = document("live", "--renew", "gate.toml", "--audit-rate", 0.5)
        assert (found["renewed"], found["gate"], found["tau"]) == (False, "off", None)
        assert found["false_cut_rate"]["hits"] == 20
        assert found["wrong_cut_share"]["value"] == 1.0
        assert (found["contradicted"], found["observed_signal"], found["would_be_cuts"]) == (True, 119, 20)
        result = invoke("live", "--renew", "gate.toml", "--audit-rate", 0.5)
        assert "Off: the audits contradict the certificate. 20 of 119 observed" in result.stdout

    def test_too_few_audits_are_not_called_a_contradiction(self, folder: Path) -> None:
        assert invoke(folder, *STEP).exception is None
        before = Path("gate.toml").read_text()
        rule, _ = read_gate_file(Path("gate.toml"))
        Path("live").mkdir()
        live(Path("live"), rule, wrong=0)
        found = document("live", "--renew", "gate.toml", "--audit-rate", 0.01)
        assert (found["renewed"], found["gate"], found["contradicted"]) == (False, "off", False)
        assert found["observed_signal"] + found["more_needed"] == 3322
        result = invoke("live", "--renew", "gate.toml", "--audit-rate", 0.01)
        told = " ".join(result.stdout.split())
        assert "Not renewed: too few audits yet. 0 of 99 observed signal-bearing groups" in told
        assert "At least 3,223 more are needed, if none of those is a would-be cut." in told
        assert Path("gate.toml").read_text() == before

    def test_what_is_missing_is_named(self, folder: Path) -> None:
        Path("rule.toml").write_text("[gate]\n")
        result = invoke(folder, "--renew", "rule.toml")
        assert "rule.toml: holds no certificate to renew" in str(result.exception)
        assert invoke(folder, *STEP).exception is None
        assert "--renew needs the run's --audit-rate" in str(invoke(folder, "--renew", "gate.toml").exception)
        _, certificate = read_gate_file(Path("gate.toml"))
        assert certificate is not None
        write_gate_file(Path("gate.toml"), certificate)
        result = invoke(folder, "--renew", "gate.toml", "--audit-rate", 0.5)
        assert "no labelled group of an enforcing run" in str(result.exception)
