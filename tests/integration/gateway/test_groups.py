"""Agents on the official SDK run their groups through the gateway; the model server is real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import openai
import pytest

from selective_rollout.engine.config import RunConfig
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.gateway import Limits
from selective_rollout.testing import LoopbackServer, Reply, ScriptedBrain, ToolCall
from selective_rollout.trace.reader import RecordedGroup, read_groups
from selective_rollout.types import RolloutStatus

LOOK = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
G = 4
STEPS = 6


def script(request: dict[str, Any], choice: int, seed: int | None) -> Reply | str:
    """Tool calls for some steps, then an answer; a user message "apart N" makes rollouts differ."""
    messages = request["messages"]
    done = sum(message["role"] == "assistant" for message in messages)
    word = messages[0]["content"]
    if done < STEPS:
        return Reply(tool_calls=(ToolCall("look", json.dumps({"at": f"{done} {word}"})),))
    return "The answer is 42."


@pytest.fixture
def model() -> Iterator[LoopbackServer]:
    with LoopbackServer(ScriptedBrain(script), api_key=None) as server:
        yield server


def headers(rollout: int, group: str = "g1", size: int = G) -> dict[str, str]:
    return {
        "x-selective-rollout-group": group,
        "x-selective-rollout-rollout": str(rollout),
        "x-selective-rollout-group-size": str(size),
    }


class Agents:
    """Agent loops that know nothing of groups; they share one client's connections."""

    def __init__(self, url: str, key: str = "EMPTY") -> None:
        plain = openai.DefaultAsyncHttpxClient(verify=False)
        self.client = openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, http_client=plain)
        self.root = url.removesuffix("/v1")

    async def __aenter__(self) -> Agents:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def run(
        self, rollout: int, *, group: str = "g1", word: str = "same", stream: bool = False, most: int = 20
    ) -> str:
        """One agent loop; returns its answer."""
        messages: list[Any] = [{"role": "user", "content": word}]
        client = self.client.with_options(default_headers=headers(rollout, group))
        for _ in range(most):
            message = await ask(client, messages, stream=stream)
            messages.append(message)
            if not message.get("tool_calls"):
                return str(message["content"])
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
                for call in message["tool_calls"]
            ]
        return "ran out"

    async def all(self, **options: Any) -> list[str]:
        """All agents of a group; a refusal is told by status and code."""
        return await asyncio.gather(*(ended(self.run(i, **options)) for i in range(G)))

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Tell the gateway something of a group."""
        url = f"{self.root}/selective-rollout/v1/groups/{path}"
        return await self.client.post(url, cast_to=object, body=body)


async def ask(client: openai.AsyncOpenAI, messages: list[Any], *, stream: bool) -> dict[str, Any]:
    arguments: dict[str, Any] = {"model": "loopback-model", "messages": messages, "tools": LOOK}
    if not stream:
        answer = await client.chat.completions.create(**arguments)
        return answer.choices[0].message.model_dump(exclude_none=True)
    async with client.chat.completions.stream(**arguments) as events:
        completion = await events.get_final_completion()
    return completion.choices[0].message.model_dump(exclude_none=True, exclude={"parsed"})


async def ended(work: Awaitable[str]) -> str:
    try:
        return await work
    except openai.APIError as error:
        return f"{getattr(error, 'status_code', 'stream')} {error.code}"


def only_group(running: Any) -> RecordedGroup:
    (group,) = read_groups(running.trace)
    return group


Start = Callable[..., Awaitable[Any]]
ENFORCE = RunConfig(mode="enforce")
EARLY = GateConfig(start_step=3)
SURVIVOR = GateConfig(start_step=3, outcome="survivor")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_observing_changes_nothing_and_records_everything(
    start: Start, model: LoopbackServer, stream: bool
) -> None:
    running = await start(model.base_url, rule=EARLY, inject_usage=True)
    async with Agents(running.url) as agents:
        assert await agents.all(stream=stream) == ["The answer is 42."] * G
        for i in range(G):
            said = await agents.post(f"g1/rollouts/{i}/end", {"reward": i % 2})
            assert said == {"status": "finished", "reward": i % 2, "recorded": True}
    recorded = only_group(running)
    assert recorded.end is not None
    assert (recorded.end.outcome, recorded.end.would_cut_at) == (None, 3)
    assert [r.reward for r in recorded.group.rollouts] == [0, 1, 0, 1]
    for rollout in recorded.group.rollouts:
        looks = [f'look({{"at":"{t} same"}})' for t in range(STEPS)]
        assert list(rollout.actions) == [*looks, "The answer is 42."]
        assert rollout.answer == "the answer is 42"
        assert all(step.observation_hash for step in rollout.steps[:-1])
        assert all(step.usage and step.usage.source == "server" for step in rollout.steps)


async def test_a_group_that_is_dropped_gets_410_and_is_not_retried(
    start: Start, model: LoopbackServer
) -> None:
    running = await start(model.base_url, rule=EARLY, run=ENFORCE)
    async with Agents(running.url) as agents:
        assert await agents.all() == ["410 group_cut"] * G
        assert await ended(agents.run(2)) == "410 group_cut"  # one that begins again is too late
        assert model.counters.requests == 3 * G
        told = await agents.post("g1/rollouts/2/reward", {"reward": 1.0})
    assert told == {"status": "cut", "reward": None, "recorded": False}
    recorded = only_group(running)
    assert recorded.end is not None
    assert (recorded.end.outcome, recorded.end.cut_at) == ("drop", 3)
    assert {r.status for r in recorded.group.rollouts} == {RolloutStatus.CUT}


async def test_a_group_that_differs_is_kept(start: Start, model: LoopbackServer) -> None:
    running = await start(model.base_url, rule=EARLY, run=ENFORCE)
    async with Agents(running.url) as agents:
        work = (agents.run(i, word=f"apart {i}") for i in range(G))
        assert await asyncio.gather(*work) == ["The answer is 42."] * G
    (group,) = running.gateway.view().groups
    assert [decision.reason for decision in group.decisions] == ["distance"]


async def test_followers_wait_for_the_survivor_and_then_end(start: Start, model: LoopbackServer) -> None:
    running = await start(model.base_url, rule=SURVIVOR, run=ENFORCE)
    async with Agents(running.url) as agents:

        async def run(i: int) -> str:
            said = await ended(agents.run(i))
            if not said.startswith("410"):
                await agents.post(f"g1/rollouts/{i}/end", {})
            return said

        ends = await asyncio.gather(*(run(i) for i in range(G)))
    assert sorted(ends) == ["410 group_answered"] * (G - 1) + ["The answer is 42."]
    end = only_group(running).end
    assert end is not None
    assert (end.outcome, end.survivor) == ("survivor", ends.index("The answer is 42."))
    assert end.answer == "the answer is 42"


async def test_the_next_rollout_takes_over_from_a_survivor_that_failed(
    start: Start, model: LoopbackServer
) -> None:
    running = await start(model.base_url, rule=SURVIVOR, run=ENFORCE)
    async with Agents(running.url) as agents:
        tasks = [asyncio.create_task(ended(agents.run(i, most=5))) for i in range(G)]
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        (first,) = (tasks.index(task) for task in done)
        assert tasks[first].result() == "ran out"
        await agents.post(f"g1/rollouts/{first}/end", {"status": "failed", "failure": "crashed"})
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        (second,) = (tasks.index(task) for task in done)
        await agents.post(f"g1/rollouts/{second}/end", {"answer": "43"})
        assert [await task for task in waiting] == ["410 group_answered"] * (G - 2)
    recorded = only_group(running)
    assert recorded.end is not None
    assert (recorded.end.survivor, recorded.end.answer) == (second, "43")
    assert recorded.group.rollouts[first].failure is not None


async def test_a_request_in_flight_is_ended_at_the_model_server(start: Start) -> None:
    with LoopbackServer(
        ScriptedBrain(slow_for_one), api_key=None, step_delay_s=0.01, max_model_len=20_000
    ) as model:
        rule = GateConfig(start_step=1, min_members=2)
        run = RunConfig(mode="enforce", hold="none")
        running = await start(model.base_url, rule=rule, run=run, inject_usage=True)
        async with Agents(running.url) as agents:
            fast = [asyncio.create_task(ended(agents.run(i, stream=True, most=3))) for i in range(G - 1)]
            await model.until(lambda seen: seen.requests >= 2 * (G - 1))
            late = asyncio.create_task(ended(agents.run(G - 1, stream=True)))
            ends = await asyncio.gather(*fast, late)
        counters = await model.until(lambda seen: seen.in_flight == 0)
    assert set(ends) <= {"410 group_cut", "stream group_cut"}
    assert "stream group_cut" in ends
    assert counters.tokens_after_disconnect <= G - 1  # the engine step that was under way
    assert counters.completion_tokens < 5000, "a long text alone has as many"
    assert running.gateway.counts.aborted["gate"] >= 1
    (group,) = running.gateway.view().groups
    assert group.completion_tokens > counters.completion_tokens / 2  # what was read until then counts
    lines = [json.loads(line) for line in running.trace.read_text().splitlines()]
    lost = [
        line["usage"]["completion"] for line in lines if line["type"] == "rollout_end" and "usage" in line
    ]
    assert len(lost) == ends.count("stream group_cut")
    assert not any("overrun" in line for line in lines)


def slow_for_one(request: dict[str, Any], choice: int, seed: int | None) -> Reply | str:
    """A short first step, then a long text."""
    done = sum(message["role"] == "assistant" for message in request["messages"])
    return Reply(tool_calls=(ToolCall("look", "{}"),)) if done == 0 else "word " * 5000


async def test_the_same_body_twice_is_one_step(start: Start, model: LoopbackServer) -> None:
    running = await start(model.base_url)
    async with Agents(running.url) as agents:
        client = agents.client.with_options(default_headers=headers(0))
        messages: list[Any] = [{"role": "user", "content": "same"}]
        messages.append(await ask(client, messages, stream=False))
        call = messages[-1]["tool_calls"][0]["id"]
        messages.append({"role": "tool", "tool_call_id": call, "content": "ok"})
        for _ in range(3):
            await ask(client, messages, stream=False)
        await ask(client, messages[:1], stream=False)  # and an older one again
    (group,) = running.gateway.view().groups
    assert group.members[0].steps == 1


async def test_rollouts_that_say_no_more_do_not_keep_their_group(start: Start, model: LoopbackServer) -> None:
    running = await start(model.base_url, rule=EARLY)
    async with Agents(running.url) as agents:
        await agents.run(0)
        await agents.run(1, most=2)
    running.sweep_after(31)
    (group,) = running.gateway.view().groups
    assert [m.status for m in group.members] == ["finished", "running", "running", "running"]
    running.sweep_after(570)
    (group,) = running.gateway.view().groups
    assert [m.status for m in group.members] == ["finished", "failed", "failed", "failed"]
    recorded = only_group(running)
    assert recorded.end is not None
    assert recorded.group.rollouts[0].answer == "the answer is 42"


async def test_a_held_rollout_whose_client_leaves_is_let_go(start: Start, model: LoopbackServer) -> None:
    running = await start(model.base_url, rule=EARLY, run=ENFORCE)
    async with Agents(running.url) as agents:
        held = asyncio.create_task(agents.run(0))
        while not running.gateway.view().held:
            await asyncio.sleep(0.01)
        held.cancel()
        await asyncio.wait([held])
        while running.gateway.view().held or not running.gateway.counts.aborted["client"]:
            await asyncio.sleep(0.01)
        assert running.gateway.counts.aborted["client"] == 1
        ends = await asyncio.gather(*(ended(agents.run(i)) for i in range(1, G)))
    assert ends == ["410 group_cut"] * (G - 1)


async def test_a_hold_ends_by_itself_and_the_gate_is_off(start: Start, model: LoopbackServer) -> None:
    running = await start(model.base_url, rule=EARLY, run=RunConfig(mode="enforce", hold_timeout_s=0.05))
    async with Agents(running.url) as agents:
        assert await agents.run(0) == "The answer is 42."
    lines = map(json.loads, running.trace.read_text().splitlines())
    decisions = [line for line in lines if line["type"] == "decision"]
    assert [(d["reason"], d["step"], d["fires"]) for d in decisions] == [("disabled", 3, False)]


async def test_a_gate_that_is_off_for_a_group_is_off_after_a_restart(
    start: Start, model: LoopbackServer
) -> None:
    running = await start(model.base_url, rule=EARLY, run=RunConfig(mode="enforce", hold_timeout_s=0.05))
    async with Agents(running.url) as agents:
        assert await agents.run(0) == "The answer is 42."
    await running.stop()
    before = running.trace.read_text()
    again = await start(model.base_url, rule=EARLY, run=ENFORCE, resume=True)
    async with Agents(again.url) as agents:
        for rollout in range(1, G):  # one after the other: nobody is held either
            assert await agents.run(rollout) == "The answer is 42."
        assert await agents.all(group="g2") == ["410 group_cut"] * G
        for rollout in range(G):
            await agents.post(f"g1/rollouts/{rollout}/end", {"reward": 1})
    assert '"decision"' not in "".join(
        line for line in again.trace.read_text().removeprefix(before).splitlines() if '"g1"' in line
    )
    recorded = next(group for group in read_groups(again.trace) if group.group.id == "g1")
    assert recorded.end is not None
    assert (recorded.end.outcome, recorded.end.would_cut_at) == (None, None)


async def test_a_stop_sends_held_requests_away_and_a_restart_goes_on(
    start: Start, model: LoopbackServer
) -> None:
    running = await start(model.base_url, rule=EARLY, run=ENFORCE)
    async with Agents(running.url) as agents:
        held = asyncio.create_task(ended(agents.run(0)))
        while not running.gateway.view().held:
            await asyncio.sleep(0.01)
        await running.stop()
        assert await held == "503 shutting_down"
    before = running.trace.read_text()
    again = await start(model.base_url, rule=EARLY, run=ENFORCE, resume=True)
    assert again.gateway.view().groups[0].members[0].steps == 3
    async with Agents(again.url) as agents:
        rest = asyncio.gather(*(ended(agents.run(i)) for i in range(1, G)))
        back = await ended(agents.run(0))  # an agent that begins again says what it has said before
        assert [back, *await rest] == ["410 group_cut"] * G
    assert again.trace.read_text().startswith(before)
    recorded = only_group(again)
    assert recorded.group.attempt == 1
    assert [len(r.steps) for r in recorded.group.rollouts] == [3] * G
    assert (recorded.end and recorded.end.cut_at) == 3


async def test_a_restart_knows_the_groups_that_ended(start: Start, model: LoopbackServer) -> None:
    running = await start(model.base_url, rule=EARLY, run=ENFORCE)
    async with Agents(running.url) as agents:
        await agents.all()
        work = (agents.run(i, group="kept", word=f"apart {i}") for i in range(G))
        await asyncio.gather(*work)
        for i in range(G):
            await agents.post(f"kept/rollouts/{i}/end", {})
    await running.stop()
    before = running.trace.read_text()
    again = await start(model.base_url, rule=EARLY, run=ENFORCE, resume=True)
    async with Agents(again.url) as agents:
        assert await ended(agents.run(0)) == "410 group_cut"
        said = await agents.post("kept/rollouts/0/reward", {"reward": 1})
        assert said == {"status": "finished", "reward": 1.0, "recorded": True}
        with pytest.raises(openai.ConflictError, match="another reward"):
            await agents.post("kept/rollouts/0/reward", {"reward": 0})
    added = again.trace.read_text().removeprefix(before).splitlines()
    assert [json.loads(line)["type"] for line in added] == ["header", "reward"]
    rewards = {g.group.id: g.group.rollouts[0].reward for g in read_groups(again.trace)}
    assert rewards == {"g1": None, "kept": 1.0}


async def test_an_audited_group_runs_on(start: Start, model: LoopbackServer) -> None:
    run = RunConfig(mode="enforce", audit_rate=1.0)
    running = await start(model.base_url, rule=EARLY, run=run)
    async with Agents(running.url) as agents:
        assert await agents.all() == ["The answer is 42."] * G
        for i in range(G):
            await agents.post(f"g1/rollouts/{i}/end", {"reward": 1})
    recorded = only_group(running)
    assert recorded.begin.audit is True
    assert (recorded.end and recorded.end.would_cut_at) == 3


async def test_declared_facts_reach_the_trace(start: Start, model: LoopbackServer) -> None:
    running = await start(model.base_url)
    async with Agents(running.url) as agents:
        url = f"{running.root}/selective-rollout/v1/groups/g1"
        facts = {"size": G, "task": "task-7", "metadata": {"level": "hard"}}
        await agents.client.put(url, cast_to=object, body=facts)
        await agents.all(most=2)
        await agents.post("g1/end", {})
    recorded = only_group(running)
    assert (recorded.group.task_id, recorded.group.metadata) == ("task-7", {"level": "hard"})
    assert {r.failure.kind for r in recorded.group.rollouts if r.failure} == {"ended"}


async def test_full_books_and_unreadable_bodies_never_stop_an_agent(
    start: Start, model: LoopbackServer
) -> None:
    running = await start(model.base_url, limits=Limits(open_groups=1, messages=3))
    async with Agents(running.url) as agents:
        assert await agents.run(0, group="g1") == "The answer is 42."
        assert await agents.run(0, group="g2") == "The answer is 42."
    assert running.gateway.counts.requests["unrecorded"] == STEPS + 1
    assert [g.group for g in running.gateway.view().groups] == ["g1"]
