"""The command line: exit codes, one-line errors, one JSON document."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from selective_rollout.cli.main import main
from selective_rollout.cli.workload import read_tasks
from selective_rollout.errors import MissingExtraError
from selective_rollout.gate.certificate import Certificate, Stratum
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.gate_file import write_gate_file
from selective_rollout.testing import LoopbackServer, TutorialBrain
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder


class Done(NamedTuple):
    code: int
    out: str
    err: str


Invoke = Callable[..., Done]


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Invoke:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["selective-rollout", *arguments])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 1
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return call


SIMULATED = ("run", "--env", "household", "--simulated", "--group-size", "4", "--count")


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (
                ("run", "--env", "household", "--simulated", "--tau", "1.5"),
                "gate.tau must be a number in [0, 1]",
            ),
            (("run", "--env", "household", "--simulated", "--tau", "nan"), "gate.tau"),
            (
                ("run", "--env", "household", "--simulated", "--group-size", "1"),
                "run.group_size must be at least 2",
            ),
            (("run", "--env", "household", "--simulated", "--start-step", "0"), "gate.start_step"),
            (("run", "--env", "household", "--simulated", "--mode", "enforce"), "needs a certificate"),
            (("run", "--base-url", "http://127.0.0.1:1/v1", "--model", "m"), "name a tasks file"),
            (("run", "t.jsonl", "--simulated"), "--simulated plays the household world only"),
            (("run", "t.jsonl", "--env", "nowhere:make", "--base-url", "http://127.0.0.1:1/v1"), "'nowhere'"),
            (
                ("run", "t.jsonl", "--env", "palace", "--base-url", "http://127.0.0.1:1/v1"),
                "use household, prompt",
            ),
            (("bench", "--sweep", "a,b"), "something that is no number"),
            (("bench", "--prompts", "0"), "--prompts must be at least 1"),
            (("plan", "--group-size", "1"), "a group needs at least 2 rollouts"),
            (("plan", "--pass-rate", "2"), "a pass rate lies between 0 and 1"),
            (("sweep", "t.jsonl", "--highest-reward", "nan"), "--highest-reward must be above 0"),
            (("calibrate", "t.jsonl", "--audit-rate", "0.1"), "--audit-rate goes with --renew"),
        ],
    )
    def test_bad_values_are_one_line_and_code_2(
        self, invoke: Invoke, arguments: tuple[str, ...], words: str
    ) -> None:
        Path("t.jsonl").write_text('{"prompt": "p"}\n')
        done = invoke(*arguments)
        assert done.code == 2
        assert words in done.err
        assert done.err.count("\n") == 1
        assert done.out == ""

    def test_unknown_options_are_usage_errors(self, invoke: Invoke) -> None:
        assert invoke("run", "--temprature", "1").code == 2

    def test_a_missing_endpoint_says_what_to_set(self, invoke: Invoke) -> None:
        Path("t.jsonl").write_text('{"prompt": "p"}\n')
        done = invoke("run", "t.jsonl")
        assert done.code == 3
        assert "set SELECTIVE_ROLLOUT_BASE_URL" in done.err
        assert not Path("runs").exists()

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("nonsense\n", "t.jsonl:1: not JSON"),
            ('{"prompt": "a"}\n[1]\n', 't.jsonl:2: a task is an object with a text "prompt"'),
            ("\n\n", "there are no tasks to run"),
            (
                '{"id": [1], "prompt": "a"}',
                't.jsonl:1: the "id" of a task is text or a whole number, not [1]',
            ),
            ('{"id": true, "prompt": "a"}', "not true"),
            ('{"prompt": "caf\udce9"}', "t.jsonl: not UTF-8"),
        ],
    )
    def test_bad_task_lines_are_named(self, invoke: Invoke, text: str, words: str) -> None:
        Path("t.jsonl").write_text(text, errors="surrogateescape")
        done = invoke("run", "t.jsonl", "--base-url", "http://127.0.0.1:1/v1", "--model", "m")
        assert done.code == 2
        assert words in done.err

    def test_a_command_without_its_extra_leaves_the_others_alone(
        self, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def without(name: str) -> object:
            if name.endswith(".report"):
                raise MissingExtraError("analysis", "matplotlib")
            return importlib.import_module(name)

        monkeypatch.setattr("selective_rollout.cli.main.importlib", SimpleNamespace(import_module=without))
        assert "Needs the 'analysis' extra." in invoke("--help").out
        done = invoke("report", "runs/x", "--json")
        assert done.code == 3
        assert 'pip install "selective-rollout[analysis]"' in done.err
        assert invoke("plan", "--pass-rate", "0.5").code == 0

    def test_debug_shows_where_an_error_came_from(self, invoke: Invoke) -> None:
        assert "Traceback" in invoke("--debug", "plan", "--group-size", "1").err


class TestRun:
    def test_a_simulated_run_leaves_config_trace_metrics_and_picture(self, invoke: Invoke) -> None:
        done = invoke(*SIMULATED, "6", "--name", "first")
        assert done.code == 0, done.err
        assert "zero variance (base rate)" in done.out
        folder = Path("runs/first")
        names = sorted(path.name for path in folder.iterdir())
        assert names[:3] == ["config.toml", "distance.png", "metrics.json"]
        assert len(list(read_groups(folder))) == 6
        assert json.loads((folder / "metrics.json").read_text())["groups"] == 6

    def test_json_is_exactly_one_document(self, invoke: Invoke) -> None:
        done = invoke(*SIMULATED, "3", "--json")
        document = json.loads(done.out)
        assert document["groups"] == 3
        assert document["tokens"]["prompt"] == 0
        assert document["tokens"]["unknown_prompts"] > 0

    def test_a_run_is_never_overwritten_silently(self, invoke: Invoke) -> None:
        invoke(*SIMULATED, "2", "--name", "x")
        before = Path("runs/x/metrics.json").read_bytes()
        done = invoke(*SIMULATED, "3", "--name", "x")
        assert done.code == 2
        assert "runs/x exists: choose another --name, or --resume the run" in done.err
        assert Path("runs/x/metrics.json").read_bytes() == before

    def test_resuming_with_other_settings_names_them(self, invoke: Invoke) -> None:
        invoke(*SIMULATED, "2", "--name", "x")
        done = invoke(*SIMULATED, "2", "--name", "x", "--tau", "0.2", "--resume")
        assert done.code == 2
        assert "gate.tau was 0.12, is 0.2" in done.err

    def test_resuming_what_does_not_exist_is_an_error(self, invoke: Invoke) -> None:
        assert "no run to resume there" in invoke(*SIMULATED, "2", "--name", "y", "--resume").err

    def test_a_gate_that_can_never_fire_is_pointed_out(self, invoke: Invoke) -> None:
        done = invoke(*SIMULATED, "2", "--max-steps", "5")
        assert done.code == 0
        assert "warning: max_steps 5 is below start_step 10: this gate can never fire" in done.err

    def test_calibrate_hands_enforce_a_gate_that_no_flag_can_loosen(self, invoke: Invoke) -> None:
        invoke(*SIMULATED, "150", "--name", "observed")
        done = invoke("calibrate", "runs/observed", "--no-split", "--alpha", "0.2")
        assert done.code == 0, done.err
        assert Path("gate.toml").exists(), done.out
        enforce = (*SIMULATED, "10", "--mode", "enforce", "--gate", "gate.toml")
        loosened = invoke(*enforce, "--tau", "0.9")
        assert loosened.code == 2
        assert "the certificate does not cover this rule: tau: 0.9 is above the certified" in loosened.err
        done = invoke(*enforce, "--task-seed", "5", "--audit-rate", "0.5", "--json")
        assert done.code == 0, done.err
        assert "warning" not in done.err
        assert "audit: alarm at e-value 20" in done.err
        assert json.loads(done.out)["cut"] >= 1

    def test_each_stratum_is_gated_by_its_own_threshold(self, invoke: Invoke) -> None:
        strata = (Stratum("clean", 0.3, 40, 0, 20, 60), Stratum("cool", 0.05, 40, 0, 5, 60))
        certificate = Certificate(
            *(GateConfig(tau=0.3), 0.2, 0.05, 80, 0, 25, 120, "0.05:0.50:0.05", 0.4, 0),
            chains=2,
            stratum_key="type",
            strata=strata,
        )
        write_gate_file(Path("gate.toml"), certificate)
        enforce = (*SIMULATED, "40", "--mode", "enforce", "--gate", "gate.toml")
        done = invoke(*enforce, "--name", "own")
        assert done.code == 0, done.err
        taus: dict[str, set[float | None]] = {}
        cut = set()
        for group in read_groups("runs/own"):
            kind = group.group.metadata["type"]
            taus.setdefault(kind, set()).add(group.begin.tau)
            assert {decision.tau for decision in group.decisions} <= taus[kind]
            if group.end is not None and group.end.cut_at is not None:
                cut.add(kind)
        assert taus == {"clean": {0.3}, "cool": {0.05}, "move": {0.0}, "heat": {0.0}}
        assert cut
        assert cut <= {"clean", "cool"}
        assert "the gate is off for" in done.err
        assert "their 'type' is missing or not certified (certified: clean, cool)" in done.err.replace(
            "\n", " "
        )
        invoke(*enforce, "--tau", "0.1", "--name", "lower")
        kinds = {group.group.metadata["type"]: group.begin.tau for group in read_groups("runs/lower")}
        assert kinds == {"clean": 0.1, "cool": 0.05, "move": 0.0, "heat": 0.0}

    def test_tasks_without_an_id_go_by_their_line(self, tmp_path: Path) -> None:
        tasks = tmp_path / "t.jsonl"
        tasks.write_text('{"id": null, "prompt": "a"}\n{"id": "", "prompt": "b"}\n{"prompt": "c"}\n')
        assert [task.id for task in read_tasks(tasks)] == ["1", "2", "3"]

    def test_tasks_that_share_a_prompt_under_different_ids_are_told(self, invoke: Invoke) -> None:
        Path("t.jsonl").write_text('{"prompt": "same"}\n' * 2 + '{"prompt": "other"}\n')
        with LoopbackServer(TutorialBrain(steps=2)) as server:
            endpoint = ("--base-url", server.base_url, "--model", server.model)
            done = invoke(
                *("run", "t.jsonl", *endpoint, "--api-key", server.api_key or "", "--group-size", "2"),
                *("--max-steps", "2", "--start-step", "1"),
            )
        assert done.code == 0, done.err
        assert "warning: 2 tasks share a prompt but not an id" in done.err

    def test_a_resumed_run_counts_the_groups_of_its_first_part(self, invoke: Invoke) -> None:
        before = json.loads(invoke(*SIMULATED, "5", "--name", "x", "--json").out)
        again = json.loads(invoke(*SIMULATED, "5", "--name", "x", "--resume", "--json").out)
        assert again == before

    def test_history_is_kept_and_read(self, invoke: Invoke) -> None:
        arguments = (*SIMULATED, "4", "--history-mixed", "4", "--history", "h.json")
        invoke(*arguments, "--name", "one")
        assert len(json.loads(Path("h.json").read_text())["tasks"]) == 4
        invoke(*arguments, "--name", "two")
        facts = [d.facts for r in read_groups("runs/two") for d in r.decisions if d.facts]
        assert {len(fact.history or ()) for fact in facts} == {4}

    def test_enforcing_uncertified_is_possible_and_said(self, invoke: Invoke) -> None:
        done = invoke(*SIMULATED, "10", "--mode", "enforce", "--uncertified", "--json")
        assert json.loads(done.out)["cut"] >= 1

    def test_an_endpoint_and_an_environment_of_ones_own(self, invoke: Invoke) -> None:
        Path("my_world.py").write_text(
            "from selective_rollout.env.base import Observation, StepResult\n"
            "class World:\n"
            "    replayable = True\n"
            "    def __init__(self, task, rollout): self.task = task\n"
            "    def start(self): return Observation('begin')\n"
            "    def step(self, action):\n"
            "        ended = action.startswith('answer(')\n"
            "        return StepResult('ok', terminated=ended, answer=action if ended else None)\n"
            "    def close(self): pass\n"
            "def score(task, rollout): return float(rollout.answer == 'answer(yes)')\n"
        )
        Path("t.jsonl").write_text("".join(f'{{"id": "q{i}", "prompt": "question {i}"}}\n' for i in range(4)))
        with LoopbackServer(TutorialBrain(0.5, steps=4)) as server:
            done = invoke(
                *("run", "t.jsonl", "--env", "my_world:World", "--reward", "my_world:score"),
                *("--base-url", server.base_url, "--model", server.model, "--api-key", server.api_key or ""),
                *("--group-size", "4", "--start-step", "2", "--name", "mine", "--json"),
            )
        assert done.code == 0, done.err
        document = json.loads(done.out)
        assert document["tokens"]["sources"] == {"server": document["tokens"]["requests"]}
        assert server.api_key
        for path in Path("runs/mine").iterdir():
            assert server.api_key.encode() not in path.read_bytes()

    def test_what_fails_every_time_is_named_in_the_summary(self, invoke: Invoke) -> None:
        Path("my_judge.py").write_text("def score(task, rollout): raise RuntimeError('no key')\n")
        arguments = (*SIMULATED, "2", "--reward", "my_judge:score")
        done = invoke(*arguments, "--name", "shown")
        assert done.code == 0
        shown = " ".join(done.out.split())
        assert "score, 8 times, such as RuntimeError: no key" in shown
        assert json.loads(invoke(*arguments, "--name", "told", "--json").out)["failures"] == {"score": 8}


class TestPlan:
    def test_the_chance_of_a_signal_is_the_textbooks(self, invoke: Invoke) -> None:
        done = invoke("plan", "--pass-rate", "0.5", "--group-size", "2", "--group-size", "8", "--json")
        rows = json.loads(done.out)["plan"]
        assert [row["p_signal"] for row in rows] == [0.5, 1 - 2 * 0.5**8]
        assert rows[0]["rollouts_per_signal_group"] == 4

    def test_a_hopeless_prompt_never_gives_one(self, invoke: Invoke) -> None:
        assert "never one" in invoke("plan", "--pass-rate", "0").out

    def test_pass_rates_can_come_from_a_trace(self, invoke: Invoke) -> None:
        invoke(*SIMULATED, "12", "--name", "x")
        done = invoke("plan", "runs/x")
        assert done.code == 0
        assert "12 recorded prompts" in done.out.replace("\n", " ")

    def test_a_sum_of_floats_that_misses_1_by_a_hair_is_a_success(self, invoke: Invoke) -> None:
        def recorded(full: float) -> str:
            with Recorder(Path(f"{full}.jsonl")) as recorder:
                for name in ("a", "b", "c"):
                    with recorder.group(name, size=3) as group:
                        for rollout, reward in enumerate((full, full, 0.0)):
                            group.finish(rollout, reward=reward)
            return invoke("plan", f"{full}.jsonl", "--json").out

        assert recorded(0.1 * 3 + 0.7 - 1e-9) == recorded(1.0)


class TestDoctor:
    def test_without_an_endpoint_it_reports_versions(self, invoke: Invoke) -> None:
        document = json.loads(invoke("doctor", "--json").out)
        assert document["endpoint"] is None
        assert document["versions"]["rapidfuzz (core)"]

    def test_a_sound_endpoint_is_fit(self, invoke: Invoke) -> None:
        with LoopbackServer(TutorialBrain()) as server:
            done = invoke("doctor", "--base-url", server.base_url, "--api-key", server.api_key or "")
        assert done.code == 0
        assert "Fit for gating." in done.out
        assert (server.api_key or "") not in done.out

    def test_a_dead_endpoint_fails_the_check(self, invoke: Invoke) -> None:
        done = invoke("doctor", "--base-url", "http://127.0.0.1:9/v1", "--model", "m")
        assert done.code == 1
        assert "Not fit for gating: reachable" in done.out


def test_bench_counts_one_observe_run_and_shows_the_enforced_one_beside_it(invoke: Invoke) -> None:
    done = invoke("bench", "--prompts", "12", "--sweep", "0,0.05,0.2", "--json")
    document = json.loads(done.out)
    assert [row["tau"] for row in document["observed"]] == [0.0, 0.05, 0.2]
    assert document["observed"][0]["cuts"] == 0
    assert document["enforced"]["requests"] < document["no_gate"]["requests"] == 12 * 4 * 8
    assert document["enforced"]["groups_cut"] == document["observed"][1]["cuts"] > 0


def test_an_interrupted_run_exits_130_and_can_be_resumed(tmp_path: Path) -> None:
    # Whoever runs these tests in the background of a shell has children that are deaf to SIGINT.
    hears = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{hears}; from selective_rollout.cli.main import main; main()"]
    arguments = [*SIMULATED, "4000", "--name", "long"]
    process = subprocess.Popen(
        [*command, *arguments], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    folder = tmp_path / "runs" / "long"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not any(
        b"group_end" in p.read_bytes() for p in folder.glob("*.jsonl")
    ):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "interrupted; what was recorded is valid and can be resumed"
    groups = list(read_groups(folder))
    assert any(group.end is not None for group in groups)
    assert any(group.end is None for group in groups)
