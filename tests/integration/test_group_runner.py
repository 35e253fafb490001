"""`GroupRunner` over real LangGraph agents and a real HTTP server: what is counted, and what a cut stops."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage
from langchain_core.messages.utils import convert_to_openai_messages
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState
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
    number_of,
    runner_of,
    same_way,
    saver_of,
    scripted,
    statuses,
)

from selective_rollout.engine.config import RunConfig
from selective_rollout.gate.config import GateConfig
from selective_rollout.testing import LoopbackServer, Reply, ScriptedBrain, ToolCall
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder

THREAD: RunnableConfig = {"configurable": {"thread_id": "g"}}


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


_CLIENTS: list[openai.AsyncOpenAI] = []


@pytest.fixture(autouse=True)
async def _every_client_is_closed() -> AsyncIterator[None]:
    yield
    while _CLIENTS:
        await _CLIENTS.pop().close()


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
        with LoopbackServer(ScriptedBrain(reply), step_delay_s=0.005) as server:
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
            assert took < 10, "the reply alone takes 20 s"
        assert counters.for_rollout("g", str(ahead)).disconnects == 1
        assert result is not None
        assert statuses(result) == {"cut": G}

    async def test_a_cancelled_run_disconnects_all_its_requests(self, tmp_path: Path) -> None:
        brain = ScriptedBrain(lambda request, choice, seed: "step " * 4000)
        trace = tmp_path / "t.jsonl"
        with LoopbackServer(brain, step_delay_s=0.005) as server, Recorder(trace) as recorder:
            runner = runner_of(agent_of(server, World()), recorder=recorder)
            running = asyncio.create_task(runner.ainvoke(PROMPT, THREAD))
            await server.until(lambda counters: counters.running == G)
            running.cancel()
            began = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await running
            counters = await server.until(lambda counters: counters.in_flight == 0)
            assert time.monotonic() - began < 10, "the replies take 20 s"
        assert counters.disconnects == G
        assert len(list(read_groups(trace))) == 1

    async def test_a_closed_stream_cancels_its_group(self) -> None:
        brain = ScriptedBrain(lambda request, choice, seed: "step " * 4000)
        with LoopbackServer(brain, step_delay_s=0.005) as server:
            runner = runner_of(agent_of(server, World()), config=replace(ENFORCE, group_size=2))
            async with contextlib.aclosing(runner.astream(PROMPT, stream_mode="values")) as events:
                async for event in events:
                    if event.type == "part":
                        break
                await server.until(lambda counters: counters.running == 2)
            assert (await server.until(lambda counters: counters.in_flight == 0)).disconnects == 2
