"""The graph against a real HTTP server on loopback: what the tutorial's readers run into."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from selective_rollout.engine.config import RunConfig
from selective_rollout.errors import ConfigError, PrerequisiteError
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.langgraph import GroupGraph, GroupResult, build_graph
from selective_rollout.policy import Endpoint, RequestLimits
from selective_rollout.policy.openai_client import OpenAIPolicy
from selective_rollout.testing import LoopbackServer, ScriptedBrain, TutorialBrain

G = 8
STEPS = 7
PROMPT = {"prompt": "Where is the mug?", "group_id": "g"}
ENFORCE = RunConfig(mode="enforce", temperature=0.8)
SURVIVE = GateConfig(start_step=3, outcome="survivor")
ALIKE, UNLIKE = TutorialBrain(1.0, steps=STEPS), TutorialBrain(0.0, steps=STEPS)


def policy_of(server: LoopbackServer, **changes: Any) -> OpenAIPolicy:
    where = {"base_url": server.base_url, "api_key": server.api_key, "model": server.model} | changes
    return OpenAIPolicy(Endpoint(**where), limits=RequestLimits(max_retries=1, backoff_s=0.01))


def graph_of(server: LoopbackServer, gate: GateConfig = SURVIVE, **changes: Any) -> GroupGraph:
    return build_graph(lambda: policy_of(server, **changes), gate=gate, config=ENFORCE, certified=True)


def settled_requests(server: LoopbackServer) -> int:
    return server.wait_until(lambda counters: counters.in_flight == 0).requests


@pytest.mark.parametrize(
    ("brain", "outcome", "cut_at", "requests"),
    [
        (ALIKE, "drop", 3, G * 3),
        (ALIKE, "survivor", 3, G * 3 + (STEPS - 3)),
        (UNLIKE, "survivor", None, G * STEPS),
    ],
)
async def test_the_server_sees_exactly_the_steps_taken(
    brain: Any, outcome: Any, cut_at: int | None, requests: int
) -> None:
    with LoopbackServer(brain) as server:
        state = await graph_of(server, replace(SURVIVE, outcome=outcome)).ainvoke(PROMPT)
        assert settled_requests(server) == requests
        totals = server.counters.for_group("g")
    result = GroupResult.from_state(state)
    assert (totals.requests, totals.disconnects) == (requests, 0)
    assert (result.ledger.requests, result.ledger.completion) == (requests, totals.completion_tokens)
    assert result.ledger.prompt == totals.prompt_tokens
    assert result.cut_at == cut_at


async def test_a_cancelled_run_disconnects_all_its_requests() -> None:
    endless = ScriptedBrain(lambda request, choice, seed: "step " * 2000)
    with LoopbackServer(endless, step_delay_s=0.005) as server:
        task = asyncio.create_task(graph_of(server).ainvoke(PROMPT))
        await server.until(lambda counters: counters.running == G)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        counters = await server.until(lambda counters: counters.in_flight == 0)
    assert (counters.requests, counters.disconnects) == (G, G)
    assert counters.tokens_after_disconnect <= G  # the engine step under way


def test_the_environment_names_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = build_graph()
    with pytest.raises(PrerequisiteError, match="no model endpoint: set SELECTIVE_ROLLOUT_BASE_URL"):
        graph.invoke(PROMPT)
    with LoopbackServer(UNLIKE, api_key=None) as server:
        monkeypatch.setenv("VLLM_BASE_URL", server.base_url)
        with pytest.raises(ConfigError, match="no model is named"):
            graph.invoke(PROMPT)
        monkeypatch.setenv("VLLM_MODEL", server.model)
        for _ in range(2):
            state = asyncio.run(graph.ainvoke(PROMPT, context={"group_size": 2, "start_step": 2}))
        assert settled_requests(server) == 2 * 2 * STEPS
    assert state["status"] == "finished"


def failure_of(graph: GroupGraph) -> tuple[str, str]:
    result = GroupResult.from_state(graph.invoke(PROMPT, context={"group_size": 2}))
    assert result.failure is not None
    return result.failure.kind, result.failure.message


def test_a_wrong_model_is_named_with_those_that_are_served() -> None:
    with LoopbackServer(ALIKE) as server:
        kind, message = failure_of(graph_of(server, model="gpt-5"))
    assert kind == "model_not_found"
    assert "models served there: loopback-model" in message


def test_a_refused_connection_names_the_address(closed_port: int) -> None:
    with LoopbackServer(ALIKE) as server:
        kind, message = failure_of(graph_of(server, base_url=f"http://127.0.0.1:{closed_port}/v1"))
    assert kind == "connection"
    assert f"http://127.0.0.1:{closed_port}/v1: connection refused; is the server running there?" in message


@pytest.mark.parametrize("fault", ["malformed_chunk", "empty_choices"])
def test_an_answer_in_another_shape_is_a_failure_of_its_rollout(fault: Any) -> None:
    with LoopbackServer(ALIKE, faults=lambda context: fault) as server:
        kind, message = failure_of(graph_of(server))
    assert kind == "protocol"
    assert message


def test_a_group_too_large_for_the_server_fits_with_fewer_at_once() -> None:
    small = {"group_size": 4, "start_step": 2, "outcome": "drop"}
    with LoopbackServer(ALIKE, "llama.cpp", max_running=1, step_delay_s=0.01) as server:
        crowded = GroupResult.from_state(graph_of(server).invoke(PROMPT, context=small))
        failures = [rollout.failure for rollout in crowded.rollouts if rollout.failure is not None]
        assert {failure.kind for failure in failures} == {"overloaded"}
        assert "503" in failures[0].message
        state = graph_of(server).invoke({"prompt": "q"}, {"max_concurrency": 1}, context=small)
    result = GroupResult.from_state(state)
    assert [rollout.failure for rollout in result.rollouts] == [None] * 4
    assert result.cut_at == 2


def test_actions_that_are_never_final_end_at_max_steps() -> None:
    with LoopbackServer(ScriptedBrain(lambda request, choice, seed: "Let me think about it.")) as server:
        settings = {"group_size": 2, "max_steps": 4, "mode": "observe"}
        result = GroupResult.from_state(graph_of(server).invoke(PROMPT, context=settings))
    assert [rollout.status.value for rollout in result.rollouts] == ["truncated"] * 2
    assert (result.answer, result.status) == (None, "finished")
