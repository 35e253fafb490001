"""The page "gate an agent you did not write" is followed literally, with another port and a fake model."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from selective_rollout.testing import LoopbackServer, Reply, ScriptedBrain, ToolCall
from selective_rollout.trace.reader import read_groups

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "gate-an-agent-you-did-not-write.md"
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = [sys.executable, "-c", "from selective_rollout.cli.main import main; main()"]


def look_then_answer(request: dict[str, Any], choice: int, seed: int | None) -> Reply | str:
    done = sum(message["role"] == "assistant" for message in request["messages"])
    if done < 3:
        return Reply(tool_calls=(ToolCall("look", json.dumps({"page": done})),))
    return "Fuse 7."


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_page_works_as_it_is_written(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    port = str(free_port())
    with LoopbackServer(ScriptedBrain(look_then_answer), api_key=None) as model:
        text = PAGE.read_text(encoding="utf-8").replace("8790", port)
        text = text.replace("http://127.0.0.1:8000/v1", model.base_url)
        blocks = [(kind, block.strip()) for kind, block in BLOCK.findall(text)]
        (_, serve), (_, agent), (_, curls), (_, report), (_, enforce) = blocks
        command = [*COMMAND, *shlex.split(serve)[1:], "--port", port]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as gateway:
            try:
                assert gateway.stdout is not None
                assert gateway.stdout.readline().startswith("serving")
                said = run([sys.executable, "-c", agent], tmp_path)
                assert said.strip() == str(["Fuse 7."] * 4)
                for line in curls.splitlines():
                    assert json.loads(run(shlex.split(line), tmp_path))["recorded"] is True
            finally:
                gateway.send_signal(signal.SIGINT)
    run([*COMMAND, *shlex.split(report)[1:]], tmp_path)
    (group,) = read_groups(tmp_path / "runs" / "first" / "trace.jsonl")
    assert group.end is not None
    assert group.end.would_cut_at == 2
    assert [rollout.reward for rollout in group.group.rollouts] == [1, 1, 0, 1]
    assert shlex.split(enforce)[1] == "serve"


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
