"""A stream rule from the command line to the report: `run --stream`, `report`, `calibrate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from selective_rollout.analysis.certify import Question
from selective_rollout.analysis.stream_cuts import StreamCertifier, look_at
from selective_rollout.cli.calibrate import calibrate
from selective_rollout.cli.report import report
from selective_rollout.cli.rule import stream_rule_of
from selective_rollout.cli.run import run
from selective_rollout.engine.rule import UncertifiedGateWarning
from selective_rollout.errors import ConfigError
from selective_rollout.gate.streaming import StreamRule
from selective_rollout.stats import upper_bound
from selective_rollout.testing import LoopbackServer, ScriptedBrain
from selective_rollout.trace.reader import RecordedGroup, read_groups

WORDS = 25
G = 4


def says(request: dict[str, Any], choice: int, seed: int | None) -> str:
    """Prompts `alike N` are answered alike, others in words of their own."""
    alike = any("alike" in message["content"] for message in request["messages"])
    return " ".join(f"word{i}" if alike else f"word{seed}{i}{seed}" for i in range(WORDS))


def reward(task: Any, rollout: Any) -> float:
    """Alike groups end alike, others do not; `alike but not` is the trap."""
    return float(rollout.index % 2) if "not" in task.prompt or "alike" not in task.prompt else 1.0


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same 12 tasks observed: token ids; characters; and characters with their streams kept."""
    folder = tmp_path_factory.mktemp("observed")
    prompts = [*(f"alike {i}" for i in range(5)), *(f"apart {i}" for i in range(6)), "alike but not"]
    lines = (json.dumps({"id": f"t{i}", "prompt": prompt}) for i, prompt in enumerate(prompts))
    (folder / "t.jsonl").write_text("\n".join(lines) + "\n")
    made = {}
    with pytest.MonkeyPatch.context() as patch, LoopbackServer(ScriptedBrain(says)) as server:
        patch.setattr("selective_rollout.cli.run.score_of", lambda reference: reward)
        for name, rule, *more in (
            ("token", "token,tau=0.1,start=16,check_every=8"),
            ("char", "char,tau=0.1,start=32"),
            ("kept", "char,tau=0.1,start=32", "--record-completions"),
        ):
            done = invoke(
                run,
                folder / "t.jsonl",
                *address(server),
                *SHAPE,
                "--stream",
                rule,
                "--name",
                name,
                "--runs",
                folder,
                *more,
            )
            assert done.exit_code == 0, done.output
            made[name] = folder / name
    return made


SHAPE = ("--group-size", str(G), "--max-steps", "1")


def address(server: LoopbackServer) -> tuple[str, ...]:
    return "--base-url", server.base_url, "--api-key", server.api_key or "", "--model", server.model


def invoke(command: Any, *arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def groups(folder: Path) -> list[RecordedGroup]:
    return list(read_groups([folder]))


def test_report_counts_the_cuts_inside_a_step_apart(observed: dict[str, Path]) -> None:
    done = invoke(report, observed["token"], "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    (inside,) = document["inside_steps"]
    assert inside["rule"] == {"level": "token", "tau": 0.1, "start": 16, "check_every": 8}
    assert (inside["groups"], inside["right"], inside["wrong"]) == (12, 5, 1)
    assert (inside["base_rate"]["hits"], inside["base_rate"]["trials"]) == (5, 12)
    assert (inside["loss"]["hits"], inside["loss"]["trials"]) == (1, 7)
    assert inside["loss"]["interval_95"][1] > 1 / 7
    assert inside["cut_in_enforce_mode"] == 0
    tokens = {
        recorded.group.id: sum(
            s.usage.completion or 0 for r in recorded.group.rollouts for s in r.steps if s.usage
        )
        for recorded in groups(observed["token"])
    }
    assert inside["lossless_not_generated"] == sum(tokens[f"t{i}"] for i in range(5)) - 5 * G * 16
    assert inside["lossy_not_generated"] == tokens["t11"] - G * 16
    assert document["gates"][0]["accounting"]["cuts"] == 0, "the rule over steps is an account of its own"


def test_report_shows_them_to_people_and_on_the_page(observed: dict[str, Path]) -> None:
    done = invoke(report, observed["token"])
    assert "Inside steps: token distance < 0.1 from token 16, every 8" in " ".join(done.stdout.split())
    assert "5 / 1" in done.stdout
    page = (observed["token"] / "report" / "report.html").read_text()
    assert "Cuts inside a step: token distance &lt; 0.1" in page


def test_what_was_not_counted_is_unknown(observed: dict[str, Path]) -> None:
    (unknown,) = json.loads(invoke(report, observed["char"], "--json").stdout)["inside_steps"]
    (known,) = json.loads(invoke(report, observed["kept"], "--json").stdout)["inside_steps"]
    assert unknown["right"] == known["right"] == 5
    assert unknown["lossless_not_generated"] is None
    assert unknown["lossless_share"] is None
    assert known["unit"] == "characters"
    assert known["lossless_not_generated"] == 5 * G * (
        len(says({"messages": [{"content": "alike"}]}, 0, 0)) - 32
    )


def test_calibrate_bounds_the_recorded_rule_and_writes_no_gate_for_it(
    observed: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--alpha", "0.6", "--delta", "0.05", "--json")
    done = invoke(calibrate, observed["token"], *options)
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["stream_rules"]
    assert (found["groups"], found["n_signal"], found["cuts"], found["false_cuts"]) == (12, 7, 6, 1)
    assert found["bound"] == pytest.approx(upper_bound(1, 7, 0.95))
    assert found["verdict"] == "certified"
    assert not Path("gate.toml").exists()
    strict = json.loads(invoke(calibrate, observed["token"], "--json").stdout)["stream_rules"]
    assert strict[0]["verdict"] == "not_certifiable"
    assert "not certifiable. It would have cut 6 of 12" in " ".join(
        invoke(calibrate, observed["token"]).stdout.split()
    )


def test_calibrate_says_what_is_missing_where_the_saving_is_unknown(observed: dict[str, Path]) -> None:
    done = invoke(calibrate, observed["char"])
    assert isinstance(done.exception, ConfigError)
    assert "record the run with --record-completions" in str(done.exception)
    assert "\n" not in str(done.exception)


def test_one_group_counts_for_each_task(observed: dict[str, Path]) -> None:
    once, thrice = StreamCertifier(), StreamCertifier()
    recorded = groups(observed["token"])
    assert list(once.watch(recorded)) == recorded
    list(thrice.watch([*recorded, *recorded, *recorded]))
    assert once.findings(Question()) == thrice.findings(Question())


def test_a_survivor_runs_on(observed: dict[str, Path]) -> None:
    first = groups(observed["token"])[0]
    dropped, survived = look_at(first), look_at(first, survives=True)
    assert dropped is not None
    assert survived is not None
    assert dropped.avoided is not None
    assert survived.avoided == dropped.avoided * (G - 1) // G


def test_enforcing_needs_consent_and_cuts_are_counted_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("selective_rollout.cli.run.score_of", lambda reference: reward)
    Path("t.jsonl").write_text(json.dumps({"id": "a", "prompt": "alike"}) + "\n")
    rule = ("--mode", "enforce", "--stream", "token,tau=0.1,start=8,check_every=8")
    at_length = ScriptedBrain(lambda *asked: " ".join([says(*asked)] * 20))
    with LoopbackServer(at_length, step_delay_s=0.002) as server:
        refused = invoke(run, "t.jsonl", *address(server), *SHAPE, *rule)
        assert isinstance(refused.exception, ConfigError)
        with pytest.warns(UncertifiedGateWarning):
            done = invoke(
                run, "t.jsonl", *address(server), *SHAPE, *rule, "--uncertified", "--name", "live", "--json"
            )
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["cut"], document["cut_inside_a_step"]) == (1, 1)
    shown = json.loads(invoke(report, "runs/live", "--json").stdout)
    assert shown["inside_steps"][0]["cut_in_enforce_mode"] == 1
    assert shown["inside_steps"][0]["groups"] == 0, "what a cut group would have become is unknown"
    assert shown["enforced"]["measured"]["cut_inside_a_step"] == 1


def test_the_simulated_agent_has_characters_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    household = ("--env", "household", "--simulated", "--count", "3", "--group-size", "3", "--max-steps", "4")
    done = invoke(run, *household, "--stream", "token,tau=0.1")
    assert "the simulated agent has no token ids" in str(done.exception)
    done = invoke(run, *household, "--stream", "char,tau=0.1,start=4", "--name", "s")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("token,tau=0.1", StreamRule(level="token", tau=0.1)),
        (
            "char, tau=0.05, start=10, check_every=3",
            StreamRule(level="char", tau=0.05, start=10, check_every=3),
        ),
    ],
)
def test_a_rule_on_the_command_line(text: str, rule: StreamRule) -> None:
    assert stream_rule_of(text) == rule


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("token", "say tau"),
        ("action,tau=0.1", "must be token or char"),
        ("token,tau=x", "tau is no number"),
        ("token,tau=0.1,start=1.5", "start is no number"),
        ("token,tau=0.1,tau=0.2", "once each"),
        ("token,tau=0.1,every=3", "none of tau="),
        ("token,tau=2", "must be a number in"),
    ],
)
def test_a_rule_that_is_none(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        stream_rule_of(text)
