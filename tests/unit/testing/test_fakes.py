import asyncio

import pytest

from selective_rollout.env.base import Environment, Observation, StepResult
from selective_rollout.errors import ConfigError, EnvironmentFault
from selective_rollout.policy.base import Policy, RequestInfo
from selective_rollout.testing import (
    Reply,
    ScriptedBrain,
    ScriptedEnvironment,
    ScriptedPolicy,
    ToolCall,
    TutorialBrain,
    count_tokens,
)
from selective_rollout.types import Usage

MESSAGES = [{"role": "user", "content": "go on"}]


def info(rollout: int = 0, seed: int | None = None, step: int = 1) -> RequestInfo:
    return RequestInfo("g", rollout, step, seed)


async def test_a_completion_carries_message_usage_and_meter() -> None:
    policy: Policy = ScriptedPolicy(ScriptedBrain(["open the door"]))
    request = info()
    completion = await policy.complete(MESSAGES, request)
    assert completion.message == {"role": "assistant", "content": "open the door"}
    assert completion.usage == Usage(prompt=5, completion=4, reasoning=0, source="client")
    assert (completion.finish_reason, completion.response_id) == ("stop", "scripted-g-0-1")
    assert (request.meter.completion, request.meter.attempts, request.meter.started) == (4, 1, True)
    assert count_tokens("open the door") + 1 == 4


async def test_the_brain_sees_rollout_and_seed() -> None:
    policy = ScriptedPolicy(TutorialBrain(0.0, steps=3))
    first = await policy.complete(MESSAGES, info(0, seed=7))
    again = await policy.complete(MESSAGES, info(0, seed=7))
    other = await policy.complete(MESSAGES, info(1, seed=8))
    assert first.message == again.message != other.message


async def test_calls_and_reasoning_and_limits() -> None:
    reply = Reply(tool_calls=(ToolCall("open", '{"id": 1}'),), reasoning="hm")
    policy = ScriptedPolicy(ScriptedBrain([reply]))
    completion = await policy.complete(MESSAGES, info())
    assert completion.message["content"] is None
    assert completion.message["tool_calls"][0]["function"] == {"name": "open", "arguments": '{"id": 1}'}
    assert completion.finish_reason == "tool_calls"
    assert completion.usage.reasoning == 1
    cut = await ScriptedPolicy(ScriptedBrain(["a b c d"]), max_tokens=2).complete(MESSAGES, info())
    assert (cut.message["content"], cut.finish_reason) == ("a b", "length")


async def test_cancelling_stops_within_a_token_and_leaves_the_count_in_the_meter() -> None:
    policy = ScriptedPolicy(ScriptedBrain(["word " * 100]), token_delay_s=0.001)
    requests = [info(rollout) for rollout in range(3)]
    tasks = [asyncio.create_task(policy.complete(MESSAGES, request)) for request in requests]
    for _ in range(5000):
        if all(request.meter.completion > 0 for request in requests):
            break
        await asyncio.sleep(0.001)
    assert (policy.in_flight, policy.peak_in_flight) == (3, 3)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    spent = policy.completion_tokens
    await asyncio.sleep(0.01)
    assert 3 <= policy.completion_tokens == spent < 300
    assert policy.cancelled == requests
    assert policy.in_flight == 0


async def test_at_no_delay_the_loop_runs_between_tokens() -> None:
    policy = ScriptedPolicy(ScriptedBrain(["word " * 1000]))
    request = info()
    task = asyncio.create_task(policy.complete(MESSAGES, request))
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 0 < request.meter.completion < 20


async def test_a_cancelled_wait_for_the_first_token_costs_nothing() -> None:
    policy = ScriptedPolicy(ScriptedBrain(["word"]), first_token_delay_s=30)
    request = info()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(policy.complete(MESSAGES, request), 0.01)
    assert (request.meter.started, request.meter.completion) == (True, 0)


async def test_a_closed_policy_refuses() -> None:
    policy = ScriptedPolicy(ScriptedBrain(["word"]))
    await policy.aclose()
    with pytest.raises(ConfigError, match="closed"):
        await policy.complete(MESSAGES, info())


def test_an_environment_gives_its_replies_in_order() -> None:
    results = [StepResult("a room"), StepResult("done", reward=1.0, terminated=True)]
    environment = ScriptedEnvironment(results, Observation("a house", ("look",)))
    typed: Environment = environment
    assert typed.start() == Observation("a house", ("look",))
    assert [environment.step("look"), environment.step("take")] == results
    assert environment.actions == ["look", "take"]
    with pytest.raises(EnvironmentFault, match="2 replies are listed; step 3"):
        environment.step("again")
    environment.close()
    assert environment.closed


def test_an_environment_enforces_its_protocol() -> None:
    environment = ScriptedEnvironment([StepResult("x")], replayable=False)
    assert environment.replayable is False
    with pytest.raises(EnvironmentFault, match="start"):
        environment.step("too early")
    assert environment.start() == Observation("start")
    with pytest.raises(EnvironmentFault, match="single-use"):
        environment.start()
    environment.close()
    with pytest.raises(EnvironmentFault, match="twice"):
        environment.close()
    with pytest.raises(EnvironmentFault, match="after close"):
        environment.step("too late")


async def test_a_slow_step_can_be_cancelled() -> None:
    environment = ScriptedEnvironment([StepResult("x"), StepResult("y")], delay_s=30.0)
    environment.start()
    pending = environment.step("go")
    assert not isinstance(pending, StepResult)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pending, 0.01)
    assert environment.actions == ["go"]
