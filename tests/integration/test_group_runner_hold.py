"""`GroupRunner` holds agents where their next tool would run, in every mode of streaming."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from tests.integration.walking_agents import (
    DROP,
    ENFORCE,
    ORDER,
    PROMPT,
    STEPS,
    G,
    World,
    number_of,
    runner_of,
    same_way,
    scripted,
    statuses,
)

from selective_rollout.integrations.langgraph import (
    AgentGroupResult,
)

THREAD: RunnableConfig = {"configurable": {"thread_id": "g"}}


class TestHold:
    """The tripwire: holding is a behaviour of LangGraph's generators, not a documented contract."""

    @pytest.mark.parametrize(
        "modes",
        [
            (),
            "values",
            ("updates",),
            ("messages",),
            ("custom",),
            ("tasks",),
            ("values", "updates", "messages", "custom", "tasks", "debug", "checkpoints"),
        ],
    )
    async def test_no_tool_and_no_sibling_starts_while_held(self, modes: Any) -> None:
        """One rollout is slow to its third step; the others wait there, with parallel nodes in the graph."""
        log: list[tuple[str, int, int]] = []
        slow, let_go = ORDER[0], asyncio.Event()

        async def model(state: Any, config: RunnableConfig) -> dict[str, Any]:
            rollout, step = number_of(config), sum(m.type == "ai" for m in state["messages"]) + 1
            log.append(("model", rollout, step))
            if rollout == slow and step == 3:
                await let_go.wait()
            usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
            if step > 4:
                return {"messages": [AIMessage("desk", usage_metadata=usage)]}
            call = {"name": f"look{step}", "args": {}, "id": f"{rollout}-{step}"}
            return {"messages": [AIMessage("", tool_calls=[call], usage_metadata=usage)]}

        def worker(name: str) -> Any:
            async def work(state: Any, config: RunnableConfig) -> dict[str, Any]:
                log.append((name, number_of(config), 0))
                await asyncio.sleep(0)
                last = state["messages"][-1]
                if name == "tools":
                    return {"messages": [ToolMessage("ok", tool_call_id=last.tool_calls[0]["id"])]}
                return {}

            return work

        builder = StateGraph(MessagesState)
        builder.add_node("model", model)
        builder.add_node("sibling", worker("sibling"))
        builder.add_node("tools", worker("tools"))
        builder.add_edge(START, "model")
        builder.add_edge(START, "sibling")
        builder.add_conditional_edges(
            "model", lambda state: ["tools", "sibling"] if state["messages"][-1].tool_calls else END
        )
        builder.add_edge("tools", "model")
        runner = runner_of(builder.compile(checkpointer=InMemorySaver()), config=replace(ENFORCE, hold="all"))
        parts: Counter[str] = Counter()

        async def read() -> AgentGroupResult:
            async for event in runner.astream(PROMPT, THREAD, stream_mode=modes):
                if event.type == "part":
                    parts[event.part["type"]] += 1
            assert event.result is not None
            return event.result

        reading = asyncio.create_task(read())
        begun = Counter({"model": G * 3, "sibling": G * 3, "tools": G * 2})
        await until(lambda: Counter(entry[0] for entry in log) >= begun)
        await asyncio.sleep(0.05)  # in which nothing more may begin
        seen = Counter(entry[0] for entry in log)
        assert (seen["tools"], seen["sibling"]) == (G * 2, G * 3)
        let_go.set()
        result = await reading
        assert result.cut_at == 3
        assert Counter(entry[0] for entry in log)["tools"] == G * 2 + 2
        assert set(parts) == {modes} if isinstance(modes, str) else set(parts) <= set(modes)

    async def test_what_a_nested_graph_does_in_one_superstep_is_not_held(self) -> None:
        world = World()
        inner = scripted(same_way, world)
        outer = StateGraph(MessagesState)
        outer.add_node("agent", inner)
        outer.add_edge(START, "agent")
        result = await runner_of(outer.compile(), DROP).ainvoke(PROMPT)
        assert world.begun == G * STEPS
        assert {len(rollout.actions) for rollout in result.rollouts} <= {STEPS, STEPS + 1}

    async def test_followers_wait_while_the_leader_runs_on(self) -> None:
        world, leader = World(), ORDER[0]
        last = ORDER[-1]
        let_go = asyncio.Event()

        async def pause(rollout: int, step: int) -> None:
            if (rollout, step) == (last, 3):
                await let_go.wait()

        runner = runner_of(scripted(same_way, world, pause))
        running = asyncio.create_task(runner.ainvoke(PROMPT, THREAD))
        await until(lambda: world.runs[leader] == STEPS)
        assert {world.runs[rollout] for rollout in ORDER[1:]} == {2}
        let_go.set()
        result = await running
        assert (result.survivor, result.answer, world.begun) == (leader, "desk", 2 * G + 4)

    async def test_a_hold_that_lasts_too_long_keeps_the_group(self) -> None:
        world, released = World(), asyncio.Event()

        async def pause(rollout: int, step: int) -> None:
            if rollout != 0 and step == 4:
                released.set()
            if (rollout, step) == (0, 3):
                await released.wait()

        agent = scripted(same_way, world, pause)
        config = replace(ENFORCE, hold="all", hold_timeout_s=0.05)
        result = await runner_of(agent, DROP, config).ainvoke(PROMPT)
        assert (result.cut_as, statuses(result)) == (None, {"finished": G})

    async def test_text_that_asks_for_an_action_is_held_like_a_call(self) -> None:
        world = World()

        class State(TypedDict):
            messages: Annotated[list[Any], add_messages]

        def model(state: State) -> dict[str, Any]:
            step = sum(message.type == "ai" for message in state["messages"]) + 1
            text = f"Thought: hm\nAction: look\nAction Input: {step}" if step < 5 else "The desk."
            usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
            return {"messages": [AIMessage(text, usage_metadata=usage)]}

        def act(state: State) -> dict[str, Any]:
            world.begun += 1
            return {"messages": [HumanMessage("Observation: nothing")]}

        builder = StateGraph(State)
        builder.add_node("model", model)
        builder.add_node("act", act)
        builder.add_edge(START, "model")
        builder.add_conditional_edges(
            "model", lambda state: "act" if "Action:" in state["messages"][-1].text else END
        )
        builder.add_edge("act", "model")
        result = await runner_of(builder.compile(), replace(DROP, start_step=2)).ainvoke(PROMPT)
        assert (result.cut_at, world.begun) == (2, G)
        assert result.rollouts[0].actions == ('look({"0":"1"})', 'look({"0":"2"})')


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        await asyncio.sleep(0.002)
