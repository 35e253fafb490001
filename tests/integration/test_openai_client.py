"""The policy against a real server on loopback."""

import asyncio
import gc
import sys
import time

import openai
import pytest

from selective_rollout.errors import ConfigError, PolicyError
from selective_rollout.policy import (
    Endpoint,
    Meter,
    RequestInfo,
    RequestLimits,
    SamplingParams,
    openai_client,
)
from selective_rollout.policy.openai_client import OpenAIPolicy
from selective_rollout.policy.retry import retry_delay_s
from selective_rollout.testing import (
    EchoBrain,
    Fault,
    LoopbackServer,
    Reply,
    ScriptedBrain,
    ToolCall,
    count_tokens,
)
from selective_rollout.types import Usage

QUICK = RequestLimits(backoff_s=0.01)
HELLO = [{"role": "user", "content": "open the red door and look behind it"}]
LONG = ScriptedBrain(lambda request, choice, seed: " ".join(["step"] * 2000))
PERSONALITIES = ["vllm", "llama.cpp"]


def endpoint_of(server, **fields):
    return Endpoint(
        **{"base_url": server.base_url, "api_key": server.api_key, "model": server.model} | fields
    )


def policy_of(server, sampling=None, *, limits=QUICK, **options):
    return OpenAIPolicy(endpoint_of(server), sampling, limits=limits, **options)


def info(rollout=0, **fields):
    return RequestInfo(group_id="g1", rollout=rollout, step=1, **fields)


def failing(*kinds):
    """Fail the first requests in the given ways, and none after them."""
    return lambda context: kinds[context.ordinal] if context.ordinal < len(kinds) else None


async def failure_of(policy, messages=HELLO, info_=None):
    with pytest.raises(PolicyError) as caught:
        await policy.complete(messages, info_ or info())
    return caught.value


@pytest.mark.parametrize("personality", PERSONALITIES)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_completion_with_its_usage(personality, stream):
    with LoopbackServer(EchoBrain(), personality) as server:
        async with policy_of(server, stream=stream) as policy:
            first = await policy.complete(HELLO, info())
            again = await policy.complete(HELLO, info(1))
        records = (await server.until(lambda c: c.in_flight == 0)).records
    assert first.message == {"role": "assistant", "content": HELLO[0]["content"]}
    assert first.finish_reason == "stop"
    assert first.response_id == records[0].request_id
    for completion, record in zip((first, again), records, strict=True):
        usage = Usage(record.prompt_tokens, record.cached_tokens, record.completion_tokens, None, "server")
        assert completion.usage == usage
        assert record.completion_tokens == count_tokens(HELLO[0]["content"]) + 1


async def test_the_request_tells_seed_rollout_and_settings():
    seen = []
    brain = ScriptedBrain(lambda request, choice, seed: seen.append(request) or "ok")
    sampling = SamplingParams(temperature=0.7, max_tokens=9, stop=("END",), extra_body={"cache_salt": "s"})
    with LoopbackServer(brain) as server:
        async with policy_of(server, sampling) as policy:
            await policy.complete(HELLO, info(3, seed=11))
            await policy.complete(HELLO, RequestInfo("gruppe ü\n", 0, 1))
        records = server.counters.records
    assert {
        "temperature": 0.7,
        "max_tokens": 9,
        "stop": ["END"],
        "cache_salt": "s",
        "seed": 11,
    }.items() <= seen[0].items()
    assert seen[0]["stream_options"] == {"include_usage": True}
    assert "seed" not in seen[1]
    assert [(r.group, r.rollout) for r in records] == [("g1", "3"), ("gruppe%20%C3%BC%0A", "0")]


@pytest.mark.parametrize("personality", PERSONALITIES)
@pytest.mark.parametrize("stream", [True, False])
async def test_tool_calls_and_reasoning(personality, stream):
    calls = (ToolCall("open", '{"id": 1}', "c1"), ToolCall("read", '{"page": "ß/ж"}'))
    brain = ScriptedBrain(lambda request, choice, seed: Reply(tool_calls=calls, reasoning="let me see"))
    tool = {"type": "function", "function": {"name": "open", "parameters": {}}}
    with LoopbackServer(brain, personality) as server:
        async with policy_of(server, SamplingParams(tools=(tool,)), stream=stream) as policy:
            completion = await policy.complete(HELLO, info())
    made = completion.message["tool_calls"]
    assert [(c["function"]["name"], c["function"]["arguments"]) for c in made] == [
        (call.name, call.arguments) for call in calls
    ]
    assert made[0]["id"] == "c1"
    assert completion.message["content"] is None
    reasoning = "reasoning" if personality == "vllm" else "reasoning_content"
    assert completion.message[reasoning] == "let me see"
    assert completion.finish_reason == "tool_calls"


async def test_text_that_falls_apart_inside_characters_arrives_whole():
    text = "日本語のテキスト 🦊🚪 naïve façade " * 5
    with LoopbackServer(ScriptedBrain([text])) as server:
        async with policy_of(server) as policy:
            assert (await policy.complete(HELLO, info())).message["content"] == text


@pytest.mark.parametrize(
    ("way", "field"),
    [("choice", "structured_outputs"), ("grammar", "grammar"), ("json_schema", "response_format")],
)
async def test_completions_are_kept_to_the_admissible_actions(way, field):
    seen = []

    def answer(request, choice, seed):
        seen.append(request)
        return '{"action": "look"}' if "response_format" in request else "look"

    with LoopbackServer(ScriptedBrain(answer)) as server:
        async with policy_of(server, constrain=way) as policy:
            constrained = await policy.complete(HELLO, info(admissible=("look", "go")))
            await policy.complete(HELLO, info())
            await policy.complete(HELLO, info(admissible=()))
    assert constrained.message["content"] == "look"
    assert [field in request for request in seen] == [True, False, False]


# Stopping


@pytest.mark.parametrize("stream", [True, False])
async def test_cancelling_stops_the_server(stream):
    meter = Meter()
    with LoopbackServer(LONG, step_delay_s=0.005, max_model_len=10_000) as server:
        async with policy_of(server, stream=stream) as policy:
            task = asyncio.create_task(policy.complete(HELLO, info(meter=meter)))
            await server.until(lambda c: bool(c.records) and c.records[0].completion_tokens >= 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            counters = await server.until(lambda c: c.in_flight == 0 and c.disconnects == 1)
    (record,) = counters.records
    assert record.completion_tokens < 1000, "the whole answer has twice as many"
    assert record.tokens_after_disconnect <= 1
    assert (meter.started, meter.attempts, meter.wasted) == (True, 1, 0)
    assert meter.completion <= record.completion_tokens
    assert (meter.completion > 0) == stream


@pytest.mark.parametrize("pauses", range(4))
async def test_a_second_cancellation_during_the_first_does_not_keep_the_server_busy(pauses):
    with LoopbackServer(LONG, step_delay_s=0.005, max_model_len=10_000) as server:
        async with policy_of(server) as policy:
            task = asyncio.create_task(policy.complete(HELLO, info()))
            await server.until(lambda c: bool(c.records) and c.records[0].tokens_sent >= 5)
            task.cancel()
            for _ in range(pauses):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await server.until(lambda c: c.in_flight == 0)).disconnects == 1


async def test_cancelling_one_rollout_leaves_its_siblings_alone():
    with LoopbackServer(EchoBrain(), first_token_delay_s=0.5, step_delay_s=0.05) as server:
        async with policy_of(server) as policy:
            tasks = [asyncio.create_task(policy.complete(HELLO, info(i))) for i in range(4)]
            await server.until(lambda c: c.in_flight == 4)
            tasks[2].cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
        counters = await server.until(lambda c: c.in_flight == 0)
    assert [isinstance(result, asyncio.CancelledError) for result in done] == [False, False, True, False]
    assert counters.requests == 4


async def test_a_request_cancelled_while_it_waits_is_never_sent():
    meter = Meter()
    with LoopbackServer(LONG, step_delay_s=0.005, max_model_len=10_000) as server:
        async with policy_of(server, concurrency=1) as policy:
            first = asyncio.create_task(policy.complete(HELLO, info()))
            await server.until(lambda c: c.in_flight == 1)
            second = asyncio.create_task(policy.complete(HELLO, info(1, meter=meter)))
            await asyncio.sleep(0.02)
            for task in (second, first):
                task.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
        assert (await server.until(lambda c: c.in_flight == 0)).requests == 1
    assert not meter.started


@pytest.mark.parametrize(
    "fault", [None, "malformed_chunk", "empty_choices", "error_event", "reset_mid_response", "stall"]
)
async def test_no_half_read_answer_is_left_to_the_garbage_collector(fault):
    """Generators that the collector closes may outlive the event loop, and complain in anybody's thread."""
    abandoned = []
    begin, _ = sys.get_asyncgen_hooks()
    gc.collect()
    with LoopbackServer(EchoBrain(), faults=lambda context: fault) as server:
        sys.set_asyncgen_hooks(begin, lambda generator: abandoned.append(generator.__qualname__))
        limits = RequestLimits(max_retries=0, stall_timeout_s=1 if fault == "stall" else 60)
        async with policy_of(server, limits=limits) as policy:
            if fault is None:
                await policy.complete(HELLO, info())
            else:
                await failure_of(policy)
        gc.collect()
    assert abandoned == []


async def test_no_retry_follows_a_cancellation():
    meter = Meter()
    with LoopbackServer(EchoBrain(), faults=lambda context: "overloaded") as server:
        async with policy_of(server, limits=RequestLimits(backoff_s=30)) as policy:
            task = asyncio.create_task(policy.complete(HELLO, info(meter=meter)))
            await server.until(lambda c: c.requests == 1 and c.in_flight == 0)
            await asyncio.sleep(0.02)  # it backs off now; sooner or later makes no difference to what is seen
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert server.counters.requests == 1


async def test_a_timeout_of_the_caller_passes_through():
    with LoopbackServer(LONG, step_delay_s=0.005, max_model_len=10_000) as server:
        async with policy_of(server) as policy:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(None) as limit:
                    asked = asyncio.create_task(server.until(lambda c: c.in_flight == 1))
                    asked.add_done_callback(lambda _: limit.reschedule(0))
                    await policy.complete(HELLO, info())
        counters = await server.until(lambda c: c.in_flight == 0)
    assert (counters.requests, counters.disconnects) == (1, 1)


# Retries


@pytest.mark.parametrize(
    "fault",
    [
        "rate_limit",
        "server_error",
        "overloaded",
        "reset_before_response",
        "reset_mid_response",
        "error_event",
        "malformed_chunk",
        "empty_choices",
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_failures_that_may_pass_are_retried(fault, stream):
    meter = Meter()
    with LoopbackServer(EchoBrain(), faults=failing(fault)) as server:
        async with policy_of(server, stream=stream) as policy:
            completion = await policy.complete(HELLO, info(meter=meter))
        counters = await server.until(lambda c: c.in_flight == 0)
    assert completion.message["content"] == HELLO[0]["content"]
    assert (meter.attempts, counters.requests) == (2, 2)
    began = stream and fault in ("reset_mid_response", "error_event", "malformed_chunk")
    told = fault == "empty_choices"  # its usage says what was generated and thrown away
    assert (meter.wasted > 0) == (began or told)
    assert meter.wasted <= counters.records[0].completion_tokens


@pytest.mark.parametrize(
    ("fault", "kind", "status", "attempts"),
    [
        ("rate_limit", "rate_limit", 429, 3),
        ("server_error", "server", 500, 3),
        ("overloaded", "overloaded", 503, 3),
        ("reset_before_response", "connection", None, 3),
        ("reset_mid_response", "connection", None, 3),
        ("error_event", "server", 500, 3),
        ("malformed_chunk", "protocol", None, 2),
        ("empty_choices", "protocol", None, 2),
    ],
)
async def test_failures_that_stay_become_one_clear_error(fault, kind, status, attempts):
    meter = Meter()
    with LoopbackServer(EchoBrain(), faults=lambda context: fault) as server:
        limits = RequestLimits(backoff_s=0.001, max_retries=2)
        async with policy_of(server, limits=limits) as policy:
            error = await failure_of(policy, info_=info(meter=meter))
        assert server.base_url in str(error)
    assert (error.kind, error.status, meter.attempts) == (kind, status, attempts)
    assert str(error).endswith(f"({attempts} attempts)")
    assert "\n" not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None
    assert meter.completion == 0


async def test_retry_after_is_honoured():
    faults = failing(Fault("rate_limit", retry_after_s=0.3))
    with LoopbackServer(EchoBrain(), faults=faults) as server:
        async with policy_of(server) as policy:
            start = time.perf_counter()
            await policy.complete(HELLO, info())
            waited = time.perf_counter() - start
    assert 0.3 <= waited < 10


async def test_a_wait_beyond_reason_ends_the_request():
    faults = failing(Fault("rate_limit", retry_after_s=3600))
    with LoopbackServer(EchoBrain(), faults=faults) as server:
        async with policy_of(server) as policy:
            assert "asks to wait 3600 s" in str(await failure_of(policy))


async def test_a_model_that_is_still_loading_is_waited_for():
    path = "/v1/chat/completions"
    with LoopbackServer(EchoBrain(), "llama.cpp", loading_s=3600) as server:
        limits = RequestLimits(backoff_s=0.05, max_retries=20)
        async with policy_of(server, limits=limits) as policy:
            asked = asyncio.create_task(policy.complete(HELLO, info()))
            await server.until(lambda c: c.responses.get((path, 503), 0) >= 2)
            server._app._ready_at = 0.0
            assert (await asked).finish_reason == "stop"


async def test_a_waiting_retry_holds_no_place():
    def brain(request, choice, seed):
        return "ok"

    faults = failing(Fault("rate_limit", retry_after_s=20))
    with LoopbackServer(ScriptedBrain(brain), faults=faults) as server:
        async with policy_of(server, concurrency=1) as policy:
            limited = asyncio.create_task(policy.complete(HELLO, info()))
            await server.until(lambda c: c.requests == 1 and c.in_flight == 0)
            await asyncio.wait_for(policy.complete(HELLO, info(1)), 10)
            assert not limited.done()
            limited.cancel()
            await asyncio.wait([limited])


async def test_connections_that_the_server_drops_cost_no_waiting(monkeypatch):
    """llama.cpp promises keep-alive and closes after each stream.

    Now and then the client meets the closed connection as a reset, which is an ordinary retry with backoff.
    """
    waits = []

    def delay_of(*arguments):
        waits.append(retry_delay_s(*arguments))
        return waits[-1]

    monkeypatch.setattr(openai_client, "retry_delay_s", delay_of)
    with LoopbackServer(EchoBrain(), "llama.cpp") as server:
        async with policy_of(server) as policy:
            meters = [Meter() for _ in range(20)]
            for i, meter in enumerate(meters):
                await policy.complete(HELLO, info(i, meter=meter))
    assert sum(meter.attempts for meter in meters) < 40
    assert len(waits) < 10, "each of the drops would be one"


async def test_stalls_and_slow_starts_are_noticed():
    stall = Fault("stall", after_steps=3)
    limits = RequestLimits(backoff_s=0.01, stall_timeout_s=1, max_retries=0)
    with LoopbackServer(EchoBrain(), faults=lambda context: stall) as server:
        async with policy_of(server, limits=limits) as policy:
            meter = Meter()
            error = await failure_of(policy, info_=info(meter=meter))
        await server.until(lambda c: c.in_flight == 0 and c.disconnects == 1)
    assert error.kind == "timeout"
    assert "stalled after" in str(error)
    assert meter.wasted > 0

    limits = RequestLimits(backoff_s=0.01, first_token_timeout_s=0.1, max_retries=0)
    with LoopbackServer(EchoBrain(), first_token_delay_s=5) as server:
        async with policy_of(server, limits=limits) as policy:
            assert "no token came within first_token_timeout_s = 0.1" in str(await failure_of(policy))

    limits = RequestLimits(backoff_s=0.01, timeout_s=0.1, max_retries=0)
    with LoopbackServer(LONG, step_delay_s=0.01, max_model_len=10_000) as server:
        for stream in (True, False):
            async with policy_of(server, limits=limits, stream=stream) as policy:
                assert "longer than timeout_s = 0.1" in str(await failure_of(policy))


async def test_a_slow_first_token_within_the_limit_is_fine():
    faults = failing(Fault("slow_first_token", delay_s=1.5))
    limits = RequestLimits(stall_timeout_s=1)
    with LoopbackServer(EchoBrain(), faults=faults) as server:
        async with policy_of(server, limits=limits) as policy:
            meter = Meter()
            one_word = [{"role": "user", "content": "open"}]  # nothing to wait for but its first token
            await policy.complete(one_word, info(meter=meter))
    assert meter.attempts == 1


async def test_a_completion_cut_by_length_is_passed_on_and_paid_for():
    with LoopbackServer(EchoBrain(), faults=failing(Fault("truncated_utf8", after_steps=4))) as server:
        async with policy_of(server) as policy:
            completion = await policy.complete(HELLO, info())
    assert completion.finish_reason == "length"
    assert completion.message["content"].endswith("\ufffd")
    assert completion.usage.completion == 4


async def test_an_answer_that_somebody_else_aborted_is_asked_for_again():
    first, meter = [], Meter()

    def brain(request, choice, seed):
        first.append(None)
        return " ".join(["step"] * (2000 if len(first) == 1 else 2))

    sampling = SamplingParams(extra_body={"request_id": "r1"})
    with LoopbackServer(
        ScriptedBrain(brain), step_delay_s=0.002, max_model_len=10_000, abort_endpoint=True
    ) as server:
        async with policy_of(server, sampling) as policy:
            task = asyncio.create_task(policy.complete(HELLO, info(meter=meter)))
            await server.until(lambda c: bool(c.records) and c.records[0].tokens_sent >= 5)
            async with openai.AsyncOpenAI(base_url=server.root_url, api_key=server.api_key) as admin:
                body = {"request_ids": ["chatcmpl-r1"]}
                await admin.post("/inference/v1/abort_requests", cast_to=object, body=body)
            completion = await task
    assert completion.message["content"] == "step step"
    assert meter.attempts == 2
    assert meter.wasted >= 5


# Errors that no retry can help


async def test_mistakes_are_explained_at_once():
    with LoopbackServer(EchoBrain(), api_key="sk-right-key", max_model_len=50) as server:
        for fields, kind, text in [
            (
                {"api_key": "sk-wrong-key", "api_key_from": "VLLM_API_KEY"},
                "auth",
                "check the API key (from VLLM_API_KEY)",
            ),
            ({"model": "nope"}, "model_not_found", f"models served there: {server.model}"),
            ({"base_url": server.root_url}, "bad_request", "usually ends in /v1"),
        ]:
            async with OpenAIPolicy(endpoint_of(server, **fields), limits=QUICK) as policy:
                meter = Meter()
                error = await failure_of(policy, info_=info(meter=meter))
            assert (error.kind, meter.attempts) == (kind, 1)
            assert text in str(error)
            assert "sk-" not in f"{error!r} {error}"
        async with policy_of(server) as policy:
            long = [{"role": "user", "content": "word " * 100}]
            assert (await failure_of(policy, long)).kind == "context_length"
        async with policy_of(server, SamplingParams(temperature=3.0)) as policy:
            error = await failure_of(policy)
            assert (error.kind, error.status) == ("bad_request", 400)


async def test_half_a_character_in_a_message_is_named():
    with LoopbackServer(EchoBrain()) as server:
        async with policy_of(server) as policy:
            error = await failure_of(policy, [{"role": "user", "content": "\ud83e"}])
    assert error.kind == "bad_request"
    assert "lone surrogate" in str(error)


async def test_no_server_is_explained(closed_port):
    endpoint = Endpoint(
        base_url=f"http://127.0.0.1:{closed_port}/v1", model="m", base_url_from="VLLM_BASE_URL"
    )
    async with OpenAIPolicy(endpoint, limits=RequestLimits(max_retries=1, backoff_s=0.01)) as policy:
        error = await failure_of(policy)
    assert error.kind == "connection"
    assert "connection refused; is the server running there? (address from VLLM_BASE_URL)" in str(error)


def test_contradicting_options_are_refused():
    endpoint = Endpoint(base_url="http://h/v1", model="m")
    tool = {"type": "function", "function": {"name": "open"}}
    with pytest.raises(ConfigError, match="no model is named"):
        OpenAIPolicy(Endpoint(base_url="http://h/v1"))
    with pytest.raises(ConfigError, match="constrain and tools"):
        OpenAIPolicy(endpoint, SamplingParams(tools=(tool,)), constrain="choice")
    with pytest.raises(ConfigError, match="concurrency"):
        OpenAIPolicy(endpoint, concurrency=0)


async def test_nothing_but_our_own_headers_is_sent(monkeypatch):
    for name, value in {
        "OPENAI_API_KEY": "sk-leak",
        "OPENAI_ADMIN_KEY": "sk-leak",
        "OPENAI_ORG_ID": "org-leak",
        "OPENAI_PROJECT_ID": "proj-leak",
        "OPENAI_BASE_URL": "http://127.0.0.1:9/leak",
        "OPENAI_CUSTOM_HEADERS": "X-Leak: leak\nAuthorization: Bearer leak",
    }.items():
        monkeypatch.setenv(name, value)
    sent = []

    async def capture(client, request):
        sent.append((str(request.url), dict(request.headers)))

    monkeypatch.setattr(openai.AsyncOpenAI, "_prepare_request", capture)
    with LoopbackServer(EchoBrain()) as server:
        for organization in (None, "org-ours"):
            endpoint = endpoint_of(server, organization=organization)
            async with OpenAIPolicy(endpoint, limits=QUICK) as policy:
                await policy.complete(HELLO, info())
    assert "leak" not in str(sent)
    assert [headers.get("openai-organization") for _, headers in sent] == [None, "org-ours"]
    assert all(headers["authorization"] == f"Bearer {server.api_key}" for _, headers in sent)


async def test_the_bound_on_concurrency_holds():
    with LoopbackServer(EchoBrain(), step_delay_s=0.002, slots=64) as server:
        async with policy_of(server, concurrency=6) as policy:
            done = await asyncio.gather(*(policy.complete(HELLO, info(i, seed=i)) for i in range(64)))
        counters = await server.until(lambda c: c.in_flight == 0)
    assert len(done) == counters.requests == 64
    assert counters.peak_in_flight <= 6


async def test_as_many_requests_as_are_allowed_are_made_at_once():
    with LoopbackServer(EchoBrain(), first_token_delay_s=60) as server:
        async with policy_of(server, concurrency=6) as policy:
            tasks = [asyncio.create_task(policy.complete(HELLO, info(i))) for i in range(8)]
            await server.until(lambda c: c.in_flight == 6)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        counters = await server.until(lambda c: c.in_flight == 0)
    assert (counters.requests, counters.peak_in_flight) == (6, 6)
