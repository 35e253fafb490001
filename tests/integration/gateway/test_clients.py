"""Clients that were not written for the gateway, with nothing but an address and headers."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

from selective_rollout.engine.config import RunConfig
from selective_rollout.gate.config import GateConfig
from selective_rollout.testing import LoopbackServer, Reply, ScriptedBrain, ToolCall

Start = Callable[..., Awaitable[Any]]
RawServers = Callable[..., Awaitable[Any]]
NODE_MODULES = os.environ.get("NODE_PATH", "")
ENFORCE = RunConfig(mode="enforce")
EARLY = GateConfig(start_step=2)


def look_then_answer(request: dict[str, Any], choice: int, seed: int | None) -> Reply | str:
    done = sum(message["role"] == "assistant" for message in request["messages"])
    if done < 3:
        return Reply(content="I look.", tool_calls=(ToolCall("look", json.dumps({"at": done})),))
    return "Final Answer: 42"


@pytest.fixture
def model() -> Iterator[LoopbackServer]:
    with LoopbackServer(ScriptedBrain(look_then_answer), api_key=None) as server:
        yield server


def look(at: int) -> str:
    """Look at something."""
    return f"nothing at {at}"


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
async def test_langchain(start: Start, model: LoopbackServer, streaming: bool) -> None:
    running = await start(model.base_url, rule=EARLY)

    async def run(rollout: int) -> str:
        chat = ChatOpenAI(
            model="loopback-model",
            base_url=f"{running.root}/g/lc/{rollout}/2/v1",
            api_key="EMPTY",  # type: ignore[arg-type]
            streaming=streaming,
            max_retries=0,
        )
        agent = create_agent(chat, [look])
        state = await agent.ainvoke({"messages": [{"role": "user", "content": "find it"}]})
        return str(state["messages"][-1].text)

    assert await asyncio.gather(run(0), run(1)) == ["Final Answer: 42"] * 2
    (group,) = running.gateway.view().groups
    assert [member.steps for member in group.members] == [3, 3]
    assert group.fired_at == 2
    running.sweep_after(31)
    (group,) = running.gateway.view().groups
    assert [member.answer for member in group.members] == ["42", "42"]


async def test_langchain_agents_end_when_their_group_is_cut(start: Start, model: LoopbackServer) -> None:
    running = await start(model.base_url, rule=EARLY, run=ENFORCE)

    async def run(rollout: int) -> None:
        chat = ChatOpenAI(
            model="loopback-model",
            base_url=f"{running.root}/g/lc/{rollout}/2/v1",
            api_key="EMPTY",  # type: ignore[arg-type]
        )
        with pytest.raises(openai.APIStatusError, match="converged"):
            await create_agent(chat, [look]).ainvoke({"messages": [{"role": "user", "content": "find it"}]})

    await asyncio.gather(run(0), run(1))
    assert model.counters.requests == 4


SCRIPT = """
import OpenAI from "openai";
const [root, rollout, stream] = process.argv.slice(2);
const client = new OpenAI({
  baseURL: `${root}/v1`, apiKey: "EMPTY", defaultHeaders: {
    "x-selective-rollout-group": "node", "x-selective-rollout-rollout": rollout,
    "x-selective-rollout-group-size": "2" } });
const messages = [{ role: "user", content: "find it" }];
const tools = [{ type: "function", function: { name: "look", parameters: { type: "object" } } }];
let said = "ran out";
try {
  for (let i = 0; i < 9; i++) {
    const body = { model: "loopback-model", messages, tools };
    const message = stream === "yes"
      ? await client.chat.completions.stream(body).finalMessage()
      : (await client.chat.completions.create(body)).choices[0].message;
    messages.push({ role: message.role, content: message.content, tool_calls: message.tool_calls });
    if (!message.tool_calls?.length) { said = message.content; break; }
    for (const call of message.tool_calls)
      messages.push({ role: "tool", tool_call_id: call.id, content: "nothing" });
  }
} catch (error) { said = `${error.status} ${error.code}`; }
console.log(said);
"""


@pytest.mark.parametrize(
    ("mode", "stream", "said"),
    [
        ("observe", "no", "Final Answer: 42"),
        ("observe", "yes", "Final Answer: 42"),
        ("enforce", "no", "410 group_cut"),
    ],
)
async def test_the_node_sdk(
    start: Start, model: LoopbackServer, tmp_path: Path, mode: Any, stream: str, said: str
) -> None:
    node = shutil.which("node")
    if node is None or not (Path(NODE_MODULES) / "openai").is_dir():
        pytest.skip("needs node, and NODE_PATH with the openai package (npm install openai)")
    running = await start(model.base_url, rule=EARLY, run=RunConfig(mode=mode))
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    (tmp_path / "agent.mjs").write_text(SCRIPT)

    async def run(rollout: int) -> str:
        process = await asyncio.create_subprocess_exec(
            node, str(tmp_path / "agent.mjs"), running.root, str(rollout), stream, stdout=subprocess.PIPE
        )
        out, _ = await process.communicate()
        return out.decode().strip()

    assert await asyncio.gather(run(0), run(1)) == [said] * 2
    (group,) = running.gateway.view().groups
    assert group.fired_at == 2


def response(name: str, items: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": name,
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": "m",
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 9,
            "output_tokens": 4,
            "total_tokens": 13,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def calls(number: int) -> list[dict[str, Any]]:
    arguments = json.dumps({"at": number})
    call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": "look"}
    return [{**call, "arguments": arguments, "status": "completed"}]


DONE = [
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Final Answer: 42", "annotations": []}],
    }
]


@pytest.mark.parametrize("stored", [False, True], ids=["whole input", "previous response"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_the_responses_api(
    start: Start, raw_server: RawServers, plain_json: Callable[..., bytes], stored: bool, stream: bool
) -> None:
    numbers = itertools.count()

    async def answer(got: Any, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(got.body)
        done = sum(
            isinstance(item, dict) and item.get("type") == "function_call_output" for item in asked["input"]
        )
        if asked.get("previous_response_id"):
            done = int(asked["previous_response_id"].split("_")[1]) + 1
        made = response(f"resp_{done}_{next(numbers)}", calls(done) if done < 3 else DONE)
        if not asked.get("stream"):
            writer.write(plain_json(json.dumps(made).encode()))
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        for kind, value in (("response.created", {**made, "output": []}), ("response.completed", made)):
            data = json.dumps({"type": kind, "sequence_number": 0, "response": value})
            writer.write(f"event: {kind}\ndata: {data}\n\n".encode())
        writer.close()

    model = await raw_server(answer)
    running = await start(model.url, rule=EARLY)

    async def run(rollout: int) -> str:
        async with openai.AsyncOpenAI(
            base_url=f"{running.root}/g/r/{rollout}/2/v1", api_key="EMPTY", max_retries=0
        ) as client:
            history: list[Any] = [{"role": "user", "content": "find it"}]
            previous: Any = openai.omit
            while True:
                arguments: dict[str, Any] = {"model": "m", "input": history, "previous_response_id": previous}
                if stream:
                    async with client.responses.stream(**arguments) as events:
                        said = await events.get_final_response()
                else:
                    said = await client.responses.create(**arguments)
                if said.output_text:
                    return str(said.output_text)
                asked = [item for item in said.output if item.type == "function_call"]
                outputs = [
                    {"type": "function_call_output", "call_id": item.call_id, "output": "nothing"}
                    for item in asked
                ]
                if stored:
                    previous, history = said.id, outputs
                else:
                    history += [*(item.model_dump(exclude_none=True) for item in said.output), *outputs]

    assert await asyncio.gather(run(0), run(1)) == ["Final Answer: 42"] * 2
    (group,) = running.gateway.view().groups
    assert [member.steps for member in group.members] == [3, 3]
    assert [member.last_action for member in group.members] == ['look({"at":2})'] * 2
    assert group.fired_at == 2
    assert (group.unknown_requests, group.completion_tokens) == (0, 2 * 4 * 4)


async def test_the_completions_api_counts_texts_that_come_back(start: Start) -> None:
    def script(request: dict[str, Any], choice: int, seed: int | None) -> str:
        done = request["messages"][0]["content"].count("Observation")
        return f"Action: look {done}" if done < 3 else "Final Answer: 42"

    with LoopbackServer(ScriptedBrain(script), api_key=None) as model:
        running = await start(model.base_url, rule=EARLY)

        async def run(rollout: int) -> str:
            async with openai.AsyncOpenAI(
                base_url=f"{running.root}/g/c/{rollout}/2/v1", api_key="EMPTY", max_retries=0
            ) as client:
                prompt = "find it\n"
                while True:
                    said = await client.completions.create(model="loopback-model", prompt=prompt)
                    text = said.choices[0].text
                    if "Answer" in text:
                        return text
                    prompt += f"{text}\nObservation: nothing\n"

        assert await asyncio.gather(run(0), run(1)) == ["Final Answer: 42"] * 2
    (group,) = running.gateway.view().groups
    assert [member.last_action for member in group.members] == ["look 2"] * 2
    assert group.fired_at == 2
