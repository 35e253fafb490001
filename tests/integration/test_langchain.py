"""Agents of `create_agent` as a gated group: the real middleware, a real server, real threads."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason='needs pip install "selective-rollout[langchain]" langchain-openai')
pytest.importorskip(
    "langchain_openai", reason='needs pip install "selective-rollout[langchain]" langchain-openai'
)

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.rule import UncertifiedGateWarning
from selective_rollout.engine.survivor import survivor_order
from selective_rollout.errors import ConfigError, GroupError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import Reason
from selective_rollout.gate.score import TwoSidedScore
from selective_rollout.integrations.langchain import GatedGroup, GroupGateMiddleware, gated_group
from selective_rollout.testing import LoopbackServer, Reply, ScriptedBrain, ToolCall
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import RolloutStatus, SamplingInfo

G, STEPS, K = 8, 6, 3
N = 3
"""Size of groups where nothing is counted but what the gate does."""
QUESTION: Any = {"messages": [{"role": "user", "content": "Where is the mug?"}]}
SURVIVE = GateConfig(start_step=K, outcome="survivor")
DROP = GateConfig(start_step=K)
FULL = G * (STEPS + 1)

Script = Callable[[int, int], Reply]
"""The reply at a 1-based step, for a rollout's seed."""


def alike(step: int, seed: int) -> Reply:
    if step > STEPS:
        return Reply("The mug is in the sink.")
    return Reply(tool_calls=(ToolCall("look", f'{{"place": {step}}}'),))


def unlike(step: int, seed: int) -> Reply:
    if step > STEPS:
        return Reply(f"Place {seed % 2}.")
    return Reply(tool_calls=(ToolCall("look", f'{{"place": {10 * seed + step}}}'),))


class World:
    """A server, the tool that agents call, and what was done to both."""

    def __init__(self, server: LoopbackServer) -> None:
        self.server = server
        self.looks: list[int] = []
        self.broken: set[int] = set()
        """Places at which the tool breaks."""

        @tool
        def look(place: int) -> str:
            """Look at a place."""
            self.looks.append(place)
            if place in self.broken:
                raise RuntimeError("no light there")
            return f"nothing at {place}"

        @tool
        def touch(place: int) -> str:
            """Touch what is at a place, for which a human has to be asked."""
            return f"touched {place}"

        self.tools = [look, touch]

    def model(self, seed: int | None = None, **options: Any) -> ChatOpenAI:
        return ChatOpenAI(
            model=self.server.model,
            base_url=self.server.base_url,
            api_key=self.server.api_key,
            seed=seed,
            max_retries=0,
            default_headers={"Connection": "close"},  # its clients outlive the event loop of a test
            **options,
        )

    def agent(self, seed: int | None = None, *more: AgentMiddleware[Any, Any, Any], **options: Any) -> Any:
        middleware = [*more, GroupGateMiddleware()]
        return create_agent(self.model(seed), self.tools, middleware=middleware, **options)

    @property
    def requests(self) -> int:
        return self.server.wait_until(lambda counters: counters.in_flight == 0).requests


@pytest.fixture
def world_of() -> Iterator[Callable[..., World]]:
    """Starts a server for a script."""
    started: list[LoopbackServer] = []

    def make(script: Script, **options: Any) -> World:
        def say(request: dict[str, Any], choice: int, seed: int | None) -> Reply:
            step = 1 + sum(message["role"] == "assistant" for message in request["messages"])
            return script(step, seed or 0)

        server = LoopbackServer(ScriptedBrain(say), **options)
        server.start()
        started.append(server)
        return World(server)

    yield make
    for server in started:
        server.stop()


def enforced(gate: GateConfig, **options: Any) -> GatedGroup:
    return gated_group(gate, **{"size": N, "mode": "enforce", "group_id": "g", "certified": True} | options)


async def run_all(group: GatedGroup, agents: list[Any], question: Any = QUESTION) -> list[Any]:
    async with group:
        return await asyncio.wait_for(
            asyncio.gather(*(group.run(i, agent.ainvoke(question)) for i, agent in enumerate(agents))), 60
        )


def call_all(group: GatedGroup, agents: list[Any]) -> list[Any]:
    with group, ThreadPoolExecutor(len(agents)) as pool:
        return list(pool.map(lambda i: group.call(i, agents[i].invoke, QUESTION), range(len(agents))))


def statuses(outcome: GroupOutcome) -> dict[RolloutStatus, int]:
    return dict(Counter(rollout.status for rollout in outcome.group.rollouts))


def is_valid(messages: list[AnyMessage]) -> bool:
    """Whether every call has exactly one answer, before any other kind of message."""
    out: set[str] = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in out:
                return False
            out.remove(message.tool_call_id)
        elif out:
            return False
        elif isinstance(message, AIMessage):
            out = {str(call["id"]) for call in [*message.tool_calls, *message.invalid_tool_calls]}
    return not out


def thread_of(agent: Any, i: int) -> Any:
    return agent.with_config({"configurable": {"thread_id": str(i)}})


RUNNERS = {
    "async": lambda group, agents: asyncio.run(run_all(group, agents)),
    "threads": call_all,
}


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("gate", "requests", "tool_runs", "cut"),
    [
        # Followers stop at the check before its tool: G * K requests, then the survivor's rest.
        (SURVIVE, G * K + STEPS + 1 - K, G * (K - 1) + STEPS + 1 - K, G - 1),
        (DROP, G * K, G * (K - 1), G),
        (GateConfig(start_step=STEPS + 2), FULL, G * STEPS, 0),
    ],
    ids=["survivor", "drop", "never"],
)
def test_requests_and_tool_runs_are_exactly_those_of_the_rule(
    world_of: Any, runner: str, gate: GateConfig, requests: int, tool_runs: int, cut: int
) -> None:
    world = world_of(alike)
    group = enforced(gate, size=G, hold="all")
    RUNNERS[runner](group, [world.agent()] * G)
    outcome = group.outcome
    assert (world.requests, len(world.looks)) == (requests, tool_runs)
    assert statuses(outcome).get(RolloutStatus.CUT, 0) == cut
    assert (outcome.ledger.requests, outcome.ledger.unknown_requests) == (requests, 0)
    assert outcome.ledger.overrun == 0
    assert outcome.trainable == (cut == 0)


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_survivor_answers_and_its_siblings_are_inferred_not_counted(world_of: Any, runner: str) -> None:
    world = world_of(alike)
    group = enforced(SURVIVE)
    results = RUNNERS[runner](group, [world.agent()] * N)
    outcome = group.outcome
    assert outcome.survivor == survivor_order("g", N)[0]
    assert outcome.answer == "the mug is in the sink"
    assert (outcome.votes.total(), outcome.inferred_votes) == (1, N - 1)
    assert outcome.cut_at == K
    assert results[outcome.survivor]["messages"][-1].text == "The mug is in the sink."
    survivor = outcome.group.rollouts[outcome.survivor]
    assert survivor.actions[:2] == ('look({"place":1})', 'look({"place":2})')
    assert survivor.actions[-1] == "The mug is in the sink."
    # Followers wait, so the survivor, who leads, alone goes beyond the check.
    assert world.requests == N * K + STEPS + 1 - K


def test_members_that_go_their_own_ways_all_run_to_their_end(world_of: Any) -> None:
    world = world_of(unlike)
    group = enforced(SURVIVE)
    asyncio.run(run_all(group, [world.agent(seed) for seed in range(N)]))
    outcome = group.outcome
    assert world.requests == N * (STEPS + 1)
    assert outcome.votes == {"place 0": 2, "place 1": 1}
    assert [decision.reason for decision in outcome.decisions] == [Reason.DISTANCE]


@pytest.mark.parametrize("runner", RUNNERS)
def test_observe_says_what_it_would_have_done_and_does_nothing(world_of: Any, runner: str) -> None:
    world = world_of(alike)
    group = enforced(SURVIVE, mode="observe")
    RUNNERS[runner](group, [world.agent()] * N)
    assert (world.requests, len(world.looks)) == (N * (STEPS + 1), N * STEPS)
    assert (group.outcome.cut_as, group.outcome.would_cut_at) == (None, K)
    assert group.outcome.answer == "the mug is in the sink"


def test_an_audited_group_runs_on(world_of: Any) -> None:
    world = world_of(alike)
    group = enforced(DROP, audit_rate=1.0)
    asyncio.run(run_all(group, [world.agent()] * N))
    assert world.requests == N * (STEPS + 1)
    assert (group.outcome.audited, group.outcome.would_cut_at) == (True, K)


def test_an_agent_inside_another_graph_is_held_too(world_of: Any) -> None:
    world = world_of(alike)
    outer = StateGraph(MessagesState)
    outer.add_node("agent", world.agent())
    outer.add_edge(START, "agent")
    group = enforced(SURVIVE, hold="all")
    results = asyncio.run(run_all(group, [outer.compile()] * N))
    assert world.requests == N * K + STEPS + 1 - K
    assert group.outcome.answer == "the mug is in the sink"
    assert all(is_valid(result["messages"]) for result in results)


def test_a_synchronous_agent_inside_an_asynchronous_graph_is_held_too(world_of: Any) -> None:
    world = world_of(alike)
    agent = world.agent()
    outer = StateGraph(MessagesState)
    outer.add_node("agent", lambda state: agent.invoke({"messages": state["messages"]}))
    outer.add_edge(START, "agent")

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(N + 1))
        await run_all(group, [outer.compile()] * N)

    group = enforced(DROP)
    asyncio.run(main())
    assert world.requests == N * K


def test_outside_a_group_the_middleware_does_nothing(world_of: Any) -> None:
    world = world_of(alike)
    agent = world.agent()
    states = [agent.invoke(QUESTION), asyncio.run(agent.ainvoke(QUESTION))]
    assert [state["messages"][-1].text for state in states] == ["The mug is in the sink."] * 2
    assert world.requests == 2 * (STEPS + 1)


def test_a_run_that_outlives_its_group_goes_on_ungated(world_of: Any) -> None:
    world = world_of(alike)

    async def main() -> tuple[Any, GroupOutcome]:
        async with enforced(DROP, size=2) as group:
            left = asyncio.create_task(group.run(0, world.agent().ainvoke(QUESTION)))
            await world.server.until(lambda counters: counters.requests == K and counters.in_flight == 0)
        return await asyncio.wait_for(left, 60), group.outcome

    result, outcome = asyncio.run(main())
    assert result["messages"][-1].text == "The mug is in the sink."
    kinds = [rollout.failure and rollout.failure.kind for rollout in outcome.group.rollouts]
    assert kinds == ["left", "not_run"]
    assert outcome.decisions == ()


def test_work_left_behind_by_a_rollout_that_ended_is_not_held(world_of: Any) -> None:
    world = world_of(alike)

    async def main() -> Any:
        async with enforced(DROP, hold_timeout_s=100) as group:

            async def leaves_work_behind() -> asyncio.Task[Any]:
                return asyncio.create_task(world.agent().ainvoke(QUESTION))

            left = await group.run(0, leaves_work_behind())
            assert left is not None
            return await asyncio.wait_for(left, 50)

    assert asyncio.run(main())["messages"][-1].text == "The mug is in the sink."


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_stopped_thread_has_a_valid_history_and_can_go_on(world_of: Any, runner: str) -> None:
    def two_calls(step: int, seed: int) -> Reply:
        calls = (ToolCall("look", '{"place": 1}'), ToolCall("look", '{"place": 2}'))
        return Reply(tool_calls=calls) if step <= STEPS else Reply("Done.")

    world = world_of(two_calls)
    agent = world.agent(checkpointer=InMemorySaver())
    threads = [thread_of(agent, i) for i in range(N)]
    group = enforced(DROP)
    results = RUNNERS[runner](group, threads)
    for result in results:
        assert is_valid(result["messages"])
        assert [message.status for message in result["messages"][-2:]] == ["error", "error"]
    assert agent.get_state({"configurable": {"thread_id": "0"}}).next == ()
    more = threads[0].invoke({"messages": [HumanMessage("Go on, please.")]})
    assert more["messages"][-1].text == "Done."
    assert is_valid(more["messages"])
    assert world.requests == N * K + STEPS + 1 - K


def test_calls_with_broken_arguments_are_answered_too(world_of: Any) -> None:
    def half_broken(step: int, seed: int) -> Reply:
        return Reply(tool_calls=(ToolCall("look", '{"place": 1}'), ToolCall("look", '{"place": ')))

    world = world_of(half_broken)
    group = enforced(GateConfig(start_step=1), size=2)
    results = asyncio.run(run_all(group, [world.agent()] * 2))
    assert all(is_valid(result["messages"]) and len(result["messages"]) == 4 for result in results)
    assert group.outcome.group.rollouts[0].actions == ('invalid:look({"place":)+look({"place":1})',)
    assert world.looks == []


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_member_that_breaks_holds_nobody_up(world_of: Any, runner: str) -> None:
    def fragile(step: int, seed: int) -> Reply:
        return (
            Reply(tool_calls=(ToolCall("look", '{"place": 99}'),))
            if (step, seed) == (2, 2)
            else alike(step, seed)
        )

    world = world_of(fragile)
    world.broken = {99}
    group = enforced(DROP, hold_timeout_s=100)
    results = RUNNERS[runner](group, [world.agent(seed) for seed in range(N)])
    outcome = group.outcome
    assert results[2] is None
    failure = outcome.group.rollouts[2].failure
    assert failure is not None
    assert (failure.kind, failure.message) == ("error", "RuntimeError: no light there")
    assert (outcome.cut_at, statuses(outcome)) == (K, {RolloutStatus.CUT: N - 1, RolloutStatus.FAILED: 1})
    assert world.requests == (N - 1) * K + 2


@pytest.mark.parametrize("runner", RUNNERS)
def test_if_the_survivor_breaks_the_next_in_order_answers(world_of: Any, runner: str) -> None:
    first, second = survivor_order("g", N)[:2]

    def fragile(step: int, seed: int) -> Reply:
        if seed == first and step == K + 1:
            return Reply(tool_calls=(ToolCall("look", '{"place": 99}'),))
        return alike(step, seed)

    world = world_of(fragile)
    world.broken = {99}
    group = enforced(SURVIVE, hold="all")
    RUNNERS[runner](group, [world.agent(seed) for seed in range(N)])
    outcome = group.outcome
    assert (outcome.survivor, outcome.answer) == (second, "the mug is in the sink")
    assert outcome.group.rollouts[first].status is RolloutStatus.FAILED
    assert world.requests == N * K + 1 + STEPS + 1 - K


def test_a_cancelled_member_holds_nobody_up(world_of: Any) -> None:
    world = world_of(alike)

    async def main() -> GroupOutcome:
        async with enforced(DROP) as group:
            stuck = asyncio.create_task(group.run(0, asyncio.sleep(60)))
            others = [asyncio.create_task(group.run(i, world.agent().ainvoke(QUESTION))) for i in (1, 2)]
            await world.server.until(lambda seen: (seen.requests, seen.in_flight) == (2 * K, 0))
            assert not any(task.done() for task in others)
            stuck.cancel()
            await asyncio.wait_for(asyncio.gather(*others), 60)
            with pytest.raises(asyncio.CancelledError):
                await stuck
        return group.outcome

    outcome = asyncio.run(main())
    assert (outcome.cut_at, statuses(outcome)) == (K, {RolloutStatus.CUT: 2, RolloutStatus.FAILED: 1})


def test_a_held_member_can_be_cancelled(world_of: Any) -> None:
    world = world_of(alike)

    async def main() -> GroupOutcome:
        async with enforced(DROP, size=2) as group:
            held = asyncio.create_task(group.run(0, world.agent().ainvoke(QUESTION)))
            await world.server.until(lambda seen: (seen.requests, seen.in_flight) == (K, 0))
            await asyncio.sleep(0.05)  # for the last answer to be heard; before that it can be cancelled, too
            held.cancel()
            await asyncio.wait({held}, timeout=60)
            assert held.cancelled()
        return group.outcome

    first = asyncio.run(main()).group.rollouts[0]
    assert first.failure is not None
    assert first.failure.kind == "cancelled"


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_hold_that_takes_too_long_releases_everybody(world_of: Any, runner: str) -> None:
    world = world_of(alike)
    released = threading.Event()

    class Slow:
        def invoke(self, question: Any) -> None:
            released.wait(60)

        async def ainvoke(self, question: Any) -> None:
            while not released.is_set():
                await asyncio.sleep(0.01)

    class Last:
        """The agent; when it has run to its end the slow one may go, too."""

        def invoke(self, question: Any) -> Any:
            state = world.agent().invoke(question)
            released.set()
            return state

        async def ainvoke(self, question: Any) -> Any:
            state = await world.agent().ainvoke(question)
            released.set()
            return state

    group = enforced(DROP, size=2, hold_timeout_s=0.2)
    RUNNERS[runner](group, [Slow(), Last()])
    assert world.requests == STEPS + 1
    assert group.outcome.cut_as is None
    assert statuses(group.outcome) == {RolloutStatus.FINISHED: 2}


def test_without_a_hold_what_arrives_after_the_cut_is_overrun(world_of: Any) -> None:
    world = world_of(alike)
    ahead, gone = threading.Event(), threading.Event()

    class Pace(AgentMiddleware[Any, Any, Any]):
        """Lets rollout 0 send its request for step 4, and holds the answer back until the group is cut."""

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            step = 1 + sum(isinstance(message, AIMessage) for message in request.messages)
            response = await handler(request)
            if step == K + 1:
                ahead.set()
                while not gone.is_set():
                    await asyncio.sleep(0.005)
            return response

    class Second(AgentMiddleware[Any, Any, Any]):
        async def abefore_agent(self, state: Any, runtime: Any) -> None:
            while not ahead.is_set():
                await asyncio.sleep(0.005)

        async def aafter_agent(self, state: Any, runtime: Any) -> None:
            gone.set()

    group = enforced(DROP, size=2, hold="none")
    results = asyncio.run(run_all(group, [world.agent(None, Pace()), world.agent(None, Second())]))
    outcome = group.outcome
    assert outcome.cut_at == K
    assert world.requests == 2 * K + 1
    late = outcome.group.rollouts[0]
    assert len(late.actions) == K + 1
    assert late.steps[-1].usage is not None
    assert outcome.ledger.overrun == late.steps[-1].usage.completion
    assert is_valid(results[0]["messages"])
    assert world.looks.count(K + 1) == 0


def test_a_rollout_whose_tool_runs_at_the_cut_asks_for_nothing_more(world_of: Any) -> None:
    world = world_of(alike)
    begun, gone = threading.Event(), threading.Event()

    class Slow(AgentMiddleware[Any, Any, Any]):
        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            if request.tool_call["args"]["place"] == K:
                begun.set()
                while not gone.is_set():
                    await asyncio.sleep(0.005)
            return await handler(request)

    class Second(AgentMiddleware[Any, Any, Any]):
        async def abefore_agent(self, state: Any, runtime: Any) -> None:
            while not begun.is_set():
                await asyncio.sleep(0.005)

        async def aafter_agent(self, state: Any, runtime: Any) -> None:
            gone.set()

    group = enforced(DROP, size=2, hold="none")
    results = asyncio.run(run_all(group, [world.agent(None, Slow()), world.agent(None, Second())]))
    assert world.requests == 2 * K
    assert group.outcome.ledger.overrun == 0
    assert group.outcome.group.rollouts[0].steps[-1].observation == f"nothing at {K}"
    assert isinstance(results[0]["messages"][-1], ToolMessage)
    assert is_valid(results[0]["messages"])


TOUCH = Reply(tool_calls=(ToolCall("touch", '{"place": 77}'),))
APPROVE: Any = Command(resume={"decisions": [{"type": "approve"}]})


def asks_a_human() -> HumanInTheLoopMiddleware:
    return HumanInTheLoopMiddleware(interrupt_on={"touch": {"allowed_decisions": ["approve"]}})


@pytest.mark.parametrize("gate_first", [True, False])
def test_a_human_is_asked_by_one_rollout_and_the_others_go_on(world_of: Any, gate_first: bool) -> None:
    world = world_of(lambda step, seed: TOUCH if (step, seed) == (2, 1) else alike(step, seed))
    middleware = [GroupGateMiddleware(), asks_a_human()]
    agents = [
        thread_of(
            create_agent(
                world.model(seed),
                world.tools,
                middleware=middleware if gate_first else middleware[::-1],
                checkpointer=InMemorySaver(),
            ),
            seed,
        )
        for seed in range(N)
    ]

    async def main() -> tuple[list[Any], Any, GroupOutcome]:
        async with enforced(SURVIVE, hold_timeout_s=100) as group:
            runs = [group.run(i, agent.ainvoke(QUESTION)) for i, agent in enumerate(agents)]
            states = await asyncio.wait_for(asyncio.gather(*runs), 50)
            resumed = await group.run(1, agents[1].ainvoke(APPROVE))
        return states, resumed, group.outcome

    states, resumed, outcome = asyncio.run(main())
    assert "__interrupt__" in states[1]
    assert [states[i]["messages"][-1].text for i in (0, 2)] == ["The mug is in the sink."] * 2
    assert resumed["messages"][-1].text == "The mug is in the sink."
    assert statuses(outcome) == {RolloutStatus.FINISHED: N}
    assert outcome.group.rollouts[1].actions[1] == 'touch({"place":77})'
    assert len(outcome.group.rollouts[1].actions) == STEPS + 1
    assert outcome.cut_as is None


@pytest.mark.parametrize("resumed", ["answers", "breaks"])
def test_an_interrupted_survivor_frees_its_siblings_and_still_answers(world_of: Any, resumed: str) -> None:
    world = world_of(lambda step, seed: TOUCH if step == K + 2 else alike(step, seed))
    agent = world.agent(None, asks_a_human(), checkpointer=InMemorySaver())
    agents = [thread_of(agent, i) for i in range(N)]
    leader = survivor_order("g", N)[0]

    async def broken() -> None:
        raise RuntimeError("the line is down")

    async def main() -> GroupOutcome:
        async with enforced(SURVIVE, hold="all", hold_timeout_s=100) as group:
            runs = [group.run(i, agent.ainvoke(QUESTION)) for i, agent in enumerate(agents)]
            states = await asyncio.wait_for(asyncio.gather(*runs), 50)
            assert "__interrupt__" in states[leader]
            await group.run(leader, agents[leader].ainvoke(APPROVE) if resumed == "answers" else broken())
        return group.outcome

    outcome = asyncio.run(main())
    assert outcome.cut_as == "survivor"
    if resumed == "answers":
        assert (outcome.survivor, outcome.answer) == (leader, "the mug is in the sink")
        assert statuses(outcome) == {RolloutStatus.CUT: N - 1, RolloutStatus.FINISHED: 1}
    else:
        assert (outcome.survivor, outcome.answer) == (None, None)
        assert statuses(outcome) == {RolloutStatus.CUT: N - 1, RolloutStatus.FAILED: 1}


def test_a_human_is_not_asked_about_a_rollout_that_is_stopped(world_of: Any) -> None:
    world = world_of(lambda step, seed: TOUCH if step == K else alike(step, seed))
    agent = world.agent(None, asks_a_human(), checkpointer=InMemorySaver())
    group = enforced(DROP)
    results = asyncio.run(run_all(group, [thread_of(agent, i) for i in range(N)]))
    assert not any("__interrupt__" in result for result in results)
    assert statuses(group.outcome) == {RolloutStatus.CUT: N}


def test_one_that_is_never_resumed_is_a_failure_of_its_own_kind(world_of: Any) -> None:
    world = world_of(lambda step, seed: TOUCH)
    agent = world.agent(None, asks_a_human(), checkpointer=InMemorySaver())
    group = enforced(DROP, answer_fn=lambda state: 1 / 0)  # never asked: there is no answer yet
    asyncio.run(run_all(group, [thread_of(agent, i) for i in range(N)]))
    kinds = [rollout.failure.kind for rollout in group.outcome.group.rollouts if rollout.failure]
    assert kinds == ["interrupted"] * N


def test_members_that_answer_at_the_check_leave_nothing_to_stop(world_of: Any) -> None:
    world = world_of(lambda step, seed: alike(step, seed) if step < K else Reply(f"Place {seed}."))
    group = enforced(SURVIVE)
    asyncio.run(run_all(group, [world.agent(seed) for seed in range(N)]))
    assert group.outcome.cut_as is None
    assert group.outcome.votes.total() == N
    (decision,) = group.outcome.decisions
    assert decision.facts is not None
    assert decision.facts.running == ()


def test_a_structured_response_is_an_answer(world_of: Any) -> None:
    def script(step: int, seed: int) -> Reply:
        return (
            alike(step, seed) if step < 3 else Reply(tool_calls=(ToolCall("Place", '{"room": "kitchen"}'),))
        )

    schema = {
        "title": "Place",
        "type": "object",
        "properties": {"room": {"type": "string"}},
        "required": ["room"],
    }
    world = world_of(script)
    group = enforced(SURVIVE, size=2, mode="observe")
    results = asyncio.run(run_all(group, [world.agent(response_format=ToolStrategy(schema))] * 2))
    assert results[0]["structured_response"] == {"room": "kitchen"}
    assert group.outcome.answer == 'Place({"room":"kitchen"})'

    named = enforced(
        SURVIVE, size=2, mode="observe", answer_fn=lambda state: state["structured_response"]["room"]
    )
    asyncio.run(run_all(named, [world.agent(response_format=ToolStrategy(schema))] * 2))
    assert named.outcome.answer == "kitchen"


def test_a_last_message_cut_off_by_its_token_limit_is_no_answer(world_of: Any) -> None:
    world = world_of(
        lambda step, seed: alike(step, seed) if step < 3 else Reply("The mug is", finish_reason="length")
    )
    group = enforced(SURVIVE, size=2, mode="observe")
    asyncio.run(run_all(group, [world.agent()] * 2))
    outcome = group.outcome
    assert statuses(outcome) == {RolloutStatus.TRUNCATED: 2}
    assert (outcome.answer, [len(rollout.actions) for rollout in outcome.group.rollouts]) == (None, [2, 2])
    assert outcome.ledger.requests == world.requests == 6


def test_the_trace_holds_what_happened(world_of: Any, tmp_path: Path) -> None:
    world = world_of(alike)
    with Recorder(tmp_path / "t.jsonl", record_observations=True, record_completions=True) as recorder:
        group = enforced(SURVIVE, recorder=recorder, task_id="mug", metadata={"level": 1}, hold="all")
        asyncio.run(run_all(group, [world.agent()] * N))
    (recorded,) = read_groups([tmp_path / "t.jsonl"])
    outcome = group.outcome
    assert recorded.group.rollouts == outcome.group.rollouts
    assert (recorded.group.task_id, recorded.group.metadata) == ("mug", {"level": 1})
    assert (outcome.group.task_id, outcome.group.metadata) == ("mug", {"level": 1})
    assert recorded.end is not None
    assert (recorded.end.outcome, recorded.end.cut_at, recorded.end.survivor, recorded.end.answer) == (
        "survivor",
        K,
        outcome.survivor,
        outcome.answer,
    )
    assert recorded.decisions == outcome.decisions
    assert recorded.begin.audit is False
    survivor = recorded.group.rollouts[outcome.survivor or 0]
    assert [step.observation for step in survivor.steps] == [
        *(f"nothing at {k}" for k in range(1, STEPS + 1)),
        None,
    ]
    assert [step.is_error for step in survivor.steps] == [False] * STEPS + [None]
    assert all(step.observation_hash for step in survivor.steps[:-1])


def test_rewards_are_recorded_and_may_veto(world_of: Any, tmp_path: Path) -> None:
    world = world_of(alike)

    async def main(recorder: Recorder) -> GroupOutcome:
        async with enforced(DROP, size=2, mode="observe", recorder=recorder) as group:
            for i in range(2):
                await group.run(i, world.agent().ainvoke(QUESTION))
                group.score(i, float(i))
        return group.outcome

    with Recorder(tmp_path / "t.jsonl") as recorder:
        outcome = asyncio.run(main(recorder))
    assert [rollout.reward for rollout in outcome.group.rollouts] == [0.0, 1.0]
    (recorded,) = read_groups([tmp_path / "t.jsonl"])
    assert [rollout.reward for rollout in recorded.group.rollouts] == [0.0, 1.0]


def test_a_block_left_by_an_error_says_so_and_one_left_by_a_cancellation_stays_open(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder:
        for name, error in (("broken", ValueError("no")), ("cancelled", KeyboardInterrupt())):
            with pytest.raises(type(error)):
                with enforced(DROP, size=2, group_id=name, recorder=recorder):
                    raise error
    ends = {recorded.group.id: recorded.end for recorded in read_groups([tmp_path / "t.jsonl"])}
    assert ends["broken"] is not None
    assert ends["broken"].error == "ValueError: no"
    assert ends["cancelled"] is None


def test_siblings_that_are_copies_by_construction_are_not_cut(world_of: Any) -> None:
    world = world_of(alike)
    group = enforced(DROP, size=2, sampling=[SamplingInfo(seed=1), SamplingInfo(seed=1)])
    asyncio.run(run_all(group, [world.agent()] * 2))
    assert group.outcome.decisions[0].reason is Reason.IDENTICAL_SAMPLING


@pytest.mark.parametrize(("history", "cut_at"), [([1.0, 1.0], K), ([0.0, 1.0], None), (None, None)])
def test_a_rule_may_ask_for_the_earlier_rewards_of_the_prompt(
    world_of: Any, history: list[float] | None, cut_at: int | None
) -> None:
    world = world_of(alike)
    group = enforced(GateConfig(start_step=K, history_mixed=2), size=2, history=history)
    asyncio.run(run_all(group, [world.agent()] * 2))
    assert group.outcome.cut_at == cut_at


def test_settings_that_make_no_sense_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="must be drop or survivor in a gated_group, not vote"):
        gated_group(GateConfig(outcome="vote"))
    score = TwoSidedScore(("agreement",), (0.0,), (1.0,), (1.0,), (1.0,), 0.0, 0.0)
    with pytest.raises(ConfigError, match="decides before they run"):
        gated_group(GateConfig(score=score))
    with pytest.raises(ConfigError, match=r"run\.group_size must be at least 2"):
        gated_group(DROP, 1)
    with pytest.warns(UncertifiedGateWarning):
        gated_group(DROP, mode="enforce")


def test_misuse_is_an_error_that_says_what_to_do(world_of: Any) -> None:
    group = enforced(DROP, size=2)
    with pytest.raises(GroupError, match="has no outcome before its block is left"):
        _ = group.outcome
    with pytest.raises(GroupError, match="is not open: use it inside its with block"):
        group.call(0, int)
    with group:
        with pytest.raises(GroupError, match="has rollouts 0 to 1, and no rollout 2"):
            group.call(2, int)
        group.call(0, int)
        with pytest.raises(GroupError, match="rollout 0 of group 'g' has already ended"):
            group.call(0, int)
        with pytest.raises(GroupError, match="is running: only rollouts that ended normally have a reward"):
            group.score(1, 1.0)
    with pytest.raises(GroupError, match="was opened before"):
        group.__enter__()


async def test_run_wants_a_coroutine_that_has_not_started() -> None:
    async with enforced(DROP, size=2) as group:
        task = asyncio.create_task(asyncio.sleep(0))
        with pytest.raises(GroupError, match="takes a coroutine that has not started"):
            await group.run(0, task)  # type: ignore[arg-type]
        await task
        with pytest.raises(GroupError, match="no rollout 7"):
            await group.run(7, asyncio.sleep(0))


async def test_a_blocked_loop_of_the_user_ends_with_the_hold(world_of: Any) -> None:
    world = world_of(alike)

    async def blocking(i: int) -> Any:
        return world.agent().invoke(QUESTION)  # should have been awaited: siblings cannot move

    began = time.monotonic()
    async with enforced(DROP, size=2, hold_timeout_s=0.2) as group:
        await asyncio.gather(*(group.run(i, blocking(i)) for i in range(2)))
    assert time.monotonic() - began < 60
    assert group.outcome.cut_as is None
    assert world.requests == 2 * (STEPS + 1)


def test_it_only_ever_jumps_to_the_end() -> None:
    for name in ("before_model", "abefore_model", "after_model", "aafter_model"):
        assert getattr(GroupGateMiddleware, name).__can_jump_to__ == ["end"]


@pytest.mark.filterwarnings("ignore::selective_rollout.engine.rule.UncertifiedGateWarning")
def test_the_documented_blocks_run(
    world_of: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def script(step: int, seed: int) -> Reply:
        return Reply(tool_calls=(ToolCall("search", '{"words": "fuse"}'),)) if step < 5 else Reply("Fuse 7.")

    world = world_of(script, api_key=None)
    monkeypatch.setenv("VLLM_BASE_URL", world.server.base_url)
    monkeypatch.setenv("VLLM_MODEL", world.server.model)
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "gate-a-create-agent-agent.md"
    space: dict[str, Any] = {}
    for block in re.findall(
        r"^```python no-run .*?\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    ):
        exec(block.replace("temperature=0.8", 'default_headers={"Connection": "close"}'), space)
    kept = ["fuse"] * 4
    assert capsys.readouterr().out == f"fuse 7 3 26\n[2, 2, 2, 4, 2, 2, 2, 2] kept: {kept}\n"
    assert [state["messages"][-1].text for state in space["states"]] == ["Fuse 7."] * G
