"""`GroupRunner` over agents of `create_agent` and ChatOpenAI, against a real HTTP server."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from selective_rollout.engine.config import RunConfig
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.langgraph import (
    GroupRunner,
    IdenticalSamplingWarning,
    UnknownUsageWarning,
)
from selective_rollout.testing import LoopbackServer, Reply, ScriptedBrain, ToolCall

agents = pytest.importorskip("langchain.agents", reason="langchain is not installed")
chat = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")

G = 8
STEPS = 6
PROMPT = {"messages": [("user", "Where is the mug?")]}
THREAD: Any = {"configurable": {"thread_id": "g"}}
SURVIVE = GateConfig(start_step=3, outcome="survivor")
ENFORCE = RunConfig(mode="enforce")


def walk(request: dict[str, Any], choice: int, seed: int | None) -> Reply:
    step = sum(message["role"] == "assistant" for message in request["messages"])
    if step >= STEPS:
        return Reply("On the desk.")
    return Reply(tool_calls=(ToolCall("look", f'{{"place": {step}}}'),))


BRAIN = ScriptedBrain(walk)


def agent_of(server: LoopbackServer, runs: Counter[int], **model_options: Any) -> Any:
    def look(place: int) -> str:
        """Look at a place."""
        runs[place] += 1
        return "nothing here"

    model = chat.ChatOpenAI(
        base_url=server.base_url, api_key=server.api_key, model=server.model, max_retries=0, **model_options
    )
    return agents.create_agent(model, [look])


@pytest.mark.parametrize(
    ("gate", "config", "requests", "tools"),
    [
        (SURVIVE, RunConfig(), 56, 48),
        (SURVIVE, ENFORCE, 28, 20),
        (replace(SURVIVE, outcome="drop"), ENFORCE, 24, 16),
    ],
)
async def test_requests_and_tool_runs(gate: GateConfig, config: RunConfig, requests: int, tools: int) -> None:
    runs: Counter[int] = Counter()
    with LoopbackServer(BRAIN) as server:
        runner = GroupRunner(agent_of(server, runs), gate=gate, config=config, certified=True)
        result = await runner.ainvoke(PROMPT, THREAD)
        counters = await server.until(lambda counters: counters.in_flight == 0)
    assert (counters.requests, runs.total()) == (requests, tools)
    assert (result.ledger.completion, result.ledger.unknown_requests) == (counters.completion_tokens, 0)
    assert result.answer == (None if gate.outcome == "drop" else "on the desk")


def test_one_chat_model_serves_many_runners_without_an_event_loop() -> None:
    """ChatOpenAI keeps one client for all, and its connections, on the loop that used them first."""
    with LoopbackServer(BRAIN) as server:
        agent = agent_of(server, Counter())
        results = [
            GroupRunner(agent, gate=SURVIVE, config=ENFORCE, certified=True).invoke(PROMPT) for _ in range(3)
        ]
        requests = server.wait_until(lambda counters: counters.in_flight == 0).requests
    assert [result.answer for result in results] == ["on the desk"] * 3
    assert requests == 3 * 28


async def test_token_streaming_without_usage_is_unknown() -> None:
    """A stream of messages switches the model to tokens, for which this server reports no usage."""
    with LoopbackServer(BRAIN) as server:
        runner = GroupRunner(
            agent_of(server, Counter()), gate=SURVIVE, config=replace(ENFORCE, group_size=2), certified=True
        )
        with pytest.warns(UnknownUsageWarning, match="10 of 10 model replies"):  # noqa: PT031
            async for event in runner.astream(PROMPT, THREAD, stream_mode="messages"):
                result = event.result
    assert result is not None
    assert (result.cut_at, result.ledger.unknown_requests, result.ledger.completion) == (3, 10, 0)


async def test_token_streaming_with_usage_is_exact() -> None:
    with LoopbackServer(BRAIN) as server:
        runner = GroupRunner(
            agent_of(server, Counter(), stream_usage=True, streaming=True),
            gate=SURVIVE,
            config=replace(ENFORCE, group_size=2),
            certified=True,
        )
        result = await runner.ainvoke(PROMPT, THREAD)
        counters = await server.until(lambda counters: counters.in_flight == 0)
    assert (result.ledger.completion, result.ledger.unknown_requests) == (counters.completion_tokens, 0)


@pytest.mark.parametrize(
    ("settings", "words"), [({"seed": 7}, "with one seed"), ({"temperature": 0}, "at temperature 0")]
)
async def test_copies_are_never_cut(settings: Any, words: str) -> None:
    with LoopbackServer(BRAIN) as server:
        agent = agent_of(server, Counter(), **settings)
        runner = GroupRunner(agent, gate=SURVIVE, config=replace(ENFORCE, group_size=2), certified=True)
        with pytest.warns(IdenticalSamplingWarning, match=words):
            result = await runner.ainvoke(PROMPT, THREAD)
    assert result.cut_as is None
