"""ART's real gathering of trajectory groups and its client, against the loopback server."""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from needs import need

need("openpipe-art")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the frameworks, of each other
    import art

from selective_rollout.testing import CounterSnapshot, LoopbackServer, ScriptedBrain


def brain(request: dict[str, Any], choice: int, seed: int | None) -> str:
    """Rollouts are told apart by their seed."""
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    return f"go {turn}" if "=" in request["messages"][0]["content"] else f"go {turn} {seed}"


def stall(context: Any) -> str | None:
    """In a task with "~" nothing comes of a third request."""
    first, *others = context.body["messages"]
    return "stall" if "~" in first["content"] and len(others) == 4 else None


def stalled(seen: CounterSnapshot) -> int:
    return sum(bool(record.fault and record.running) for record in seen.records)


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer(ScriptedBrain(brain), faults=stall) as running:
        yield running


@pytest.fixture
async def model(server: LoopbackServer) -> AsyncIterator[Any]:
    made = art.Model(
        name="scripted",
        project="seams",
        inference_api_key=server.api_key,
        inference_base_url=server.base_url,
        inference_model_name=server.model,
    )
    yield made
    await made.openai_client().close()


@pytest.fixture
def my_rollout(world: Any, server: LoopbackServer) -> Callable[..., Any]:
    """The reader's own rollout; in a task with "?" rollout 1 breaks in its second turn.

    At "~" the last rollout asks a third time once the server is at work on what the others asked then.
    """
    begun: Counter[str] = Counter()

    async def play(ask: Callable[..., Any], model: Any, task: str) -> Any:
        rollout, begun[task] = begun[task], begun[task] + 1
        trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": task}])
        for turn in range(world.turns_of(task, rollout)):
            if "?" in task and rollout == 1 and turn == 1:
                raise OSError("the tool is gone")
            if "~" in task and rollout == world.size - 1 and turn == 2:
                await server.until(lambda seen: stalled(seen) == world.size - 1)
            answer = await ask(model=model.get_inference_name(), messages=trajectory.messages(), seed=rollout)
            trajectory.messages_and_choices += [answer.choices[0], {"role": "user", "content": "ok"}]
        trajectory.reward = world.reward(task, rollout)
        return trajectory

    return play


@pytest.fixture
def gather(sketch: Any, my_rollout: Any, model: Any, world: Any) -> Callable[..., Any]:
    """Gathers tasks by the page's code."""

    async def run(gate: Any, tasks: list[str]) -> list[Any]:
        module = sketch("openpipe-art", gate, my_rollout=my_rollout)
        async with asyncio.timeout(60):
            return list(await module.gather(model, tasks, world.size, step=7))

    return run


def rewards_of(groups: list[Any]) -> dict[str, list[float]]:
    return {group.metadata["task"]: [each.reward for each in group] for group in groups}


@pytest.mark.parametrize("mode", ["observe", "audit"])
async def test_what_is_not_cut_comes_out_whole(
    gather: Any, gate_of: Any, server: LoopbackServer, world: Any, mode: str
) -> None:
    gate = gate_of("observe") if mode == "observe" else gate_of(audit_rate=1.0)
    groups = await gather(gate, ["same=", "apart"])
    assert rewards_of(groups) == {"same=": [0.0] * 4, "apart": [1.0, 0.0, 0.0, 0.0]}
    assert all(len(each.messages_and_choices) == 1 + 2 * world.turns for group in groups for each in group)
    assert server.counters.requests == 2 * world.all
    assert gate.meter.would_cut == 1


async def test_a_cut_group_is_dropped_and_its_requests_are_closed(
    gather: Any, gate_of: Any, server: LoopbackServer, world: Any
) -> None:
    gate = gate_of()
    groups = await gather(gate, ["same=~", "apart"])
    assert rewards_of(groups) == {"apart": [1.0, 0.0, 0.0, 0.0]}
    seen = await server.until(lambda counters: counters.in_flight == 0)
    assert (seen.requests, seen.disconnects) == (world.all + world.cut, world.size - 1)
    assert gate.meter.cut == 1


async def test_a_member_that_ended_before_the_cut_goes_with_it(gather: Any, gate_of: Any) -> None:
    gate = gate_of()
    assert await gather(gate, ["same=!"]) == []
    assert gate.meter.cut == 1


async def test_a_broken_rollout_ends_the_gathering_and_closes_the_groups(gather: Any, gate_of: Any) -> None:
    gate = gate_of()
    with pytest.raises(OSError, match="the tool is gone"):
        await gather(gate, ["bad?", "apart"])
    assert (gate.meter.groups, gate.meter.cut) == (2, 0)


async def test_a_group_made_of_awaitables_is_deprecated(my_rollout: Any, model: Any) -> None:
    with pytest.deprecated_call():
        made = art.TrajectoryGroup(
            my_rollout(model.openai_client().chat.completions.create, model, task) for task in ["apart"]
        )
    assert len(await made) == 1
