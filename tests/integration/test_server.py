"""The loopback server under the real `openai` client: what it says, how it stops, how it fails."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from selective_rollout.testing import (
    EchoBrain,
    Fault,
    FaultPlan,
    LoopbackServer,
    Reply,
    ScriptedBrain,
    ToolCall,
    TutorialBrain,
    count_tokens,
)

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "where to go now"}]
SEEDED = ScriptedBrain(lambda request, choice, seed: f"go {seed} and look around in the house")
LONG = ScriptedBrain(lambda *_: "word " * 2000)
OF_SEEDED = count_tokens("go 7 and look around in the house") + 1


@asynccontextmanager
async def client_of(server: LoopbackServer, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    settings = {"api_key": server.api_key, "max_retries": 0, "timeout": 60.0, **options}
    http = openai.DefaultAsyncHttpxClient(verify=False)
    async with openai.AsyncOpenAI(base_url=server.base_url, http_client=http, **settings) as client:
        yield client


async def ask(client: openai.AsyncOpenAI, **fields: Any) -> ChatCompletion:
    return await client.chat.completions.create(**{"model": "loopback-model", "messages": MESSAGES, **fields})


async def stream(client: openai.AsyncOpenAI, **fields: Any) -> list[ChatCompletionChunk]:
    opened = await ask(client, stream=True, **fields)
    async with opened:  # type: ignore[attr-defined]
        return [chunk async for chunk in opened]  # type: ignore[attr-defined]


def contents(completion: ChatCompletion) -> list[str | None]:
    return [choice.message.content for choice in completion.choices]


def joined(chunks: list[ChatCompletionChunk]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    return texts


def tokens(usage: Any) -> tuple[int, int, int]:
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def fetch(server: LoopbackServer, path: str, body: Any = None, key: str | None = "") -> tuple[int, Any]:
    """Status and decoded body of a request outside the OpenAI client."""
    key = server.api_key if key == "" else key
    request = urllib.request.Request(server.root_url + path)
    if body is not None:
        request.data = json.dumps(body).encode()
    if key is not None:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            status, raw = response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            status, raw = error.code, error.read()
    try:
        return status, json.loads(raw)
    except ValueError:
        return status, raw.decode()


class TestChoicesAndUsage:
    @pytest.mark.parametrize(
        ("personality", "choices", "completion"),
        [("vllm", 4, 4 * OF_SEEDED), ("llama.cpp", 4, OF_SEEDED), ("n_ignored", 1, OF_SEEDED)],
    )
    async def test_each_personality_counts_in_its_own_way(self, personality, choices, completion) -> None:
        with LoopbackServer(SEEDED, personality) as server:
            async with client_of(server) as client:
                answer = await ask(client, n=4, seed=7)
                chunks = await stream(client, n=4, seed=7, stream_options={"include_usage": True})
            now = await server.until(lambda c: c.in_flight == 0)
        assert len(answer.choices) == choices
        assert tokens(answer.usage) == (7, completion, 7 + completion)
        assert joined(chunks) == dict(enumerate(contents(answer)))
        usages = [tokens(chunk.usage) for chunk in chunks if chunk.usage]
        per_choice = 4 if personality == "llama.cpp" else 1
        assert usages == [(7, completion, 7 + completion)] * per_choice
        assert now.completion_tokens == now.tokens_sent == 2 * choices * OF_SEEDED
        assert now.engine_prompt_tokens == 2 * 7 * choices

    async def test_a_vllm_stream(self) -> None:
        with LoopbackServer(SEEDED) as server:
            async with client_of(server) as client:
                chunks = await stream(client, n=4, seed=7)
        assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks)
        flat = [chunk.choices[0] for chunk in chunks]
        assert [(c.index, c.delta.role, c.delta.content) for c in flat[:4]] == [
            (index, "assistant", "") for index in range(4)
        ]
        assert flat[4].index == 0
        assert "" in [c.delta.content for c in flat[4:]]
        assert [c.index for c in flat] != [index % 4 for index in range(len(flat))]
        last = {c.index: c for c in flat}
        assert all(c.finish_reason == "stop" and c.delta.content.endswith(" house") for c in last.values())

    async def test_a_llama_cpp_stream(self) -> None:
        with LoopbackServer(SEEDED, "llama.cpp") as server:
            async with client_of(server) as client:
                chunks = await stream(client, n=2, seed=7)
        flat = [chunk.choices[0] for chunk in chunks]
        first = [next(i for i, c in enumerate(flat) if c.index == index) for index in (0, 1)]
        assert first[0] == 0
        assert first[1] > 1
        for at in first:
            assert (flat[at].delta.role, flat[at].delta.content) == ("assistant", None)
            assert flat[at + 1].delta.content == "go"
        last = [c for c in flat if c.finish_reason]
        assert [c.delta.model_dump(exclude_unset=True) for c in last] == [{}, {}]

    async def test_continuous_usage_counts_each_choice(self) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        with LoopbackServer(SEEDED) as server:
            async with client_of(server) as client:
                *chunks, total = await stream(client, n=2, seed=7, stream_options=options)
        assert total.choices == []
        assert tokens(total.usage) == (7, 2 * OF_SEEDED, 7 + 2 * OF_SEEDED)
        for index in range(2):
            own = [chunk.usage.completion_tokens for chunk in chunks if chunk.choices[0].index == index]
            assert own[0] == 0
            assert own == sorted(own)
            assert own[-1] == OF_SEEDED

    async def test_optional_fields_are_null_or_absent(self) -> None:
        for personality, present in (("vllm", True), ("llama.cpp", False)):
            with LoopbackServer(EchoBrain(), personality) as server:
                _, body = fetch(server, "/v1/chat/completions", {"messages": MESSAGES})
            choice = body["choices"][0]
            assert ("refusal" in choice["message"]) == ("reasoning" in choice["message"]) == present
            assert ("logprobs" in choice) == ("token_ids" in choice) == present

    async def test_token_ids_on_request(self) -> None:
        with LoopbackServer(EchoBrain()) as server:
            body = {"messages": MESSAGES, "return_token_ids": True}
            _, answer = fetch(server, "/v1/chat/completions", body)
            async with client_of(server) as client:
                chunks = await stream(client, extra_body={"return_token_ids": True})
        ids = [i for chunk in chunks for i in chunk.choices[0].model_dump()["token_ids"] or []]
        assert ids == answer["choices"][0]["token_ids"]
        assert len(ids) == answer["usage"]["completion_tokens"]
        assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]


class TestSeeds:
    @pytest.mark.parametrize("personality", ["vllm", "llama.cpp"])
    async def test_child_i_of_n_samples_with_seed_plus_i(self, personality) -> None:
        with LoopbackServer(TutorialBrain(0.0), personality) as server:
            async with client_of(server) as client:
                together = contents(await ask(client, n=4, seed=7))
                apart = [contents(await ask(client, seed=seed))[0] for seed in range(7, 11)]
        assert together == apart
        assert len(set(together)) == 4

    async def test_without_a_seed_samples_differ_but_the_server_repeats_itself(self) -> None:
        runs = []
        for _ in range(2):
            with LoopbackServer(SEEDED) as server:
                async with client_of(server) as client:
                    runs.append([contents(await ask(client, n=2)) for _ in range(2)])
        assert runs[0] == runs[1]
        assert len({text for answer in runs[0] for text in answer}) == 4

    async def test_greedy_choices_are_equal_where_they_are_allowed(self) -> None:
        with LoopbackServer(SEEDED, "llama.cpp") as server:
            async with client_of(server) as client:
                assert len(set(contents(await ask(client, n=3, temperature=0)))) == 1


class TestContent:
    async def test_limits_cut_and_stop_strings_end(self) -> None:
        with LoopbackServer(ScriptedBrain(lambda *_: "go north now")) as server:
            async with client_of(server) as client:
                cut = await ask(client, max_tokens=2)
                stopped = await ask(client, stop=[" "])
                exact = await ask(client, max_completion_tokens=4)
        assert (contents(cut), cut.choices[0].finish_reason) == (["go north"], "length")
        assert (contents(stopped), stopped.usage.completion_tokens) == (["go"], 2)
        assert stopped.choices[0].model_dump()["stop_reason"] == " "
        assert (exact.choices[0].finish_reason, exact.usage.completion_tokens) == ("stop", 4)

    async def test_tool_calls_whole_and_in_fragments(self) -> None:
        calls = (ToolCall("open", '{"id": 1}'), ToolCall("read", '{"page": [2, 3]}'))
        with LoopbackServer(ScriptedBrain(lambda *_: Reply(tool_calls=calls))) as server:
            async with client_of(server) as client:
                answer = await ask(client)
                chunks = await stream(client)
        message = answer.choices[0].message
        assert message.content is None
        assert answer.choices[0].finish_reason == "tool_calls"
        assert [(c.function.name, c.function.arguments) for c in message.tool_calls] == [
            ("open", '{"id": 1}'),
            ("read", '{"page": [2, 3]}'),
        ]
        deltas = [d for chunk in chunks for d in chunk.choices[0].delta.tool_calls or []]
        assert [d.index for d in deltas[:4]] == [0, 1, 0, 1]
        arguments: Counter[int] = Counter()
        texts = {0: "", 1: ""}
        for delta in deltas:
            texts[delta.index] += delta.function.arguments
            arguments[delta.index] += delta.function.name is not None
        assert texts == {0: '{"id": 1}', 1: '{"page": [2, 3]}'}
        assert arguments == {0: 1, 1: 1}
        assert chunks[-1].choices[0].finish_reason == "tool_calls"

    @pytest.mark.parametrize(
        ("personality", "name"), [("vllm", "reasoning"), ("llama.cpp", "reasoning_content")]
    )
    async def test_reasoning_has_its_own_field_and_content_is_null(self, personality, name) -> None:
        with LoopbackServer(ScriptedBrain(lambda *_: Reply(reasoning="I think so")), personality) as server:
            async with client_of(server) as client:
                message = (await ask(client)).choices[0].message
                chunks = await stream(client)
        assert message.content is None
        assert message.model_dump()[name] == "I think so"
        parts = [chunk.choices[0].delta.model_dump().get(name) or "" for chunk in chunks if chunk.choices]
        assert "".join(parts) == "I think so"

    async def test_an_empty_answer_costs_one_token(self) -> None:
        with LoopbackServer(ScriptedBrain(lambda *_: "")) as server:
            async with client_of(server) as client:
                answer = await ask(client)
                chunks = await stream(client)
        assert (contents(answer), answer.usage.completion_tokens) == ([""], 1)
        assert joined(chunks) == {0: ""}

    async def test_text_completions(self) -> None:
        with LoopbackServer(SEEDED) as server:
            async with client_of(server) as client:
                fields = {"model": server.model, "prompt": "where to", "seed": 7, "n": 2}
                answer = await client.completions.create(**fields)
                opened = await client.completions.create(**fields, stream=True)
                texts = {0: "", 1: ""}
                async for chunk in opened:
                    texts[chunk.choices[0].index] += chunk.choices[0].text
        assert [choice.text for choice in answer.choices] == [texts[0], texts[1]]
        assert texts[1] == "go 8 and look around in the house"
        assert tokens(answer.usage) == (2, 2 * OF_SEEDED, 2 + 2 * OF_SEEDED)
        assert answer.id.startswith("cmpl-")


class TestPrefixCache:
    async def test_hits_are_full_blocks_of_the_history(self) -> None:
        with LoopbackServer(EchoBrain(), cache_block_size=8) as server:
            async with client_of(server) as client:
                history = [{"role": "user", "content": "one two three four five six seven"}]
                first = await ask(client, messages=history)
                again = await ask(client, messages=history)
                history += [{"role": "assistant", "content": contents(first)[0]}]
                longer = await ask(client, messages=[*history, {"role": "user", "content": "go on"}])
                salted = await ask(client, messages=history, extra_body={"cache_salt": "other"})
            now = await server.until(lambda c: c.in_flight == 0)
        hits = [a.usage.prompt_tokens_details.cached_tokens for a in (first, again, longer, salted)]
        assert hits == [0, 8, 16, 0]
        assert now.cached_tokens == 24

    async def test_details_are_null_when_off_and_an_uncached_prompt_takes_time(self) -> None:
        options = {"prompt_tokens_details": False, "cache_block_size": 1, "prefill_token_delay_s": 0.05}
        with LoopbackServer(EchoBrain(), **options) as server:
            async with client_of(server) as client:
                times = []
                for _ in range(6):
                    begun = time.monotonic()
                    answer = await ask(client)
                    times.append(time.monotonic() - begun)
            _, raw = fetch(server, "/v1/chat/completions", {"messages": MESSAGES})
        assert answer.usage.prompt_tokens_details is None
        assert raw["usage"]["prompt_tokens_details"] is None
        assert times[0] >= 0.35
        assert min(times[1:]) < 0.35


class TestStopping:
    """Leaving must stop every sequence of the request within one engine step."""

    @pytest.mark.parametrize("personality", ["vllm", "llama.cpp"])
    async def test_closing_a_stream_stops_all_its_choices(self, personality) -> None:
        with LoopbackServer(LONG, personality, step_delay_s=0.005) as server:
            async with client_of(server) as client:
                opened = await ask(client, stream=True, n=8, extra_headers={"x-rollout-group": "g1"})
                received = 0
                async for chunk in opened:
                    received += bool(chunk.choices[0].delta.content)
                    if received == 40:
                        break
                await opened.close()
                now = await server.until(lambda c: c.disconnects == 1 and c.in_flight == 0)
                await asyncio.sleep(0.03)
            group = server.counters.for_group("g1")
        assert group.completion_tokens == now.completion_tokens
        assert group.completion_tokens < 8 * 1000
        assert group.tokens_after_disconnect <= 8
        assert now.running == 0

    @pytest.mark.parametrize("streaming", [True, False])
    async def test_cancelling_the_task_stops_the_request(self, streaming) -> None:
        with LoopbackServer(LONG, step_delay_s=0.005) as server:
            async with client_of(server) as client:
                work = asyncio.create_task(stream(client, n=4) if streaming else ask(client, n=4))
                await server.until(lambda c: c.completion_tokens >= 20)
                work.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await work
                now = await server.until(lambda c: c.in_flight == 0)
        assert now.disconnects == 1
        assert now.completion_tokens < 4 * 1000
        assert now.tokens_after_disconnect <= 4

    async def test_leaving_before_the_first_token_costs_none(self) -> None:
        with LoopbackServer(LONG, first_token_delay_s=60) as server:
            async with client_of(server) as client:
                work = asyncio.create_task(ask(client, n=4))
                await server.until(lambda c: c.in_flight == 1)
                work.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await work
                now = await server.until(lambda c: c.in_flight == 0)
        assert now.completion_tokens == 0

    async def test_a_server_that_does_not_notice_generates_for_nobody(self) -> None:
        with LoopbackServer(LONG, step_delay_s=0.005, stops_on_disconnect=False) as server:
            async with client_of(server) as client:
                opened = await ask(client, stream=True, n=2, max_tokens=200)
                async for _ in opened:
                    break
                await opened.close()
                now = await server.until(lambda c: c.disconnects == 1 and c.in_flight == 0)
        assert now.completion_tokens == 400
        assert now.tokens_after_disconnect > 0
        assert now.tokens_sent < 400

    async def test_a_finished_stream_is_no_disconnect(self) -> None:
        with LoopbackServer(SEEDED) as server:
            for _ in range(5):
                async with client_of(server) as client:
                    await stream(client)
            now = await server.until(lambda c: c.in_flight == 0)
        assert (now.disconnects, now.completion_tokens) == (0, now.tokens_sent)


class TestAbort:
    @pytest.mark.parametrize("streaming", [True, False])
    async def test_abort_by_id_keeps_partial_content_and_exact_usage(self, streaming) -> None:
        body = {"n": 4, "extra_body": {"request_id": "r1"}}
        with LoopbackServer(LONG, abort_endpoint=True, step_delay_s=0.005) as server:
            async with client_of(server) as client:
                if streaming:
                    options = {"include_usage": True}
                    work = asyncio.create_task(stream(client, **body, stream_options=options))
                else:
                    work = asyncio.create_task(ask(client, **body))
                await server.until(lambda c: c.completion_tokens >= 20)
                ids = {"request_ids": ["chatcmpl-r1"]}
                assert fetch(server, "/inference/v1/abort_requests", ids) == (200, "")
                answer = await work
            now = await server.until(lambda c: c.in_flight == 0)
            _, metrics = fetch(server, "/metrics")
        if streaming:
            finals = [c for chunk in answer for c in chunk.choices if c.finish_reason]
            assert [c.finish_reason for c in finals] == ["abort"] * 4
            usage, texts = answer[-1].usage, list(joined(answer).values())
        else:
            assert [c.finish_reason for c in answer.choices] == ["abort"] * 4
            usage, texts = answer.usage, contents(answer)
        assert usage.completion_tokens == now.completion_tokens == sum(map(count_tokens, texts))
        assert (now.aborts, now.disconnects, now.finished) == (1, 0, {})
        assert now.for_request("chatcmpl-r1").status == 200
        assert 'finished_reason="abort"} 0' in metrics

    async def test_unknown_ids_have_no_effect_and_odd_bodies_are_refused(self) -> None:
        with LoopbackServer(EchoBrain(), abort_endpoint=True) as server:
            assert fetch(server, "/inference/v1/abort_requests", {"request_ids": ["x"]}) == (200, "")
            assert fetch(server, "/inference/v1/abort_requests", {"request_ids": "x"})[0] == 400

    async def test_it_is_off_unless_switched_on_and_unknown_to_llama_cpp(self) -> None:
        with LoopbackServer(EchoBrain()) as server:
            status, body = fetch(server, "/inference/v1/abort_requests", {"request_ids": []})
            assert (status, "--enable-scale-out" in body["error"]["message"]) == (403, True)
        with LoopbackServer(EchoBrain(), "llama.cpp") as server:
            assert fetch(server, "/inference/v1/abort_requests", {"request_ids": []})[0] == 404


class TestErrors:
    async def test_wrong_keys(self) -> None:
        with LoopbackServer(EchoBrain()) as server:
            assert fetch(server, "/v1/models", key="wrong") == (401, {"error": "Unauthorized"})
            async with client_of(server, api_key="wrong") as client:
                with pytest.raises(openai.AuthenticationError):
                    await ask(client)
            assert fetch(server, "/health", key=None) == (200, "")
            assert fetch(server, "/metrics", key=None)[0] == 200
        with LoopbackServer(EchoBrain(), "llama.cpp") as server:
            status, body = fetch(server, "/metrics", key=None)
            assert (status, body["error"]["message"]) == (401, "Invalid API Key")
            assert fetch(server, "/health", key=None) == (200, {"status": "ok"})
        with LoopbackServer(EchoBrain(), api_key=None) as server:
            assert fetch(server, "/v1/models", key=None)[0] == 200

    async def test_unknown_models_paths_and_methods(self) -> None:
        with LoopbackServer(EchoBrain()) as server:
            async with client_of(server) as client:
                with pytest.raises(openai.NotFoundError, match="`other` does not exist"):
                    await ask(client, model="other")
            assert fetch(server, "/v1/nothing") == (404, {"detail": "Not Found"})
            assert fetch(server, "/v1/chat/completions") == (405, {"detail": "Method Not Allowed"})
        assert server.counters.responses == {
            ("/v1/chat/completions", 404): 1,
            ("/v1/chat/completions", 405): 1,
            ("other", 404): 1,
        }
        with LoopbackServer(EchoBrain(), "llama.cpp") as server:
            async with client_of(server) as client:
                assert contents(await ask(client, model="other")) == ["where to go now"]
            assert fetch(server, "/v1/nothing")[1]["error"]["type"] == "not_found_error"

    @pytest.mark.parametrize("streaming", [True, False])
    async def test_a_refused_request_is_plain_json_also_for_a_stream(self, streaming) -> None:
        with LoopbackServer(EchoBrain()) as server:
            async with client_of(server) as client:
                with pytest.raises(openai.BadRequestError, match="greedy sampling, got 4"):
                    await ask(client, n=4, temperature=0, stream=streaming)
            status, body = fetch(server, "/v1/chat/completions", {"messages": [], "stream": streaming})
        assert (status, body["error"]["type"], body["error"]["param"]) == (400, "BadRequestError", "messages")

    async def test_a_long_prompt_is_refused_in_each_dialect(self) -> None:
        long = {"messages": [{"role": "user", "content": "word " * 100}]}
        with LoopbackServer(EchoBrain(), max_model_len=64) as server:
            _, body = fetch(server, "/v1/chat/completions", long)
            assert body["error"]["param"] == "input_text"
        with LoopbackServer(EchoBrain(), "llama.cpp", max_model_len=64) as server:
            _, body = fetch(server, "/v1/chat/completions", long)
            assert body["error"]["type"] == "exceed_context_size_error"
            assert body["error"]["n_ctx"] == 64

    async def test_overload_and_loading(self) -> None:
        with LoopbackServer(LONG, max_running=5, step_delay_s=0.01) as server:
            async with client_of(server) as client:
                work = asyncio.create_task(ask(client, n=4))
                await server.until(lambda c: c.running == 4)
                with pytest.raises(openai.InternalServerError) as overloaded:
                    await ask(client, n=2)
                assert overloaded.value.status_code == 503
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
        with LoopbackServer(EchoBrain(), "llama.cpp", loading_s=60) as server:
            status, body = fetch(server, "/health")
            assert (status, body["error"]["message"]) == (503, "Loading model")
        with LoopbackServer(EchoBrain(), "llama.cpp", loading_s=0.05) as server:
            while (answer := fetch(server, "/health"))[0] == 503:
                await asyncio.sleep(0.01)
            assert answer == (200, {"status": "ok"})

    async def test_a_brain_that_raises_is_a_server_error(self) -> None:
        with LoopbackServer(ScriptedBrain([])) as server:
            async with client_of(server) as client:
                with pytest.raises(openai.InternalServerError, match="script holds 0 replies"):
                    await ask(client)
            now = await server.until(lambda c: c.in_flight == 0)
        assert now.records[0].status == 500

    async def test_the_served_model_is_listed(self) -> None:
        with LoopbackServer(EchoBrain(), model="m", max_model_len=512) as server:
            async with client_of(server) as client:
                card = (await client.models.list()).data[0]
        assert (card.id, card.model_dump()["max_model_len"]) == ("m", 512)
        with LoopbackServer(EchoBrain(), "llama.cpp", max_model_len=512) as server:
            _, listing = fetch(server, "/v1/models")
        assert listing["data"][0]["meta"]["n_ctx"] == 512
        assert listing["models"]


class TestFaults:
    @asynccontextmanager
    async def faulty(self, fault: Any, **options: Any) -> AsyncIterator[tuple[Any, Any]]:
        brain = options.pop("brain", SEEDED)
        with LoopbackServer(brain, faults=lambda context: fault, **options) as server:
            async with client_of(server) as client:
                yield server, client

    @pytest.mark.parametrize(
        ("kind", "status"), [("rate_limit", 429), ("server_error", 500), ("overloaded", 503)]
    )
    async def test_failures_at_the_door(self, kind, status) -> None:
        async with self.faulty(Fault(kind, retry_after_s=1.5)) as (server, client):
            with pytest.raises(openai.APIStatusError) as failed:
                await ask(client)
            now = await server.until(lambda c: c.in_flight == 0)
        assert failed.value.status_code == status
        assert failed.value.response.headers.get("retry-after") == ("1.5" if status == 429 else None)
        assert (now.completion_tokens, now.records[0].fault, now.records[0].status) == (0, kind, status)

    async def test_a_client_that_retries_gets_through(self) -> None:
        def first_attempt(context: Any) -> Any:
            return "rate_limit" if context.attempt == 0 else None

        with LoopbackServer(SEEDED, faults=first_attempt) as server:
            async with client_of(server, max_retries=1) as client:
                assert contents(await ask(client, seed=7)) == ["go 7 and look around in the house"]
            now = await server.until(lambda c: c.in_flight == 0)
        assert now.responses == {("/v1/chat/completions", 429): 1, ("/v1/chat/completions", 200): 1}

    @pytest.mark.parametrize("streaming", [True, False])
    async def test_a_reset_before_the_response(self, streaming) -> None:
        async with self.faulty("reset_before_response") as (server, client):
            with pytest.raises(openai.APIConnectionError):
                await ask(client, stream=streaming)
            now = await server.until(lambda c: c.in_flight == 0)
        assert (now.completion_tokens, now.disconnects) == (0, 0)
        assert now.responses == {("/v1/chat/completions", None): 1}

    @pytest.mark.parametrize("streaming", [True, False])
    async def test_a_reset_in_the_middle(self, streaming) -> None:
        async with self.faulty("reset_mid_response") as (server, client):
            with pytest.raises(Exception, match=r"(?i)connection|reset|read|peer"):
                await (stream(client, seed=7) if streaming else ask(client, seed=7))
            now = await server.until(lambda c: c.in_flight == 0)
        assert now.completion_tokens == (3 if streaming else OF_SEEDED)

    async def test_a_stall_lasts_until_the_client_leaves(self) -> None:
        async with self.faulty(Fault("stall", after_steps=2)) as (server, client):
            work = asyncio.create_task(stream(client))
            await server.until(lambda c: c.completion_tokens == 2)
            done, _ = await asyncio.wait({work}, timeout=0.05)
            assert not done
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            now = await server.until(lambda c: c.in_flight == 0)
        assert (now.completion_tokens, now.disconnects) == (2, 1)

    async def test_an_error_event_in_a_stream(self) -> None:
        async with self.faulty("error_event") as (server, client):
            with pytest.raises(openai.APIError, match="engine died"):
                await stream(client)
            with pytest.raises(openai.InternalServerError, match="engine died"):
                await ask(client)
            streamed = (await server.until(lambda c: c.in_flight == 0)).records[0]
        assert (streamed.status, streamed.completion_tokens) == (200, 3)

    @pytest.mark.parametrize("streaming", [True, False])
    async def test_broken_json(self, streaming) -> None:
        async with self.faulty("malformed_chunk") as (_, client):
            with pytest.raises((ValueError, openai.APIResponseValidationError)):
                await (stream(client) if streaming else ask(client))

    @pytest.mark.parametrize(("kind", "left"), [("empty_choices", 0), ("fewer_choices", 3)])
    async def test_missing_choices(self, kind, left) -> None:
        async with self.faulty(kind) as (_, client):
            assert len((await ask(client, n=4)).choices) == left
            assert len(joined(await stream(client, n=4))) == left

    async def test_a_cut_inside_a_character(self) -> None:
        brain = ScriptedBrain(lambda *_: "caf\u00e9 caf\u00e9 caf\u00e9 caf\u00e9")
        async with self.faulty(Fault("truncated_utf8", after_steps=2), brain=brain) as (_, client):
            answer = await ask(client)
            chunks = await stream(client)
        assert contents(answer) == ["caf\u00e9 caf\ufffd"] == list(joined(chunks).values())
        assert answer.choices[0].finish_reason == "length"

    async def test_a_slow_first_token(self) -> None:
        async with self.faulty(Fault("slow_first_token", delay_s=0.1)) as (_, client):
            begun = time.monotonic()
            await ask(client)
        assert time.monotonic() - begun >= 0.1

    async def test_a_plan_strikes_the_same_requests_on_every_run(self) -> None:
        struck = []
        for _ in range(2):
            with LoopbackServer(
                SEEDED, faults=FaultPlan(0.4, ["overloaded", "rate_limit"], seed=3)
            ) as server:
                async with client_of(server) as client:
                    for _ in range(20):
                        await asyncio.gather(ask(client), return_exceptions=True)
                struck.append([record.fault for record in server.counters.records])
        assert struck[0] == struck[1]
        assert set(struck[0]) == {None, "overloaded", "rate_limit"}


class TestConcurrency:
    async def test_fifty_streams_at_once(self) -> None:
        brain = ScriptedBrain(lambda request, choice, seed: f"this is the answer of seed {seed}")
        with LoopbackServer(brain, first_token_delay_s=1.0, step_delay_s=0.002) as server:
            async with client_of(server) as client:
                headers = [{"x-rollout-group": f"g{i % 5}", "x-rollout-id": str(i)} for i in range(50)]
                work = [stream(client, seed=i, extra_headers=h) for i, h in enumerate(headers)]
                results = await asyncio.gather(*work)
            now = await server.until(lambda c: c.in_flight == 0)
        for seed, chunks in enumerate(results):
            assert joined(chunks) == {0: f"this is the answer of seed {seed}"}
        assert now.peak_in_flight > 10
        assert now.for_group("g1").requests == 10
        assert now.for_rollout("g1", "1").completion_tokens * 50 == now.completion_tokens
        assert now.disconnects == 0

    async def test_requests_share_a_connection_that_is_kept_alive(self) -> None:
        with LoopbackServer(SEEDED) as server:
            async with client_of(server) as client:
                for _ in range(10):
                    await stream(client)
                    await ask(client)
        assert server.counters.responses == {("/v1/chat/completions", 200): 20}

    def test_nothing_is_left_behind(self) -> None:
        before = set(threading.enumerate())
        with LoopbackServer(LONG, step_delay_s=0.01) as server:
            fetch(server, "/health")
        assert set(threading.enumerate()) <= before


def test_it_runs_as_a_process_and_ends_on_a_signal() -> None:
    command = [sys.executable, "-m", "selective_rollout.testing", "--brain", "tutorial", "--api-key", ""]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        try:
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:")
            body = json.dumps({"messages": MESSAGES}).encode()
            with urllib.request.urlopen(f"{url}/chat/completions", data=body, timeout=30) as response:
                assert json.load(response)["choices"][0]["message"]["content"]
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_as_a_process_it_names_what_is_wrong() -> None:
    command = [sys.executable, "-m", "selective_rollout.testing", "--brain", "nobody"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("error: --brain nobody")
