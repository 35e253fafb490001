"""Agent Lightning's own server and controller, with the gateway between its agents and its proxy.

Agents -> gateway -> Agent Lightning's proxy -> model server. Its controller starts every agent in a process
of its own and gives it an address; the group travels in headers that a hook of its trainer adds.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from selective_rollout.engine.config import RunConfig
from selective_rollout.gate.config import GateConfig
from selective_rollout.testing import LoopbackServer, ScriptedBrain

PYTHON = Path(os.environ.get("AGENT_LIGHTNING_PYTHON", "missing")).absolute()
"""An interpreter of another environment (Python 3.12 or later), with `pip install agentlightning`."""
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "gate-an-agent-you-did-not-write.md"
Start = Callable[..., Awaitable[Any]]
G = 3
STEPS = 4

AGENT = """
import json, os
import httpx

class Agent:
    def run(self):
        messages = [{"role": "user", "content": os.environ["TASK"]}]
        with httpx.Client(headers=json.loads(os.environ["HEADERS"]), timeout=60) as client:
            for _ in range(10):
                said = client.post(
                    os.environ["AGL_OPENAI_BASE_URL"] + "/chat/completions",
                    json={"model": "any", "messages": messages},
                )
                said.raise_for_status()
                message = said.json()["choices"][0]["message"]
                if message["content"].startswith("answer"):
                    break
                messages += [message, {"role": "user", "content": "Done. Next?"}]
            reward = {"event_type": "reward", "data": {"value": 1.0}}
            client.post(os.environ["AGL_EVENT_URL"], json=reward).raise_for_status()
"""

TRAINER = """
import json, sys
from agentlightning.client import AgentLightningSyncClient
from agentlightning.hooks import load_hooks
from agentlightning.schemas import RolloutCreate

server, model, hooks = sys.argv[1], sys.argv[2], load_hooks(sys.argv[3])
hooks.on_startup()
env = {"TASK": "input.task", "HEADERS": "input.headers"}
config = {"local": {"agent_class": "agent:Agent", "env_map": env}}
with AgentLightningSyncClient(base_url=server) as client:
    client.post_with_retry("/api/models", json=[{"model": "loopback-model", "endpoint": model}])
    asked = [hooks.on_enqueue(RolloutCreate(input={"task": "find-it"}, config=config)) for _ in range(3)]
    client.post_with_retry("/api/rollouts", json=[one.model_dump(mode="json") for one in asked])
"""

RESULTS = """
import json, sys, time
from agentlightning.client import AgentLightningSyncClient

with AgentLightningSyncClient(base_url=sys.argv[1]) as client:
    while client.get("/api/rollouts/terminal").json()["total_terminal"] < 3:
        time.sleep(0.1)
    ended = client.get("/api/rollouts", params={"state_in": ["succeeded", "failed"]}).json()
    events = [client.get(f"/api/rollouts/{r['rollout_id']}/events").json() for r in ended]
    kinds = [[event["event_type"] for event in those] for those in events]
    print(json.dumps([[r["status"]["state"] for r in ended], kinds]))
"""


def look_then_answer(request: dict[str, Any], choice: int, seed: int | None) -> str:
    done = sum(message["role"] == "assistant" for message in request["messages"])
    return f"look({done})" if done < STEPS else "answer(42)"


@pytest.fixture
def model() -> Iterator[LoopbackServer]:
    with LoopbackServer(ScriptedBrain(look_then_answer), api_key=None) as server:
        yield server


def hooks_of_the_page() -> str:
    blocks = re.findall(r"```python[^\n]*\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (hooks,) = [block for block in blocks if "RolloutHooks" in block]
    return str(hooks).replace("SIZE = 8", f"SIZE = {G}")


@asynccontextmanager
async def process(folder: Path, *arguments: str) -> AsyncIterator[None]:
    """A server of Agent Lightning, with `folder` on its import path."""
    running = await asyncio.create_subprocess_exec(
        str(PYTHON),
        *arguments,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        running.terminate()
        await running.wait()


async def told(script: str, *arguments: str) -> str:
    """What a script says that runs in Agent Lightning's environment."""
    running = await asyncio.create_subprocess_exec(
        str(PYTHON), "-c", script, *arguments, stdout=subprocess.PIPE
    )
    out, _ = await running.communicate()
    assert running.returncode == 0
    return out.decode().strip()


async def is_up(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            await writer.wait_closed()
            return


@pytest.mark.parametrize("mode", ["observe", "enforce"])
async def test_its_agents_go_through_the_gateway(
    start: Start, model: LoopbackServer, mode: Any, tmp_path: Path, free_port: Callable[[], int]
) -> None:
    if not PYTHON.exists():
        pytest.skip("needs AGENT_LIGHTNING_PYTHON, a python >= 3.12 with agentlightning")
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "group_headers.py").write_text(hooks_of_the_page())
    port = free_port()
    own = f"http://127.0.0.1:{port}"
    running = await start(own, rule=GateConfig(start_step=2), run=RunConfig(mode=mode))
    server = ("-m", "agentlightning.server", "host=127.0.0.1", f"port={port}")
    controller = (
        *("-m", "agentlightning.controller", "runner_type=local", "local_runner.poll_interval=0.2"),
        *(f"agl_server.url={own}", f"agl_server.agent_url={running.url}"),
    )
    async with asyncio.timeout(300), AsyncExitStack() as stack:
        named = "default_proxy.model_name=loopback-model"
        await stack.enter_async_context(process(tmp_path, *server, named))
        await is_up(port)
        await told(TRAINER, own, model.base_url, str(tmp_path / "group_headers.py"))
        await stack.enter_async_context(process(tmp_path, *controller))
        states, events = json.loads(await told(RESULTS, own))
    (group,) = running.gateway.view().groups
    assert (group.group, group.task_id, group.fired_at) == ("find-it.0", "find-it", 2)
    if mode == "observe":
        assert states == ["succeeded"] * G
        assert events == [["model_request"] * (STEPS + 1) + ["reward"]] * G
    else:
        assert states == ["failed"] * G
        assert events == [["model_request"] * 2] * G
        assert group.cut_as == "drop"
