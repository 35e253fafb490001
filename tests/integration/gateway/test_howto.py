"""The page "gate an agent you did not write" is followed literally, on other ports."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from selective_rollout.trace.reader import read_groups

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "gate-an-agent-you-did-not-write.md"
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAMS = {
    "selective-rollout": [sys.executable, "-c", "from selective_rollout.cli.main import main; main()"],
    "python": [sys.executable],
}


def command_of(line: str) -> list[str]:
    program, *rest = shlex.split(line)
    return [*PROGRAMS.get(program, [program]), *rest]


def run(line: str, folder: Path, code: int = 0) -> tuple[str, str]:
    command = command_of(line)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


@contextmanager
def running(line: str, folder: Path, until: str, number: int = signal.SIGINT) -> Iterator[None]:
    """A server, from the line that says it is ready until it is told to stop."""
    with subprocess.Popen(
        command_of(line), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None
            assert any(said.startswith(until) for said in server.stdout)
            yield
        finally:
            server.send_signal(number)


def test_the_page_works_as_it_is_written(tmp_path: Path, free_port: Callable[[], int]) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    gateway, model = str(free_port()), str(free_port())
    text = PAGE.read_text(encoding="utf-8")
    blocks = [
        block.strip() for _, block in BLOCK.findall(text.replace("8790", gateway).replace("8000", model))
    ]
    serve, play, agent, curls, report, enforce, again, error, *_ = blocks
    (tmp_path / "agent.py").write_text(agent)
    with running(play, tmp_path, "http", signal.SIGTERM):
        with running(f"{serve} --port {gateway}", tmp_path, "recording"):
            assert run("python agent.py task-7", tmp_path)[0].strip() == str(["answer(yes)"] * 4)
            with urllib.request.urlopen(f"http://127.0.0.1:{gateway}/", timeout=60) as page:
                assert page.headers["content-type"] == "text/html; charset=utf-8"
            for line in curls.splitlines():
                assert json.loads(run(line, tmp_path)[0])["recorded"] is True
        said, _ = run(report, tmp_path)
        assert re.search(r"right / wrong / missed +0 / 1 / 0", said)
        with running(f"{again} --port {gateway}", tmp_path, "recording"):
            _, seen = run("python agent.py task-8", tmp_path, code=1)
            assert seen.strip().splitlines()[-1] == error
    (group,) = read_groups(tmp_path / "runs" / "first" / "trace.jsonl")
    assert group.end is not None
    assert group.end.would_cut_at == 2
    assert [rollout.reward for rollout in group.group.rollouts] == [1, 1, 0, 1]
    assert shlex.split(enforce)[1] == "serve"
