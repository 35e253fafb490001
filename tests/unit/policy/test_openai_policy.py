"""What the loopback server does not do: refuse options, leave out the end, answer with nothing."""

from contextlib import asynccontextmanager

import pytest

from selective_rollout.errors import PolicyError
from selective_rollout.policy import Endpoint, Meter, RequestInfo, RequestLimits
from selective_rollout.policy.failures import from_policy_error
from selective_rollout.policy.openai_client import OpenAIPolicy

ENDPOINT = Endpoint(base_url="http://h/v1", model="m")
ANSWER = [
    {"choices": [{"index": 0, "delta": {"content": "ok"}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
]


class ScriptedTransport:
    """Answers request i with `script[i]`: chunks, or an error."""

    def __init__(self, *script):
        self.script = list(script)
        self.sent = []

    @asynccontextmanager
    async def stream(self, body, headers):
        self.sent.append((dict(body), dict(headers)))
        said = self.script.pop(0)
        if isinstance(said, Exception):
            raise said

        async def chunks():
            for chunk in said:
                yield chunk

        yield chunks()

    def describe(self, error):
        return from_policy_error(error, ENDPOINT)


async def complete(monkeypatch, *script, times=1):
    policy = OpenAIPolicy(ENDPOINT, limits=RequestLimits(backoff_s=0.0))
    await policy.aclose()
    transport = ScriptedTransport(*script)
    monkeypatch.setattr(policy, "_transport", transport)
    meter = Meter()
    for _ in range(times):
        completion = await policy.complete(
            [{"role": "user", "content": "x"}], RequestInfo("g", 0, 1, meter=meter)
        )
    return completion, transport, meter


async def test_a_server_that_refuses_stream_options_is_asked_without_from_then_on(monkeypatch):
    refusal = PolicyError("unknown field stream_options", "bad_request", 400)
    completion, transport, meter = await complete(monkeypatch, refusal, ANSWER, ANSWER, times=2)
    assert ["stream_options" in body for body, _ in transport.sent] == [True, False, False]
    assert meter.attempts == 3
    assert (completion.usage.completion, completion.usage.source) == (1, "client")
    assert completion.usage.prompt is None


async def test_other_refusals_are_final(monkeypatch):
    with pytest.raises(PolicyError, match="unknown field top_k"):
        await complete(monkeypatch, PolicyError("unknown field top_k", "bad_request", 400))


@pytest.mark.parametrize(
    "broken",
    [ANSWER[:1], [*ANSWER[:1], {"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]}]],
    ids=["no finish reason", "finish reason error"],
)
async def test_an_answer_that_breaks_off_is_asked_for_again(monkeypatch, broken):
    completion, _, meter = await complete(monkeypatch, broken, ANSWER)
    assert completion.message["content"] == "ok"
    assert (meter.attempts, meter.wasted, meter.completion) == (2, 1, 1)


async def test_an_answer_without_chunks_is_named(monkeypatch):
    with pytest.raises(PolicyError, match="no stream, or no chat completions there") as error:
        await complete(monkeypatch, [], [])
    assert error.value.kind == "protocol"
