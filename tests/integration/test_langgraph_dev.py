"""`langgraph dev` serves the example without a network or a key, and a client runs a group on it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "langgraph_dev"
CLI = Path(sys.executable).with_name("langgraph")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[str]:
    if not CLI.exists():
        pytest.skip("langgraph-cli[inmem] is not installed")
    folder = tmp_path_factory.mktemp("dev") / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    port = free_port()
    told = ("VLLM_", "LANGSMITH_", "LANGCHAIN_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(told)}
    no_way_out = {f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https", "all")}
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [CLI, "dev", "--no-browser", "--no-reload", "--host", "127.0.0.1", "--port", str(port)],
            cwd=folder,
            env={**environment, **no_way_out, "no_proxy": "127.0.0.1", "LANGGRAPH_CLI_NO_ANALYTICS": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until_up(f"http://127.0.0.1:{port}/ok", server, folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def until_up(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while True:
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=30):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.2)


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def test_a_group_runs_with_settings_of_its_own(address: str) -> None:
    state = post(
        f"{address}/runs/wait",
        {
            "assistant_id": "group",
            "input": {"prompt": "Which river runs through Vienna?"},
            "context": {"group_size": 4, "mode": "observe"},
        },
    )
    assert state["status"] == "finished"
    assert len(state["rollouts"]) == 4
    assert [decision["step"] for decision in state["decisions"]] == [3]


def test_a_thread_keeps_its_group(address: str) -> None:
    thread = post(f"{address}/threads", {})["thread_id"]
    body = {"assistant_id": "group", "input": {"prompt": "How many cups are left?"}}
    state = post(f"{address}/threads/{thread}/runs/wait", body)
    assert state["group_id"] == thread
    with urllib.request.urlopen(f"{address}/threads/{thread}/state", timeout=30) as response:
        kept = json.load(response)["values"]
    assert kept["rollouts"] == state["rollouts"]


def test_the_settings_are_known_as_a_form(address: str) -> None:
    (assistant,) = post(f"{address}/assistants/search", {"graph_id": "group"})
    with urllib.request.urlopen(
        f"{address}/assistants/{assistant['assistant_id']}/schemas", timeout=30
    ) as response:
        schema = json.load(response)["context_schema"]
    assert {"group_size", "tau", "start_step", "mode", "max_attempts"} <= set(schema["properties"])
