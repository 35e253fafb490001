"""Checkpoints: what they hold, and going on from one after a crash."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from selective_rollout.engine.config import RunConfig
from selective_rollout.env.base import Observation, StepResult
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.langgraph import GroupGraph, GroupResult, build_graph
from selective_rollout.policy.base import Completion, Message, RequestInfo
from selective_rollout.testing import ScriptedPolicy, TutorialBrain
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.trace.schema import Event, StepEvent
from selective_rollout.types import Task

G = 4
STEPS = 6
PROMPT = {"prompt": "Where is the mug?"}
THREAD: Any = {"configurable": {"thread_id": "t1"}}
SURVIVE = GateConfig(start_step=3, outcome="survivor")
ENFORCE = RunConfig(mode="enforce", group_size=G)
ALIKE = TutorialBrain(1.0, steps=STEPS)


STRICT = """
from langgraph.checkpoint.memory import InMemorySaver
from selective_rollout.integrations.langgraph import GroupResult, build_graph
from selective_rollout.testing import ScriptedPolicy, TutorialBrain

graph = build_graph(ScriptedPolicy(TutorialBrain(1.0)), checkpointer=InMemorySaver(), certified=True)
thread = {"configurable": {"thread_id": "t"}}
state = graph.invoke({"prompt": "q"}, thread, context={"group_size": 2, "start_step": 3, "mode": "enforce"})
assert graph.get_state(thread).values == state
print(GroupResult.from_state(state).cut_at)
"""


class Crash(BaseException):
    """Something that no node turns into data."""


class Crashing(ScriptedPolicy):
    """Crashes at one step of one rollout, once the siblings are done with it."""

    def __init__(self, rollout: int, step: int) -> None:
        super().__init__(ALIKE)
        self.at: tuple[int, int] | None = (rollout, step)
        self.answered: Counter[tuple[int, int]] = Counter()

    async def complete(self, messages: Sequence[Message], info: RequestInfo) -> Completion:
        if (info.rollout, info.step) == self.at:
            for _ in range(100):  # many short pauses, in each of which everybody else can move
                await asyncio.sleep(0.001)
            self.at = None
            raise Crash
        said = await super().complete(messages, info)
        self.answered[info.rollout, info.step] += 1
        return said


class Room:
    """Counts the steps taken in it; a number in each reply tells whether one was left out."""

    replayable = True

    def __init__(self, task: Task, rollout: int) -> None:
        self.steps = 0

    def start(self) -> Observation:
        return Observation("You stand in a room.")

    def step(self, action: str) -> StepResult:
        self.steps += 1
        ends = action.startswith("answer(")
        return StepResult(f"{action} was step {self.steps}", terminated=ends, answer=action if ends else None)

    def close(self) -> None:
        pass


class OneWayRoom(Room):
    replayable = False


class ChangingRoom(Room):
    made = 0

    def start(self) -> Observation:
        ChangingRoom.made += 1
        return super().start()

    def step(self, action: str) -> StepResult:
        return replace(super().step(action), observation=f"visitor {ChangingRoom.made}")


class FullDisk(Recorder):
    """A recorder whose disk is full when it comes to one step."""

    full_at: tuple[int, int] | None = None

    def write(self, event: Event) -> None:
        if isinstance(event, StepEvent) and (event.rollout, event.step) == self.full_at:
            self.full_at = None
            raise OSError(28, "No space left on device")
        super().write(event)


def graph_of(policy: Any, **options: Any) -> GroupGraph:
    settings = {"gate": SURVIVE, "config": ENFORCE, "certified": True, "checkpointer": InMemorySaver()}
    return build_graph(policy, **(settings | options))


async def crashed(graph: GroupGraph) -> None:
    with pytest.raises(Crash):
        await graph.ainvoke(PROMPT, THREAD)


@pytest.fixture
def undisturbed() -> dict[str, Any]:
    return rid(graph_of(ScriptedPolicy(ALIKE), environment=Room).invoke(PROMPT, THREAD))


def rid(state: dict[str, Any]) -> dict[str, Any]:
    """Without what legitimately differs between two runs."""
    rollouts = {key: {**r, "elapsed_s": 0.0} for key, r in state["rollouts"].items()}
    return {**state, "rollouts": rollouts, "attempt": 0}


class TestResume:
    @pytest.mark.parametrize("step", [1, 2, 3])
    async def test_each_step_is_taken_once(self, step: int, undisturbed: dict[str, Any]) -> None:
        policy = Crashing(rollout=2, step=step)
        graph = graph_of(policy, environment=Room)
        await crashed(graph)
        state = await graph.ainvoke(None, THREAD)
        assert rid(state) == undisturbed
        assert set(policy.answered.values()) == {1}

    async def test_another_process_can_go_on(self, undisturbed: dict[str, Any]) -> None:
        saver = InMemorySaver()
        await crashed(graph_of(Crashing(rollout=2, step=3), environment=Room, checkpointer=saver))
        policy = ScriptedPolicy(ALIKE)
        state = await graph_of(policy, environment=Room, checkpointer=saver).ainvoke(None, THREAD)
        assert rid(state) == undisturbed
        assert len(policy.requests) == 1 + (STEPS - 3)

    async def test_the_survivor_stays_the_same(self, undisturbed: dict[str, Any]) -> None:
        survivor = undisturbed["verdict"]["survivor"]
        graph = graph_of(Crashing(rollout=survivor, step=5), environment=Room)
        await crashed(graph)
        assert rid(await graph.ainvoke(None, THREAD)) == undisturbed

    def test_the_synchronous_way(self, undisturbed: dict[str, Any]) -> None:
        graph = graph_of(Crashing(rollout=2, step=2), environment=Room)
        with pytest.raises(Crash):
            graph.invoke(PROMPT, THREAD)
        assert rid(graph.invoke(None, THREAD)) == undisturbed

    async def test_a_cancelled_run_goes_on(self, undisturbed: dict[str, Any]) -> None:
        policy = ScriptedPolicy(ALIKE, token_delay_s=0.001)
        graph = graph_of(policy, environment=Room)
        for requests in (1, 2 * G):
            run = asyncio.create_task(graph.ainvoke(None if policy.requests else PROMPT, THREAD))
            while len(policy.requests) < requests:
                await asyncio.sleep(0.001)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
        assert rid(await graph.ainvoke(None, THREAD))["verdict"] == undisturbed["verdict"]

    @pytest.mark.parametrize(
        ("room", "message"),
        [
            (OneWayRoom, "cannot be taken up after step 1 by another run of the graph"),
            (ChangingRoom, "answered step 1 differently when it was taken again"),
        ],
    )
    async def test_a_world_that_cannot_be_rebuilt_fails_its_rollout(self, room: Any, message: str) -> None:
        graph = graph_of(Crashing(rollout=2, step=2), environment=room)
        await crashed(graph)
        result = GroupResult.from_state(await graph.ainvoke(None, THREAD))
        assert result.status == "failed"
        for rollout in result.rollouts:
            assert rollout.failure is not None
            assert rollout.failure.kind == "environment"
        assert result.failure is not None
        assert message in str([rollout.failure for rollout in result.rollouts])

    async def test_the_trace_holds_one_attempt_a_run(self, tmp_path: Path) -> None:
        with FullDisk(tmp_path / "t.jsonl") as recorder:
            graph = graph_of(ScriptedPolicy(ALIKE), environment=Room, recorder=recorder)
            for place in ((1, 1), (3, 3)):
                recorder.full_at = place
                with pytest.raises(OSError, match="No space left"):
                    await graph.ainvoke(PROMPT if place == (1, 1) else None, THREAD)
            state = await graph.ainvoke(None, THREAD)
        (recorded,) = read_groups(tmp_path / "t.jsonl")
        result = GroupResult.from_state(state)
        assert recorded.group.attempt == result.group.attempt == 3
        assert [r.actions for r in recorded.group.rollouts] == [r.actions for r in result.rollouts]
        assert recorded.end is not None
        assert (recorded.end.cut_at, recorded.end.survivor) == (3, result.survivor)

    async def test_a_context_that_contradicts_the_group_is_refused(self) -> None:
        graph = graph_of(Crashing(rollout=2, step=2), environment=Room)
        await crashed(graph)
        with pytest.raises(ConfigError, match="tau 0.3 differs from the 0.12 that group 't1' was"):
            await graph.ainvoke(None, THREAD, context={"tau": 0.3})
        state = await graph.ainvoke(None, THREAD, context={"tau": 0.12})
        assert state["verdict"]["cut_at"] == 3


class TestThreads:
    def test_the_thread_names_its_groups(self) -> None:
        graph = graph_of(ScriptedPolicy(ALIKE))
        first = graph.invoke(PROMPT, THREAD, context={"group_size": 6})
        second = graph.invoke({"prompt": "And the cup?"}, THREAD)
        assert [state["group_id"] for state in (first, second)] == ["t1", "t1@2"]
        assert len(first["rollouts"]) == 6
        assert len(second["rollouts"]) == G
        assert second["prompt"] == "And the cup?"
        assert len(second["decisions"]) == 1

    def test_a_thread_is_asked_for(self) -> None:
        with pytest.raises(ValueError, match="thread_id"):
            graph_of(ScriptedPolicy(ALIKE)).invoke(PROMPT)

    def test_a_result_is_read_from_a_snapshot(self) -> None:
        graph = graph_of(ScriptedPolicy(ALIKE))
        graph.invoke(PROMPT, THREAD)
        assert GroupResult.from_state(graph.get_state(THREAD)).cut_at == 3

    def test_strict_msgpack_set_in_the_environment(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", STRICT],
            env={**os.environ, "LANGGRAPH_STRICT_MSGPACK": "true"},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert (done.stdout, done.stderr, done.returncode) == ("3\n", "", 0)

    async def test_a_strict_serializer_loads_what_was_stored(self, caplog: Any) -> None:
        strict = InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=None))
        graph = graph_of(ScriptedPolicy(ALIKE), environment=Room, checkpointer=strict)
        with caplog.at_level(logging.WARNING):
            state = await graph.ainvoke({**PROMPT, "metadata": {"hard": True, "deep": [{"a": None}]}}, THREAD)
            history = [snapshot async for snapshot in graph.aget_state_history(THREAD)]
        assert history[0].values == state
        assert caplog.records == []
        assert len(history) > 2 * 3

    def test_nothing_that_lives_is_stored(self) -> None:
        saver = InMemorySaver()
        graph_of(ScriptedPolicy(ALIKE), environment=Room, checkpointer=saver).invoke(PROMPT, THREAD)
        for stored in saver.list(THREAD):
            assert {type(value) for value in (stored.metadata or {}).values()} <= {str, int, dict}
            assert "Session" not in repr(stored)
            assert "Policy" not in repr(stored)
