"""Agent frameworks that the gateway was not written for, each in a process of its own environment.

They get an address with the rollout in it, and no line of code more.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from selective_rollout.engine.config import RunConfig
from selective_rollout.gate.config import GateConfig
from selective_rollout.testing import LoopbackServer, Reply, ScriptedBrain, ToolCall

PYTHON = Path(os.environ.get("FRAMEWORKS_PYTHON", "missing")).absolute()
"""An interpreter of another environment, with `pip install openai-agents "pydantic-ai-slim[openai]"`."""
Start = Callable[..., Awaitable[Any]]

AGENTS_SDK = """
import asyncio, sys
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import APIStatusError, AsyncOpenAI

set_tracing_disabled(True)

@function_tool
def look(at: int) -> str:
    "Look at something."
    return f"nothing at {at}"

client = AsyncOpenAI(base_url=sys.argv[1], api_key="EMPTY")
model = OpenAIChatCompletionsModel("loopback-model", client)
agent = Agent(name="finder", instructions="Find it.", tools=[look], model=model)
try:
    if sys.argv[2] == "stream":
        async def run():
            result = Runner.run_streamed(agent, "find it")
            async for _ in result.stream_events():
                pass
            return result.final_output
        print(asyncio.run(run()))
    else:
        print(Runner.run_sync(agent, "find it").final_output)
except APIStatusError as error:
    print(error.status_code, error.code)
"""

PYDANTIC_AI = """
import sys
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel("loopback-model", provider=OpenAIProvider(base_url=sys.argv[1], api_key="EMPTY"))
agent = Agent(model, instructions="Find it.")

@agent.tool_plain
def look(at: int) -> str:
    "Look at something."
    return f"nothing at {at}"

try:
    if sys.argv[2] == "stream":
        import asyncio
        async def run():
            async with agent.run_stream("find it") as result:
                return await result.get_output()
        print(asyncio.run(run()))
    else:
        print(agent.run_sync("find it").output)
except ModelHTTPError as error:
    print(error.status_code, error.body["code"])
"""
FRAMEWORKS = {"openai-agents": AGENTS_SDK, "pydantic-ai": PYDANTIC_AI}


def look_then_answer(request: dict[str, Any], choice: int, seed: int | None) -> Reply | str:
    done = sum(message["role"] == "assistant" for message in request["messages"])
    if done < 3:
        return Reply(tool_calls=(ToolCall("look", json.dumps({"at": done})),))
    return "Final Answer: 42"


@pytest.fixture
def model() -> Iterator[LoopbackServer]:
    with LoopbackServer(ScriptedBrain(look_then_answer), api_key=None) as server:
        yield server


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("mode", "stream", "said"),
    [
        ("observe", "whole", "Final Answer: 42"),
        ("observe", "stream", "Final Answer: 42"),
        ("enforce", "whole", "410 group_cut"),
    ],
)
async def test_a_framework(
    start: Start, model: LoopbackServer, framework: str, mode: Any, stream: str, said: str
) -> None:
    if not PYTHON.exists():
        pytest.skip("needs FRAMEWORKS_PYTHON, a python with openai-agents and pydantic-ai-slim[openai]")
    running = await start(model.base_url, rule=GateConfig(start_step=2), run=RunConfig(mode=mode))

    async def run(rollout: int) -> str:
        address = f"{running.root}/g/{framework}/{rollout}/2/v1"
        process = await asyncio.create_subprocess_exec(
            str(PYTHON), "-c", FRAMEWORKS[framework], address, stream, stdout=subprocess.PIPE
        )
        out, _ = await process.communicate()
        return out.decode().strip()

    assert await asyncio.gather(run(0), run(1)) == [said] * 2
    (group,) = running.gateway.view().groups
    assert group.fired_at == 2
    assert [member.steps for member in group.members] == [2 if mode == "enforce" else 3] * 2
