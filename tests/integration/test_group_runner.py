"""`GroupRunner` over real LangGraph agents and a real HTTP server: counts, holds, stops, ends, threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

import openai
import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.messages.utils import convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt

from selective_rollout.engine.batch import UncertifiedGateWarning
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.survivor import survivor_order
from selective_rollout.errors import ConfigError, SelectiveRolloutError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.gate.score import TwoSidedScore
from selective_rollout.integrations.langgraph import (
    AgentGroupResult,
    GroupEvent,
    GroupRunner,
    IdenticalSamplingWarning,
    UnknownUsageWarning,
)
from selective_rollout.testing import LoopbackServer, Reply, ScriptedBrain, ToolCall
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Usage

G = 8
STEPS = 6
"""Tool steps of an agent; its answer is one request more."""
PROMPT = {"messages": [("user", "Where is the mug?")]}
THREAD: RunnableConfig = {"configurable": {"thread_id": "g"}}
DROP = GateConfig(start_step=3)
SURVIVE = replace(DROP, outcome="survivor")
VOTE = replace(DROP, outcome="vote")
ENFORCE = RunConfig(mode="enforce")
ORDER = survivor_order("g", G)


def walk(request: dict[str, Any], choice: int, seed: int | None, *, alike: bool, steps: int = STEPS) -> Reply:
    """Look in `steps` places, everybody in the same or everybody in places of their own; then answer."""
    step = walked(request)
    if step >= steps:
        return Reply("on the desk" if alike or seed in (None, 0, 1, 2, 3, 4) else "in the sink")
    own = "" if alike else f', "who": {seed}'
    return Reply(tool_calls=(ToolCall("look", f'{{"place": {step}{own}}}'),))


def walked(request: dict[str, Any]) -> int:
    return sum(message["role"] == "assistant" for message in request["messages"])


ALIKE = ScriptedBrain(lambda request, choice, seed: walk(request, choice, seed, alike=True))
UNLIKE = ScriptedBrain(lambda request, choice, seed: walk(request, choice, seed, alike=False))


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


_CLIENTS: list[openai.AsyncOpenAI] = []


@pytest.fixture(autouse=True)
async def _every_client_is_closed() -> AsyncIterator[None]:
    yield
    while _CLIENTS:
        await _CLIENTS.pop().close()


def number_of(config: RunnableConfig) -> int:
    return int(config["metadata"]["sr_rollout"])


def agent_of(server: LoopbackServer, world: World, **compile_options: Any) -> Any:
    """A ReAct agent as people write them by hand: a model node, a tools node, a loop."""

    client = openai.AsyncOpenAI(base_url=server.base_url, api_key=server.api_key, max_retries=0)
    _CLIENTS.append(client)

    async def model(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        headers = {"x-rollout-group": config["metadata"]["sr_group"], "x-rollout-id": str(number_of(config))}
        response = await client.chat.completions.create(
            model=server.model,
            messages=convert_to_openai_messages(state["messages"]),
            seed=number_of(config),
            extra_headers=headers,
        )
        said, usage = response.choices[0].message, response.usage
        assert usage is not None
        calls = [
            {"name": call.function.name, "args": {"raw": call.function.arguments}, "id": call.id}
            for call in said.tool_calls or ()
            if call.type == "function"
        ]
        counts = {
            "input_tokens": usage.prompt_tokens,
            "output_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
        }
        return {
            "messages": [
                AIMessage(
                    said.content or "",
                    tool_calls=calls,
                    usage_metadata=counts,
                    response_metadata={"id": response.id, "finish_reason": response.choices[0].finish_reason},
                )
            ]
        }

    return compiled(model, world, **compile_options)


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


def own_way(rollout: int, step: int) -> str:
    return f"call:look{step}_{rollout}" if step <= STEPS else "desk"


def runner_of(
    agent: Any, gate: GateConfig = SURVIVE, config: RunConfig = ENFORCE, **options: Any
) -> GroupRunner:
    return GroupRunner(agent, gate=gate, config=config, certified=True, **options)


def statuses(result: AgentGroupResult) -> Counter[str]:
    return Counter(rollout.status.value for rollout in result.rollouts)


class TestCounts:
    """Six tool steps and an answer, gate at 3: 56 requests without a gate, 28 with a survivor, 24 dropped."""

    @pytest.mark.parametrize(
        ("brain", "gate", "config", "requests", "tools", "cut_at"),
        [
            (ALIKE, SURVIVE, RunConfig(), 56, 48, None),
            (ALIKE, SURVIVE, ENFORCE, 28, 20, 3),
            (ALIKE, SURVIVE, replace(ENFORCE, hold="all"), 28, 20, 3),
            (ALIKE, DROP, ENFORCE, 24, 16, 3),
            (ALIKE, VOTE, ENFORCE, 35, 30, None),
            (UNLIKE, SURVIVE, ENFORCE, 56, 48, None),
            (UNLIKE, DROP, ENFORCE, 56, 48, None),
        ],
    )
    async def test_requests_and_tool_runs(
        self, brain: Any, gate: GateConfig, config: RunConfig, requests: int, tools: int, cut_at: int | None
    ) -> None:
        world = World()
        with LoopbackServer(brain) as server:
            result = await runner_of(agent_of(server, world), gate, config).ainvoke(PROMPT, THREAD)
            await server.until(lambda counters: counters.in_flight == 0)
            totals = server.counters.for_group("g")
        assert (totals.requests, world.begun, result.cut_at) == (requests, tools, cut_at)
        assert (result.ledger.requests, result.ledger.unknown_requests) == (requests, 0)
        assert (result.ledger.completion, result.ledger.prompt) == (
            totals.completion_tokens,
            totals.prompt_tokens,
        )

    async def test_the_survivor_answers_and_votes_are_inferred(self) -> None:
        with LoopbackServer(ALIKE) as server:
            result = await runner_of(agent_of(server, World())).ainvoke(PROMPT, THREAD)
        assert (result.status, result.cut_as, result.answer) == ("cut", "survivor", "on the desk")
        assert (result.survivor, result.speaker) == (ORDER[0], ORDER[0])
        assert statuses(result) == {"cut": G - 1, "finished": 1}
        assert (dict(result.votes), result.inferred_votes) == ({"on the desk": 1}, G - 1)
        assert [message.type for message in result.messages] == ["human", *["ai", "tool"] * STEPS, "ai"]
        assert result.rollouts[ORDER[0]].actions[-1] == 'final({"answer":"on the desk"})'
        assert result.thread_ids[3] == "g/3"

    async def test_a_decided_vote_needs_one_wave(self) -> None:
        with LoopbackServer(ALIKE) as server:
            result = await runner_of(agent_of(server, World()), VOTE).ainvoke(PROMPT, THREAD)
        assert (result.cut_as, result.answer, result.votes["on the desk"]) == ("vote", "on the desk", 5)
        assert {i for i, r in enumerate(result.rollouts) if r.status == "cut"} == set(ORDER[5:])
        assert [result.states[i] for i in ORDER[5:]] == [None] * 3

    async def test_an_open_vote_needs_the_second_wave(self) -> None:
        with LoopbackServer(UNLIKE) as server:
            result = await runner_of(agent_of(server, World()), VOTE).ainvoke(PROMPT, THREAD)
        assert result.answer == "on the desk"
        assert result.votes.total() > 5

    async def test_an_aggregate_of_ones_own(self) -> None:
        async def longest(rollouts: Any) -> str:
            return max((rollout.answer for rollout in rollouts), key=len)

        with LoopbackServer(UNLIKE) as server:
            runner = runner_of(agent_of(server, World()), config=RunConfig(), aggregate=longest)
            result = await runner.ainvoke(PROMPT)
        assert result.answer == "on the desk"

    async def test_an_audited_group_runs_on(self) -> None:
        config = replace(ENFORCE, audit_rate=1.0)
        result = await runner_of(scripted(same_way, World()), SURVIVE, config).ainvoke(PROMPT)
        assert (result.audited, result.cut_at, result.would_cut_at) == (True, None, 3)
        assert statuses(result) == {"finished": G}


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
        await until(lambda: sum(entry[0] == "model" and entry[2] == 3 for entry in log) == G)
        await asyncio.sleep(0.05)
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


class TestStop:
    """What becomes of a rollout that is in flight, or held, when its group is cut."""

    @pytest.mark.parametrize("stop", ["safe", "drain", "cancel"])
    @pytest.mark.parametrize("saver", ["none", "memory", "sqlite"])
    async def test_members_in_flight(self, stop: Any, saver: str, tmp_path: Path) -> None:
        """With hold none the group fires while a member that has run ahead is inside a tool."""
        world, inside, was_cut, ahead = World(), asyncio.Event(), asyncio.Event(), ORDER[1]
        finished: list[int] = []

        async def tool(rollout: int, run: int) -> None:
            if (rollout, run) == (ahead, 4):
                inside.set()
                await was_cut.wait()
                await asyncio.sleep(0.02)
                finished.append(rollout)

        async def pause(rollout: int, step: int) -> None:
            if rollout != ahead and step == 3:
                await inside.wait()

        world.tool = tool
        config = replace(ENFORCE, stop=stop, hold="none")
        async with saver_of(saver, tmp_path) as checkpointer:
            agent = scripted(same_way, world, pause, checkpointer=checkpointer)
            async for event in runner_of(agent, DROP, config).astream(PROMPT, THREAD):
                if event.type == "decision":
                    was_cut.set()
                result = event.result
            assert result is not None
            assert inside.is_set()
            assert (result.cut_as, statuses(result)) == ("drop", {"cut": G})
            assert finished == ([] if stop == "cancel" else [ahead])
            if checkpointer is None:
                return
            before = world.runs[ahead]
            thread: RunnableConfig = {
                "configurable": {"thread_id": f"g/{ahead}"},
                "metadata": {"sr_rollout": ahead},
            }
            state = await agent.aget_state(thread)
            assert state.next == (("tools",) if stop == "cancel" else ("model",))
            await agent.ainvoke(None, thread)
            assert world.runs[ahead] - before == (3 if stop == "cancel" else 2)

    async def test_a_held_rollout_is_closed_with_nothing_lost(self) -> None:
        world, saver = World(), InMemorySaver()
        agent = scripted(same_way, world, checkpointer=saver)
        result = await runner_of(agent, DROP).ainvoke(PROMPT, THREAD)
        assert world.begun == G * 2
        for thread in result.thread_ids:
            state = await agent.aget_state({"configurable": {"thread_id": thread}})
            assert (state.next, len(state.values["messages"])) == (("tools",), 6)

    async def test_cancelling_a_request_disconnects_it_from_the_server(self) -> None:
        world, ahead, let_go = World(), ORDER[0], asyncio.Event()

        async def tool(rollout: int, run: int) -> None:
            if rollout != ahead:
                await let_go.wait()

        def reply(request: dict[str, Any], choice: int, seed: int | None) -> Reply:
            said = walk(request, choice, seed, alike=True)
            return Reply("step " * 4000) if seed == ahead and walked(request) == 2 else said

        world.tool = tool
        cut_after = -1.0
        with LoopbackServer(ScriptedBrain(reply), step_delay_s=0.002) as server:
            config = replace(ENFORCE, stop="cancel", hold="none")
            runner = runner_of(agent_of(server, world), replace(DROP, start_step=2), config)
            async for event in runner.astream(PROMPT, THREAD):
                if event.type == "step" and (event.rollout, event.step) == (ahead, 2):
                    waiting = server.until(
                        lambda counters: counters.for_rollout("g", str(ahead)).requests == 3
                    )
                    opening = asyncio.create_task(waiting)
                    opening.add_done_callback(lambda _: let_go.set())
                if event.type == "decision":
                    cut_after = time.monotonic()
                result = event.result
            counters = await server.until(lambda counters: counters.in_flight == 0)
            took = time.monotonic() - cut_after
            print(f"server idle {took * 1000:.0f} ms after the cut")
            assert took < 1.0, "the reply alone takes 8 s"
        assert counters.for_rollout("g", str(ahead)).disconnects == 1
        assert result is not None
        assert statuses(result) == {"cut": G}

    async def test_a_cancelled_run_disconnects_all_its_requests(self, tmp_path: Path) -> None:
        brain = ScriptedBrain(lambda request, choice, seed: "step " * 4000)
        trace = tmp_path / "t.jsonl"
        with LoopbackServer(brain, step_delay_s=0.002) as server, Recorder(trace) as recorder:
            runner = runner_of(agent_of(server, World()), recorder=recorder)
            running = asyncio.create_task(runner.ainvoke(PROMPT, THREAD))
            await server.until(lambda counters: counters.running == G)
            running.cancel()
            began = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await running
            counters = await server.until(lambda counters: counters.in_flight == 0)
            assert time.monotonic() - began < 0.5
        assert counters.disconnects == G
        assert len(list(read_groups(trace))) == 1

    async def test_a_closed_stream_cancels_its_group(self) -> None:
        brain = ScriptedBrain(lambda request, choice, seed: "step " * 4000)
        with LoopbackServer(brain, step_delay_s=0.002) as server:
            runner = runner_of(agent_of(server, World()), config=replace(ENFORCE, group_size=2))
            async with contextlib.aclosing(runner.astream(PROMPT, stream_mode="values")) as events:
                async for event in events:
                    if event.type == "part":
                        break
                await server.until(lambda counters: counters.running == 2)
            assert (await server.until(lambda counters: counters.in_flight == 0)).disconnects == 2


class TestEnds:
    async def test_failed_timed_out_and_interrupted_members_hang_nobody(self) -> None:
        broken, late = ORDER[1], ORDER[2]

        async def tool(rollout: int, run: int) -> None:
            if (rollout, run) == (broken, 2):
                raise RuntimeError("the tool fell apart")
            if (rollout, run) == (late, 1):
                await asyncio.sleep(30)

        agent = scripted(same_way, World(tool=tool))
        config = replace(ENFORCE, rollout_timeout_s=0.3)
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


class TestThreads:
    async def test_a_closed_thread_takes_a_new_message(self) -> None:
        agent = scripted(same_way, World(), checkpointer=InMemorySaver())
        runner = runner_of(agent, DROP)
        result = await runner.ainvoke(PROMPT, THREAD)
        assert await runner.aclose_threads("g") == G
        assert await runner.aclose_threads("g") == 0
        thread: RunnableConfig = {
            "configurable": {"thread_id": result.thread_ids[0]},
            "metadata": {"sr_rollout": 0},
        }
        state = await agent.aget_state(thread)
        assert (state.next, state.values["messages"][-1].status) == (("model",), "error")
        after = await agent.ainvoke({"messages": [("user", "And the cup?")]}, thread)
        kinds = [message.type for message in after["messages"][:9]]
        assert kinds == ["human", "ai", "tool", "ai", "tool", "ai", "tool", "human", "ai"]

    async def test_a_thread_in_use_is_refused(self) -> None:
        runner = runner_of(scripted(same_way, World(), checkpointer=InMemorySaver()), DROP)
        await runner.ainvoke(PROMPT, THREAD)
        with pytest.raises(ConfigError, match="thread 'g/0' is in use: .* aresume"):
            await runner.ainvoke(PROMPT, THREAD)

    @pytest.mark.parametrize("saver", ["memory", "sqlite"])
    async def test_a_cancelled_group_goes_on_where_it_was(self, saver: str, tmp_path: Path) -> None:
        """Every tool runs exactly as often as in a group that nobody disturbed."""
        world, stuck = World(), asyncio.Event()

        async def pause(rollout: int, step: int) -> None:
            if (rollout, step) == (ORDER[3], 2) and not stuck.is_set():
                stuck.set()
                await asyncio.sleep(30)

        async with saver_of(saver, tmp_path) as checkpointer:
            runner = runner_of(scripted(same_way, world, pause, checkpointer=checkpointer))
            waited_for = {(ORDER[0], None), *((rollout, 3) for rollout in ORDER if rollout != ORDER[3])}
            async with contextlib.aclosing(runner.astream(PROMPT, THREAD)) as events:
                async for event in events:
                    waited_for.discard((event.rollout or 0, event.step))
                    if not waited_for and stuck.is_set():
                        await asyncio.sleep(0.02)
                        break
            result = await runner.aresume("g")
            again = await runner.aresume("g", attempt=3)
        assert (result.cut_at, result.survivor, result.answer) == (3, ORDER[0], "desk")
        assert world.begun == 2 * G + 4
        assert again.rollouts == result.rollouts
        assert (again.group.attempt, again.answer) == (3, "desk")

    async def test_resuming_what_never_was_is_refused(self) -> None:
        runner = runner_of(scripted(same_way, World(), checkpointer=InMemorySaver()))
        with pytest.raises(ConfigError, match="nothing is stored of thread 'g/0'"):
            await runner.aresume("g")
        assert (await runner.aresume("g", PROMPT)).answer == "desk"

    async def test_each_rollout_can_be_told_by_thread_tags_and_metadata(self) -> None:
        seen: dict[int, RunnableConfig] = {}

        async def model(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
            seen[number_of(config)] = config
            usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
            return {"messages": [AIMessage("desk", usage_metadata=usage)]}

        mine: RunnableConfig = {
            "tags": ["mine"],
            "metadata": {"who": "me"},
            "configurable": {"thread_id": "t", "checkpoint_id": "x", "user": "u"},
        }
        await runner_of(compiled(model, World()), config=RunConfig(group_size=2)).ainvoke(PROMPT, mine)
        config = seen[1]
        assert set(config["tags"]) >= {"mine", "selective-rollout", "rollout:1"}
        assert config["metadata"].items() >= {"who": "me", "sr_group": "t", "sr_rollout": 1}.items()
        assert (config["configurable"]["thread_id"], config["configurable"]["user"]) == ("t/1", "u")
        assert "checkpoint_id" not in mine["configurable"] or mine["configurable"]["checkpoint_id"] == "x"


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


class TestRecord:
    async def test_the_trace_holds_what_happened(self, tmp_path: Path) -> None:
        trace = tmp_path / "trace.jsonl"
        with Recorder(trace) as recorder:
            runner = runner_of(scripted(same_way, World()), recorder=recorder)
            result = await runner.ainvoke(PROMPT, THREAD, task_id="mug", metadata={"room": "hall"})
        (recorded,) = read_groups(trace)
        group = recorded.group
        assert (group.id, group.task_id, dict(group.metadata)) == ("g", "mug", {"room": "hall"})
        assert [rollout.actions for rollout in group.rollouts] == [r.actions for r in result.rollouts]
        assert [rollout.status for rollout in group.rollouts] == [r.status for r in result.rollouts]
        step = group.rollouts[ORDER[0]].steps[0]
        assert (step.usage, step.is_error) == (Usage(prompt=10, completion=2, source="server"), False)
        assert step.observation_hash is not None
        assert group.rollouts[ORDER[1]].steps[2].observation_hash is None

    async def test_rewards_enter_the_decision_and_the_history(self) -> None:
        history = PromptHistory()
        runner = runner_of(
            scripted(lambda rollout, step: "desk" if step > rollout % 2 else "call:look", World()),
            replace(DROP, start_step=1),
            RunConfig(group_size=4),
            reward=lambda state: len(state["messages"]) < 3,
            history=history,
        )
        result = await runner.ainvoke(PROMPT, task_id="mug")
        assert [rollout.reward for rollout in result.rollouts] == [1.0, 0.0, 1.0, 0.0]
        assert history.last("mug", 4) == (1.0, 0.0, 1.0, 0.0)

    async def test_enforcing_without_a_certificate_warns(self) -> None:
        runner = GroupRunner(scripted(same_way, World()), gate=SURVIVE, config=ENFORCE)
        with pytest.warns(UncertifiedGateWarning):
            await runner.ainvoke(PROMPT)


class Fixed(BaseChatModel):
    """A chat model that looks around twice, and says what it was told to say about its usage."""

    temperature: float | None = None
    seed: int | None = None
    n: int = 1
    usage: dict[str, int] | None = {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8}  # noqa: RUF012

    @property
    def _llm_type(self) -> str:
        return "fixed"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "seed": self.seed, "n": self.n}

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        step = sum(message.type == "ai" for message in messages) + 1
        calls = [{"name": "look", "args": {"n": step}, "id": f"c{step}"}] if step < 3 else []
        said = AIMessage("" if calls else "desk", tool_calls=calls, usage_metadata=self.usage)
        return ChatResult(generations=[ChatGeneration(message=said)])


def agent_with(model: BaseChatModel) -> Any:
    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return compiled(ask, World())


class TestSampling:
    GATE = replace(SURVIVE, start_step=2)

    async def run(self, model: Any, config: RunConfig = ENFORCE) -> AgentGroupResult:
        agent = agent_with(model) if isinstance(model, BaseChatModel) else model
        return await runner_of(agent, self.GATE, config).ainvoke(PROMPT, THREAD)

    async def test_an_ordinary_model_is_cut_without_a_word(self) -> None:
        result = await self.run(Fixed(temperature=0.8))
        assert (result.cut_at, result.ledger.completion, result.ledger.requests) == (2, 3 * 17, 17)

    @pytest.mark.parametrize(
        ("settings", "words"), [({"seed": 7}, "with one seed"), ({"temperature": 0}, "at temperature 0")]
    )
    async def test_copies_are_never_cut(self, settings: Any, words: str) -> None:
        with pytest.warns(IdenticalSamplingWarning, match=words):
            result = await self.run(Fixed(**settings))
        assert (result.cut_as, statuses(result)) == (None, {"finished": G})

    async def test_seeds_of_their_own_are_no_copies(self) -> None:
        result = await self.run(lambda rollout: agent_with(Fixed(seed=rollout)))
        assert result.cut_at == 2

    async def test_a_cache_is_noticed(self) -> None:
        set_llm_cache(InMemoryCache())
        try:
            with pytest.warns(IdenticalSamplingWarning, match="set_llm_cache"):
                result = await self.run(Fixed())
        finally:
            set_llm_cache(None)
        assert result.cut_as is None

    async def test_one_response_given_to_two_rollouts_is_noticed(self) -> None:
        async def model(state: MessagesState) -> dict[str, Any]:
            step = sum(message.type == "ai" for message in state["messages"]) + 1
            usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
            calls = [{"name": f"look{step}", "args": {}, "id": f"c{step}"}] if step < 4 else []
            told = {"id": f"response-{step}"}
            return {
                "messages": [AIMessage("", tool_calls=calls, usage_metadata=usage, response_metadata=told)]
            }

        with pytest.warns(IdenticalSamplingWarning, match="one and the same response"):
            result = await self.run(compiled(model, World()))
        assert result.cut_as is None

    async def test_several_choices_are_named(self) -> None:
        with pytest.warns(UnknownUsageWarning, match="n=3 choices"):
            await self.run(Fixed(n=3))

    async def test_usage_that_nobody_counted_is_unknown_and_said_once(self) -> None:
        runner = runner_of(agent_with(Fixed(usage=None)), self.GATE)
        with pytest.warns(UnknownUsageWarning, match="17 of 17 model replies .* stream_usage=True"):
            result = await runner.ainvoke(PROMPT)
        assert (result.ledger.unknown_requests, result.ledger.completion) == (17, 0)
        assert result.rollouts[0].steps[0].usage == Usage()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await runner.ainvoke(PROMPT)


def test_sixty_four_rollouts_of_twenty_steps_cost_little() -> None:
    """The budget is 10 ms a rollout-step on a quiet machine; here five times that, against a noisy one."""
    agent = scripted(lambda rollout, step: f"call:look{step}_{rollout}" if step < 20 else "desk", World())
    config = replace(ENFORCE, group_size=64, concurrency=64)
    began = time.process_time()
    result = runner_of(agent, replace(SURVIVE, start_step=10), config).invoke(PROMPT)
    spent = time.process_time() - began
    assert statuses(result) == {"finished": 64}
    assert spent / (64 * 20) < 0.050
    print(f"{spent / (64 * 20) * 1000:.2f} ms of processor time a rollout-step")


def test_the_loop_of_a_runner_ends_with_it() -> None:
    runner = runner_of(scripted(same_way, World()), config=RunConfig(group_size=2))
    runner.invoke(PROMPT)
    before = threading.active_count()
    del runner
    assert threading.active_count() <= before


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def saver_of(kind: str, folder: Path) -> AsyncIterator[Any]:
    if kind == "none":
        yield None
    elif kind == "memory":
        yield InMemorySaver()
    else:
        async with AsyncSqliteSaver.from_conn_string(str(folder / "threads.sqlite")) as saver:
            yield saver
