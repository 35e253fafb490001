"""Hand-written ReAct agents that walk through a house, as groups: what the GroupRunner tests share."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.survivor import survivor_order
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.langgraph import AgentGroupResult, GroupRunner

G = 8
STEPS = 6
"""Tool steps of an agent; its answer is one request more."""
PROMPT = {"messages": [("user", "Where is the mug?")]}
DROP = GateConfig(start_step=3)
SURVIVE = replace(DROP, outcome="survivor")
VOTE = replace(DROP, outcome="vote")
ENFORCE = RunConfig(mode="enforce")
ORDER = survivor_order("g", G)


@dataclass
class World:
    """Counts what the agents' tools did."""

    runs: Counter[int] = field(default_factory=Counter)
    """Tool runs, by rollout."""
    begun: int = 0
    done: int = 0
    running: int = 0
    tool: Callable[[int, int], Any] | None = None
    """Called as tool(rollout, step), awaited if awaitable."""


def number_of(config: RunnableConfig) -> int:
    return int(config["metadata"]["sr_rollout"])


def compiled(model: Any, world: World, **compile_options: Any) -> Any:
    async def tools(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        rollout = number_of(config)
        world.begun += 1
        world.runs[rollout] += 1
        if world.tool is not None:
            result = world.tool(rollout, world.runs[rollout])
            if asyncio.iscoroutine(result):
                await result
        world.done += 1
        calls = state["messages"][-1].tool_calls
        return {"messages": [ToolMessage("nothing here", tool_call_id=call["id"]) for call in calls]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", tools)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    builder.add_edge("tools", "model")
    return builder.compile(**compile_options)


Script = Callable[[int, int], str]
"""(rollout, step) -> "call:..." or an answer."""


def scripted(
    script: Script, world: World, pause: Callable[[int, int], Any] | None = None, **options: Any
) -> Any:
    """The same agent without a server."""

    async def model(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        rollout = number_of(config)
        step = sum(message.type == "ai" for message in state["messages"]) + 1
        await (pause(rollout, step) if pause else asyncio.sleep(0))
        said = script(rollout, step)
        usage = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
        if not said.startswith("call:"):
            return {"messages": [AIMessage(said, usage_metadata=usage)]}
        call = {"name": said.removeprefix("call:"), "args": {}, "id": f"c{rollout}-{step}"}
        return {"messages": [AIMessage("", tool_calls=[call], usage_metadata=usage)]}

    return compiled(model, world, **options)


def same_way(rollout: int, step: int) -> str:
    return f"call:look{step}" if step <= STEPS else "desk"


def runner_of(
    agent: Any, gate: GateConfig = SURVIVE, config: RunConfig = ENFORCE, **options: Any
) -> GroupRunner:
    return GroupRunner(agent, gate=gate, config=config, certified=True, **options)


def statuses(result: AgentGroupResult) -> Counter[str]:
    return Counter(rollout.status.value for rollout in result.rollouts)


@contextlib.asynccontextmanager
async def saver_of(kind: str, folder: Path) -> AsyncIterator[Any]:
    if kind == "none":
        yield None
    elif kind == "memory":
        yield InMemorySaver()
    else:
        async with AsyncSqliteSaver.from_conn_string(str(folder / "threads.sqlite")) as saver:
            yield saver
