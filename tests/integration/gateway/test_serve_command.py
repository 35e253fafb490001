"""`selective-rollout serve` as its users run it: a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from selective_rollout.testing import EchoBrain, LoopbackServer
from selective_rollout.trace.reader import read_groups

SERVE = (sys.executable, "-c", "from selective_rollout.cli.main import main; main()", "serve", "--port", "0")
Begin = Callable[..., "Served"]


class Served:
    """The process, and what it printed when it was ready."""

    def __init__(self, *options: str, cwd: Path, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*SERVE, *options],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.lines: list[str] = []
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if line.startswith("recording into"):
                break

    @property
    def root(self) -> str:
        return self.lines[0].split()[1].removesuffix("/v1")

    def call(self, path: str, body: dict[str, Any], key: str = "EMPTY") -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        sent = urllib.request.Request(self.root + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(sent, timeout=60) as answer:
            return dict(json.load(answer))

    def stop(self, number: int = signal.SIGINT) -> tuple[int, str]:
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@pytest.fixture
def model() -> Iterator[LoopbackServer]:
    with LoopbackServer(EchoBrain(), api_key="sk-upstream-secret-key") as server:
        yield server


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    with ExitStack() as stack:

        def start(*options: str, **settings: Any) -> Served:
            served = Served(*options, cwd=tmp_path, **settings)
            stack.callback(served.stop)
            return served

        yield start


CHAT = {"model": "loopback-model", "messages": [{"role": "user", "content": "hello"}]}
MEMBER = "/g/g1/{}/2/v1/chat/completions"


def test_serve_stop_and_resume(begin: Begin, model: LoopbackServer, tmp_path: Path) -> None:
    options = ("--upstream", model.base_url, "--api-key", "sk-upstream-secret-key", "--name", "mine")
    served = begin(*options)
    assert served.lines[0].endswith(f"for {model.base_url}")
    assert served.lines[1] == "observe: tau 0.12 at step 10, outcome drop"
    key = served.lines[2].removeprefix("client key, shown once: ")
    answer = served.call(MEMBER.format(0), CHAT, key)
    assert answer["choices"][0]["message"]["content"] == "hello"
    path = "/selective-rollout/v1/groups/g1/rollouts/0/end"
    assert served.call(path, {"reward": 1}, key) == {"status": "finished", "reward": 1.0, "recorded": True}
    code, errors = served.stop(signal.SIGTERM)
    assert code == 0
    assert "1 go on with --resume" in errors

    again = begin(*options, "--resume", env={"SELECTIVE_ROLLOUT_CLIENT_KEY": key})
    again.call(MEMBER.format(1), CHAT, key)
    again.call("/selective-rollout/v1/groups/g1/rollouts/1/end", {"reward": 0}, key)
    code, errors = again.stop()
    assert code == 0
    assert "resuming: 1 groups go on, 0 have ended" in errors
    (group,) = read_groups(tmp_path / "runs" / "mine" / "trace.jsonl")
    assert group.end is not None
    assert [r.reward for r in group.group.rollouts] == [1.0, 0.0]
    for file in (tmp_path / "runs" / "mine").iterdir():
        text = file.read_bytes()
        assert key.encode() not in text
        assert b"sk-upstream-secret-key" not in text


def test_a_folder_has_one_gateway(begin: Begin, model: LoopbackServer) -> None:
    options = ("--upstream", model.base_url, "--api-key", "", "--name", "mine")
    begin(*options)
    code, errors = begin(*options, "--resume").stop()
    assert (code, "another gateway records there" in errors) == (3, True)
