"""How the members of a group of agents end, and what kinds of agents and callers there are."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt
from tests.integration.walking_agents import (
    DROP,
    ENFORCE,
    ORDER,
    PROMPT,
    STEPS,
    SURVIVE,
    VOTE,
    G,
    World,
    compiled,
    runner_of,
    same_way,
    scripted,
    statuses,
)

from selective_rollout.engine.config import RunConfig
from selective_rollout.errors import ConfigError, SelectiveRolloutError
from selective_rollout.gate.score import TwoSidedScore
from selective_rollout.integrations.langgraph import AgentGroupResult, GroupEvent, GroupRunner

THREAD: RunnableConfig = {"configurable": {"thread_id": "g"}}


class TestEnds:
    async def test_failed_timed_out_and_interrupted_members_hang_nobody(self) -> None:
        broken, late = ORDER[1], ORDER[2]

        async def tool(rollout: int, run: int) -> None:
            if (rollout, run) == (broken, 2):
                raise RuntimeError("the tool fell apart")
            if (rollout, run) == (late, 1):
                await asyncio.sleep(30)

        agent = scripted(same_way, World(tool=tool))
        config = replace(ENFORCE, rollout_timeout_s=5.0)
        result = await runner_of(agent, SURVIVE, config).ainvoke(PROMPT, THREAD)
        assert (result.cut_at, result.survivor, result.answer) == (3, ORDER[0], "desk")
        failures = {i: r.failure.kind for i, r in enumerate(result.rollouts) if r.failure is not None}
        assert failures == {broken: "error", late: "timeout"}
        assert result.rollouts[broken].failure is not None
        assert result.rollouts[broken].failure.message == "RuntimeError: the tool fell apart"

    async def test_an_interrupted_member_keeps_the_group_and_can_be_answered(self) -> None:
        asks = ORDER[0]

        def tool(rollout: int, run: int) -> None:
            if rollout == asks and interrupt("may I?") != "yes":
                raise RuntimeError("no")

        world = World(tool=tool)
        runner = runner_of(scripted(same_way, world, checkpointer=InMemorySaver()))
        result = await runner.ainvoke(PROMPT, THREAD)
        assert (result.cut_as, statuses(result)) == (None, {"failed": 1, "finished": G - 1})
        assert result.rollouts[asks].failure is not None
        assert result.rollouts[asks].failure.kind == "interrupted"
        assert "may I?" in result.rollouts[asks].failure.message
        assert [entry.value for entry in result.interrupts[asks]] == ["may I?"]
        world.tool = lambda rollout, run: interrupt("may I?") if rollout == asks else None
        again = await runner.aresume("g", replies={asks: "yes"})
        assert again.interrupts.keys() == {asks}
        assert len(again.rollouts[asks].actions) == 2

    async def test_if_the_survivor_breaks_the_next_one_goes_on(self) -> None:
        def tool(rollout: int, run: int) -> None:
            if (rollout, run) == (ORDER[0], 5):
                raise RuntimeError("broken")

        result = await runner_of(scripted(same_way, World(tool=tool))).ainvoke(PROMPT, THREAD)
        assert (result.cut_at, result.survivor, result.answer) == (3, ORDER[1], "desk")
        assert statuses(result) == {"failed": 1, "finished": 1, "cut": G - 2}

    async def test_a_lost_member_does_not_take_over(self) -> None:
        """The next in order was cancelled inside a tool, so the one after it answers."""
        inside = asyncio.Event()

        async def tool(rollout: int, run: int) -> None:
            if (rollout, run) == (ORDER[1], 4):
                inside.set()
                await asyncio.sleep(30)
            if (rollout, run) == (ORDER[0], 5):
                raise RuntimeError("broken")

        async def pause(rollout: int, step: int) -> None:
            if rollout != ORDER[1] and step == 3:
                await inside.wait()

        config = replace(ENFORCE, hold="none", stop="cancel")
        result = await runner_of(scripted(same_way, World(tool=tool), pause), SURVIVE, config).ainvoke(
            PROMPT, THREAD
        )
        assert (result.survivor, result.answer) == (ORDER[2], "desk")

    async def test_a_foreign_cancellation_that_is_lost_ends_a_rollout_at_its_next_superstep(self) -> None:
        inside, world = asyncio.Event(), World()

        async def pause(rollout: int, step: int) -> None:
            if step == 2:
                inside.set()
                with contextlib.suppress(asyncio.CancelledError):  # as `wait_for` of Python 3.11 may
                    await asyncio.sleep(60)

        runner = runner_of(scripted(same_way, world, pause), DROP, RunConfig(group_size=2))
        running = asyncio.create_task(runner.ainvoke(PROMPT))
        await inside.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert max(world.runs.values()) == 1

    async def test_a_group_of_which_nothing_came(self) -> None:
        def tool(rollout: int, run: int) -> None:
            raise RuntimeError("broken")

        result = await runner_of(scripted(same_way, World(tool=tool))).ainvoke(PROMPT)
        assert (result.status, result.answer, result.messages) == ("failed", None, ())
        with pytest.raises(SelectiveRolloutError, match="every rollout of group .* RuntimeError: broken"):
            result.raise_for_failure()

    async def test_max_steps_truncates_before_the_last_tool(self) -> None:
        world = World()
        config = RunConfig(group_size=2, max_steps=4)
        result = await runner_of(scripted(same_way, world), SURVIVE, config).ainvoke(PROMPT)
        assert (statuses(result), world.begun, result.answer) == ({"truncated": 2}, 6, None)
        assert len(result.rollouts[0].actions) == 4

    async def test_the_graphs_own_limit_truncates_too(self) -> None:
        config = RunConfig(group_size=2)
        result = await runner_of(scripted(same_way, World()), SURVIVE, config).ainvoke(
            PROMPT, {"recursion_limit": 5}
        )
        assert statuses(result) == {"truncated": 2}

    async def test_an_answer_that_was_cut_off_is_none(self) -> None:
        async def model(state: MessagesState) -> dict[str, Any]:
            usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
            said = AIMessage("the", usage_metadata=usage, response_metadata={"finish_reason": "length"})
            return {"messages": [said]}

        config = RunConfig(group_size=2)
        result = await runner_of(compiled(model, World()), SURVIVE, config).ainvoke(PROMPT)
        assert (statuses(result), result.answer) == ({"truncated": 2}, None)

    async def test_an_agent_that_ends_with_a_tool_ends_one_action_later(self) -> None:
        """So a check at its last call never depends on who comes first."""

        def end_at_two(state: Any) -> str:
            return END if sum(m.type == "tool" for m in state["messages"]) == 2 else "model"

        async def model(state: MessagesState) -> dict[str, Any]:
            step = len(state["messages"])
            usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
            call = {"name": "look", "args": {"n": step}, "id": f"c{step}"}
            return {"messages": [AIMessage("", tool_calls=[call], usage_metadata=usage)]}

        async def tools(state: MessagesState) -> dict[str, Any]:
            return {
                "messages": [ToolMessage("Desk.", tool_call_id=state["messages"][-1].tool_calls[0]["id"])]
            }

        builder = StateGraph(MessagesState)
        builder.add_node("model", model)
        builder.add_node("tools", tools)
        builder.add_edge(START, "model")
        builder.add_edge("model", "tools")
        builder.add_conditional_edges("tools", end_at_two)
        result = await runner_of(builder.compile(), SURVIVE, RunConfig(group_size=2)).ainvoke(PROMPT)
        assert result.rollouts[0].actions == (
            'look({"n":1})',
            'look({"n":3})',
            'final({"answer":"desk"})',
        )
        assert result.answer == "desk"


class TestAgents:
    async def test_a_factory_gives_each_rollout_a_world_that_is_closed(self) -> None:
        worlds: dict[int, World] = {}
        closed: list[int] = []

        @contextlib.asynccontextmanager
        async def factory(rollout: int) -> AsyncIterator[Any]:
            worlds[rollout] = World()
            yield scripted(same_way, worlds[rollout])
            closed.append(rollout)

        result = await runner_of(factory).ainvoke(PROMPT, THREAD)
        assert result.answer == "desk"
        assert sorted(closed) == list(range(G))
        assert [worlds[rollout].begun for rollout in ORDER] == [STEPS, *[2] * (G - 1)]

    async def test_plain_and_awaitable_factories(self) -> None:
        @contextlib.contextmanager
        def plain_context(rollout: int) -> Iterator[Any]:
            yield scripted(same_way, World())

        async def awaitable(rollout: int) -> Any:
            return scripted(same_way, World())

        for factory in (plain_context, awaitable, lambda rollout: scripted(same_way, World())):
            assert (await runner_of(factory).ainvoke(PROMPT)).answer == "desk"

    async def test_rollouts_share_nothing_of_their_input(self) -> None:
        class State(TypedDict):
            messages: Annotated[list[Any], add_messages]
            notes: list[str]

        async def model(state: State) -> dict[str, Any]:
            state["notes"].append("mine")
            usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
            return {"messages": [AIMessage(str(len(state["notes"])), usage_metadata=usage)]}

        builder = StateGraph(State)
        builder.add_node("model", model)
        builder.add_edge(START, "model")
        given: dict[str, Any] = {**PROMPT, "notes": []}
        result = await runner_of(builder.compile(), config=RunConfig(group_size=3)).ainvoke(given)
        assert (dict(result.votes), given["notes"]) == ({"1": 3}, [])

    async def test_messages_of_the_input_are_no_actions(self) -> None:
        few_shot = {"messages": [HumanMessage("q"), AIMessage("a"), HumanMessage("Where?")]}
        agent = scripted(lambda rollout, step: "desk", World())
        result = await runner_of(agent, config=RunConfig(group_size=2)).ainvoke(few_shot)
        assert result.rollouts[0].actions == ('final({"answer":"desk"})',)

    async def test_the_answer_may_stand_in_another_key(self) -> None:
        class State(MessagesState):
            verdict: str

        async def model(state: State) -> dict[str, Any]:
            usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
            return {"messages": [AIMessage("done", usage_metadata=usage)], "verdict": "GUILTY"}

        builder = StateGraph(State)
        builder.add_node("model", model)
        builder.add_edge(START, "model")
        config = RunConfig(group_size=2)
        options: dict[str, Any] = {"answer_key": "verdict", "answer_fn": str.title}
        result = await runner_of(builder.compile(), config=config, **options).ainvoke(PROMPT)
        assert result.answer == "Guilty"

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (
                {"messages_key": "chat"},
                "no 'chat' to read actions from; messages_key must be one of messages",
            ),
            ({"aggregate": len, "gate": VOTE}, "an aggregate of your own needs every answer"),
            (
                {"gate": replace(DROP, score=TwoSidedScore(("error_share",), (0,), (1,), (0,), (0,), 0, 0))},
                r"gate.score reads errors \(error_share\)",
            ),
        ],
    )
    def test_what_cannot_work_is_refused_at_once(self, options: Any, words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            runner_of(scripted(same_way, World()), **options)

    def test_a_graph_that_is_not_compiled_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"call compile\(\) on a StateGraph"):
            GroupRunner(StateGraph(MessagesState))  # type: ignore[arg-type]

    async def test_a_factory_that_makes_something_else_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="made str for rollout 0, not a compiled graph"):
            await runner_of(lambda rollout: "agent").ainvoke(PROMPT)


class TestCallers:
    def test_without_a_loop(self) -> None:
        runner = runner_of(scripted(same_way, World()))
        assert runner.invoke(PROMPT, THREAD).answer == "desk"
        events = list(runner.stream(PROMPT, THREAD))
        assert events[-1].result is not None
        assert events[-1].result.answer == "desk"
        assert asyncio.run(runner.ainvoke(PROMPT)).answer == "desk"

    async def test_from_inside_a_loop(self) -> None:
        assert runner_of(scripted(same_way, World())).invoke(PROMPT).answer == "desk"

    def test_sync_nodes_hold_no_thread(self) -> None:
        """More rollouts than threads, all of them held at the check."""

        def model(state: MessagesState) -> dict[str, Any]:
            step = sum(message.type == "ai" for message in state["messages"]) + 1
            usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
            call = {"name": f"look{step}", "args": {}, "id": f"c{step}"}
            return {"messages": [AIMessage("", tool_calls=[call], usage_metadata=usage)]}

        config = replace(ENFORCE, group_size=40, concurrency=4)
        result = runner_of(compiled(model, World()), DROP, config).invoke(PROMPT)
        assert statuses(result) == {"cut": 40}

    async def test_events_tell_what_happens(self) -> None:
        events: list[GroupEvent] = []
        runner = runner_of(scripted(same_way, World()))
        async for event in runner.astream(PROMPT, THREAD):
            events.append(event)
        kinds = Counter(event.type for event in events)
        assert kinds == {"step": 3 * G + 4, "decision": 1, "rollout_end": G, "result": 1}
        decision = next(event.decision for event in events if event.type == "decision")
        assert decision is not None
        assert (decision.fires, decision.step, decision.distance) == (True, 3, 0.0)

    async def test_a_node_reads_and_writes_the_outer_state_as_it_is_told(self) -> None:
        class Outer(TypedDict, total=False):
            question: str
            verdict: str | None

        def told(state: Outer) -> Any:
            return {"messages": [("user", state["question"])]}

        def answered(result: AgentGroupResult) -> Outer:
            return {"verdict": result.answer}

        outer = StateGraph(Outer)
        outer.add_node("vote", runner_of(scripted(same_way, World())).as_node(input=told, output=answered))
        outer.add_edge(START, "vote")
        after = await outer.compile().ainvoke({"question": "Where is the key?"}, THREAD)
        assert after == {"question": "Where is the key?", "verdict": "desk"}

    @pytest.mark.parametrize("is_async", [True, False])
    async def test_as_a_node_of_another_graph(self, is_async: bool) -> None:
        runner = runner_of(scripted(same_way, World()))
        outer = StateGraph(MessagesState)
        outer.add_node("vote", runner.as_node())
        outer.add_edge(START, "vote")
        graph = outer.compile(checkpointer=InMemorySaver())
        custom: list[Any] = []
        parts: list[Any] = []

        def note(part: Any) -> None:
            (custom if part[0] == "custom" else parts).append(part)

        if is_async:
            async for part in graph.astream(PROMPT, THREAD, stream_mode=["custom", "messages", "values"]):
                note(part)
        else:
            for part in await asyncio.to_thread(
                lambda: list(graph.stream(PROMPT, THREAD, stream_mode=["custom", "values"]))
            ):
                note(part)
        final = parts[-1][1]["messages"]
        assert [message.type for message in final] == ["human", *["ai", "tool"] * STEPS, "ai"]
        assert {event.type for _, event in custom} == {"step", "decision", "rollout_end"}
        rollouts = {part[1][1].get("sr_rollout") for part in parts if part[0] == "messages"}
        assert rollouts <= {None}, "tokens of the agents stay out of the outer stream"


def test_the_loop_of_a_runner_ends_with_it() -> None:
    runner = runner_of(scripted(same_way, World()), config=RunConfig(group_size=2))
    runner.invoke(PROMPT)
    before = threading.active_count()
    del runner
    assert threading.active_count() <= before
