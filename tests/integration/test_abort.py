"""Cuts over real HTTP: by abort where the server honours it, else by closing, and never twice."""

import asyncio

import pytest

from selective_rollout.draws import sampling_seed
from selective_rollout.engine.batch import run_groups
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.reconcile import reconcile
from selective_rollout.engine.runner import Workshop
from selective_rollout.env.prompt import PromptEnvironment
from selective_rollout.gate.config import GateConfig
from selective_rollout.policy import Endpoint, Meter, RequestInfo, RequestLimits, abort
from selective_rollout.policy.openai_client import OpenAIPolicy
from selective_rollout.policy.server_metrics import parse_metrics
from selective_rollout.testing import VLLM, LoopbackServer, ScriptedBrain
from selective_rollout.testing.metrics import metrics_text
from selective_rollout.types import Task

ABORTS = "/inference/v1/abort_requests"
LONG = 2_000
HELLO = [{"role": "user", "content": "go on"}]
G = 4


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A slow machine is no reason to give an order up."""
    monkeypatch.setattr(abort, "_ORDER_TIMEOUT_S", 60.0)
    monkeypatch.setattr(abort, "_END_TIMEOUT_S", 60.0)


def talk(request, choice, seed):
    return " ".join(["go"] * LONG)


def serve(personality="vllm", **options):
    return LoopbackServer(
        ScriptedBrain(talk), personality, step_delay_s=0.003, max_model_len=10_000, **options
    )


def policy_of(server, **options):
    endpoint = Endpoint(base_url=server.base_url, api_key=server.api_key, model=server.model)
    return OpenAIPolicy(endpoint, limits=RequestLimits(backoff_s=0.01), **options)


def start(policy, meters):
    infos = [RequestInfo("g", i, 1, seed=i, meter=meter) for i, meter in enumerate(meters)]
    return [asyncio.create_task(policy.complete(HELLO, info)) for info in infos]


async def cut(tasks):
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(end) for end in ends} == {asyncio.CancelledError}


async def cut_midway(server, policy, meters):
    """Cancel a group once each of its requests has received something."""
    tasks = start(policy, meters)
    live = -len(tasks)
    await server.until(
        lambda c: c.in_flight == -live and all(record.tokens_sent > 5 for record in c.records[live:])
    )
    await cut(tasks)
    return await server.until(lambda c: c.in_flight == 0)


def aborts_of(counters, status):
    return counters.responses.get((ABORTS, status), 0)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_abort_brings_exact_usage_and_is_sent_once_for_the_group(stream):
    meters = [Meter() for _ in range(G)]
    with serve(abort_endpoint=True) as server:
        async with policy_of(server, stream=stream) as policy:
            tasks = start(policy, meters)
            await server.until(
                lambda c: len(c.records) == G and all(r.completion_tokens > 5 for r in c.records)
            )
            await cut(tasks)
        counters = await server.until(lambda c: c.in_flight == 0)
    assert (counters.aborts, counters.disconnects, aborts_of(counters, 200)) == (G, 0, 1)
    generated = sorted(record.completion_tokens for record in counters.records)
    assert sorted(meter.received.completion for meter in meters) == generated
    assert {meter.received.source for meter in meters} == {"server"}
    assert {meter.received.prompt for meter in meters} == {counters.records[0].prompt_tokens}
    assert max(generated) < LONG / 2


@pytest.mark.parametrize(("personality", "status"), [("vllm", 403), ("llama.cpp", 404)])
async def test_where_no_abort_is_offered_connections_are_closed_and_nobody_asks_again(personality, status):
    with serve(personality) as server:
        async with policy_of(server) as policy:
            for round_ in (1, 2):
                meters = [Meter() for _ in range(G)]
                counters = await cut_midway(server, policy, meters)
                assert counters.disconnects == round_ * G
    asked = {key: n for key, n in counters.responses.items() if key[0] != "/v1/chat/completions"}
    assert list(asked.values()) == [1]
    assert {answered for _, answered in asked} == {status}
    assert counters.tokens_after_disconnect <= 4 * G
    for meter in meters:
        assert meter.received.source == "client"
        assert meter.received.prompt is None
    assert counters.completion_tokens < G * LONG


async def test_without_a_stream_and_without_aborts_the_tokens_of_a_cut_are_unknown():
    meter = Meter()
    with serve() as server:
        async with policy_of(server, stream=False) as policy:
            tasks = start(policy, [meter])
            await server.until(lambda c: bool(c.records) and c.records[0].completion_tokens > 5)
            await cut(tasks)
        await server.until(lambda c: c.in_flight == 0)
    assert meter.started
    assert (meter.received.completion, meter.received.source) == (None, "unknown")


async def test_a_server_that_takes_the_order_without_effect_is_closed_on_and_not_asked_again(monkeypatch):
    monkeypatch.setattr(abort, "_END_TIMEOUT_S", 0.2)
    # The order reaches another replica than the request: it knows no such id.
    monkeypatch.setattr(abort, "_ID_PREFIX", "another-replica-")
    with serve(abort_endpoint=True) as server:
        async with policy_of(server) as policy:
            for _ in range(2):
                counters = await cut_midway(server, policy, [Meter() for _ in range(G)])
    assert (counters.aborts, counters.disconnects, aborts_of(counters, 200)) == (0, 2 * G, 1)


async def test_a_second_cancellation_does_not_wait_for_the_abort(monkeypatch):
    monkeypatch.setattr(abort, "_ID_PREFIX", "another-replica-")
    with serve(abort_endpoint=True) as server:
        async with policy_of(server) as policy:
            tasks = start(policy, [Meter()])
            await server.until(lambda c: bool(c.records) and c.records[0].tokens_sent > 5)
            tasks[0].cancel()
            await server.until(lambda c: aborts_of(c, 200) == 1)
            async with asyncio.timeout(abort._END_TIMEOUT_S / 2):
                await cut(tasks)
            counters = await server.until(lambda c: c.in_flight == 0)
    assert counters.disconnects == 1


async def test_a_cut_group_is_booked_to_the_token_and_nothing_is_unknown():
    """Rollout 0 is slow to reach the check; the others are in the middle of a long answer when it does."""
    slow = sampling_seed(0, "g", 0)

    def say(request, choice, seed):
        step = sum(message["role"] == "assistant" for message in request["messages"]) + 1
        words = 40 if seed == slow and step == 2 else 4000 if step > 2 else 1
        return " ".join(["go"] * words)

    rule, config = (
        GateConfig(start_step=2, tau=0.5),
        RunConfig(group_size=G, max_steps=4, mode="enforce", hold="none"),
    )
    options = {"step_delay_s": 0.002, "max_model_len": 20_000, "abort_endpoint": True}
    with LoopbackServer(ScriptedBrain(say), **options) as server:
        async with policy_of(server) as policy:
            shop = Workshop(policy, PromptEnvironment, rule, config)
            (done,) = [outcome async for outcome in run_groups([Task("g", "q")], shop, certified=True)]
        counters = await server.until(lambda c: c.in_flight == 0)
        compared = reconcile(done.ledger, counters_of(server))
    assert done.cut_as == "drop"
    assert (counters.aborts, counters.disconnects) == (G - 1, 0)
    assert done.ledger.completion == counters.completion_tokens < 2 * 4000
    assert done.ledger.prompt == counters.prompt_tokens
    assert done.ledger.overrun > 0
    assert (done.ledger.unknown_requests, done.ledger.unknown_prompts) == (0, 0)
    assert set(done.ledger.sources) == {"server"}
    assert (compared.surplus, compared.ledger_prompt) == (0, compared.server_prompt)


def counters_of(server):
    found = parse_metrics(metrics_text(server.counters, VLLM, server.model))
    assert found is not None
    return found


async def test_every_attempt_has_an_id_of_its_own_unless_the_caller_chose_one():
    with LoopbackServer(ScriptedBrain(lambda *_: "ok"), faults=lambda c: "overloaded") as server:
        async with policy_of(server) as policy:
            await asyncio.gather(*start(policy, [Meter()]), return_exceptions=True)
        counters = await server.until(lambda c: c.in_flight == 0)
    ids = [record.request_id for record in counters.records]
    assert len(ids) == len(set(ids)) == RequestLimits().max_retries + 1
