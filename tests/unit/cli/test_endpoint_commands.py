"""`run` and `doctor` against the loopback server: the account beside the server's, and one JSON document."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from selective_rollout.cli.doctor import doctor
from selective_rollout.cli.run import run
from selective_rollout.policy import doctor_probe
from selective_rollout.testing import Fault, FaultContext, LoopbackServer, ScriptedBrain, TutorialBrain

STEPS = 3


def invoke(command: object, server: LoopbackServer, *arguments: str) -> Result:
    options = ["--base-url", server.base_url, "--api-key", server.api_key or "", "--model", server.model]
    return CliRunner().invoke(command, [*options, *arguments])  # type: ignore[arg-type]


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("t.jsonl").write_text(
        "".join(json.dumps({"id": f"g{i}", "prompt": f"go {i}"}) + "\n" for i in range(2))
    )
    return "t.jsonl"


@pytest.mark.parametrize("personality", ["vllm", "llama.cpp"])
def test_a_run_is_compared_with_the_servers_own_count(tasks: str, personality: str) -> None:
    with LoopbackServer(TutorialBrain(1.0, STEPS), personality) as server:  # type: ignore[arg-type]
        shape = ("--group-size", "4", "--max-steps", str(STEPS), "--start-step", "2")
        done = invoke(run, server, tasks, *shape, "--json")
        generated = server.counters.completion_tokens
    assert done.exit_code == 0, done.output
    compared = json.loads(done.stdout)["server"]
    assert compared["ledger_completion"] == compared["server_completion"] == generated > 0
    assert compared["surplus"] == 0
    assert compared["note"]


def test_the_comparison_is_one_line_for_people(tasks: str) -> None:
    with LoopbackServer(TutorialBrain(1.0, STEPS)) as server:
        done = invoke(run, server, tasks, "--group-size", "4", "--max-steps", "3", "--start-step", "2")
    assert "the server's own count" in done.stdout
    assert "+0 to the ledger" in done.stdout


def test_doctor_prints_one_document(monkeypatch: pytest.MonkeyPatch) -> None:
    def faults(context: FaultContext) -> Fault | None:
        """A long answer stands still after some tokens until its client leaves."""
        is_long = context.body.get("max_tokens", 0) > 2 * doctor_probe.SHORT
        return Fault("stall", after_steps=20) if is_long else None

    monkeypatch.setattr(doctor_probe, "_LONG_S", 0.3)
    brain = ScriptedBrain(lambda request, choice, seed: " ".join([f"word{seed}"] * 500))
    with LoopbackServer(brain, step_delay_s=0.004, faults=faults) as server:
        document = json.loads(invoke(doctor, server, "--json").stdout)
    assert document["fit"] is True
    verdicts = {check["name"]: check["verdict"] for check in document["checks"]}
    assert verdicts["closing stops a stream"] == "pass"
    assert verdicts["abort by id"] == "warn"
    assert document["endpoint"]["stop_stream"]["stopped"] is True
    assert all(check["advice"] for check in document["checks"] if check["verdict"] in ("warn", "fail"))
