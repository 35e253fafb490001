"""LocalModel's handling of its process, with stand-ins for the process."""

import os
from importlib import util
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from selective_rollout.errors import ConfigError, MissingExtraError, PrerequisiteError
from selective_rollout.testing import local_model
from selective_rollout.testing.local_model import LocalModel, default_threads

OBEDIENT = """
import json, sys
settings = json.loads(sys.stdin.readline())
with open(settings["weights"], "w") as file:
    json.dump(settings, file)
print("http://127.0.0.1:1", flush=True)
sys.stdin.read()
with open(settings["weights"], "w") as file:
    file.write("stopped")
"""
SILENT = "import sys, time; sys.stdin.readline(); time.sleep(60)"
STUBBORN = "import time; print('http://127.0.0.1:1', flush=True); time.sleep(60)"
UNLOADABLE = """
import sys
sys.stdin.readline()
sys.stderr.write("0.00.001 W gguf: odd\\n0.00.002 E gguf_init: bad magic\\n0.00.003 E srv: exiting\\n")
raise RuntimeError("Failed to init server")
"""
BROKEN = "import no_such_library"


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda name: ModuleSpec(name, None))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return tmp_path / "tiny.Q4.gguf"


def serve_with(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "server.py").write_text(source)
    monkeypatch.setattr(local_model, "_SERVER", tmp_path / "server.py")


def test_hands_the_settings_over_and_ends_the_process_by_closing_its_input(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_with(OBEDIENT, tmp_path, monkeypatch)
    monkeypatch.setattr(local_model, "_STOP_TIMEOUT_S", 60.0)
    with LocalModel(weights, slots=3, context_per_slot=256, threads=2) as model:
        assert (model.base_url, model.model) == ("http://127.0.0.1:1/v1", "tiny.Q4")
        told = weights.read_text()
    assert model.api_key in told
    assert '"slots": 3' in told
    assert '"context_per_slot": 256' in told
    assert '"threads": 2' in told
    assert weights.read_text() == "stopped"


def test_every_instance_has_a_key_of_its_own(weights: Path) -> None:
    assert len({LocalModel(weights).api_key for _ in range(3)}) == 3


@pytest.mark.parametrize(
    ("source", "reason"),
    [(UNLOADABLE, "gguf_init: bad magic"), (BROKEN, "No module named 'no_such_library'")],
)
def test_a_server_that_does_not_start_is_one_clear_line(
    source: str,
    reason: str,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    serve_with(source, tmp_path, monkeypatch)
    with pytest.raises(PrerequisiteError) as caught, LocalModel(weights):
        pass
    assert str(caught.value).startswith(f"the local model server with {weights} does not start: ")
    assert str(caught.value).endswith(reason)
    assert capfd.readouterr() == ("", "")


def test_a_server_that_never_answers_is_given_up(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_with(SILENT, tmp_path, monkeypatch)
    monkeypatch.setattr(local_model, "_START_TIMEOUT_S", 0.3)
    with pytest.raises(PrerequisiteError, match=r"no answer within 0\.3 s"), LocalModel(weights):
        pass


def test_a_server_that_does_not_stop_is_killed(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_with(STUBBORN, tmp_path, monkeypatch)
    monkeypatch.setattr(local_model, "_STOP_TIMEOUT_S", 0.1)
    model = LocalModel(weights)
    with model:
        assert model._child is not None
        process = model._child.process
        assert process is not None
        assert process.poll() is None
        with pytest.raises(ConfigError, match="running already"):
            model.__enter__()
    assert process.returncode


def test_without_the_extra_the_install_line_comes_before_any_download(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    monkeypatch.setattr(local_model, "fetch_weights", lambda: pytest.fail("downloaded"))
    with pytest.raises(MissingExtraError, match=r'pip install "selective-rollout\[llm\]"'), LocalModel():
        pass


@pytest.mark.parametrize("setting", ["slots", "context_per_slot", "threads"])
def test_settings_start_at_one(setting: str) -> None:
    settings: Any = {setting: 0}
    with pytest.raises(ConfigError, match=f"{setting} must be at least 1, not 0"):
        LocalModel(**settings)


@pytest.mark.parametrize(
    ("cores", "load", "expected"), [(2, 0.2, 2), (2, 2.9, 2), (2, 3.1, 1), (1, 0.0, 1), (64, 20.0, 4)]
)
def test_threads_follow_cores_and_load(
    cores: int, load: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    assert default_threads() == expected
