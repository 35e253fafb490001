"""Work that does not heed its cancellation: a cut returns within its deadline, late results are ignored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.runner import run_group
from selective_rollout.env.base import Observation, StepResult
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.testing import ScriptedBrain, ScriptedPolicy
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Rollout, Task

G, START = 4, 3
DEADLINE_S = 0.2


class Stubborn:
    """Work that takes a minute and answers its cancellation with more work."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancellations = 0
        self.let_go = asyncio.Event()
        self.ended = asyncio.Event()

    async def work(self) -> None:
        self.begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancellations += 1
            await self.let_go.wait()
        self.ended.set()


class Place:
    """Rollout 0 ends at step 2; what the others do at step 4 is up to `tool`."""

    replayable = True

    def __init__(self, rollout: int, tool: Callable[[], Any]) -> None:
        self.rollout, self.tool, self.steps = rollout, tool, 0

    def start(self) -> Observation:
        return Observation("here")

    async def step(self, action: str) -> StepResult:
        self.steps += 1
        if self.steps > START:
            await self.tool()
        over = self.rollout == 0 and self.steps == 2
        return StepResult("ok", reward=1.0 if over else None, terminated=over)

    def close(self) -> None:
        pass


async def run(
    tool: Callable[[], Any], *, score: Any = None, recorder: Recorder | None = None, **config: Any
) -> tuple[GroupOutcome, float]:
    def environment(task: Task, rollout: int) -> Place:
        return Place(rollout, tool)

    began = time.monotonic()
    outcome = await run_group(
        Task("g", "go"),
        policy=ScriptedPolicy(ScriptedBrain(lambda request, choice, seed: "same")),
        environment=environment,
        gate=GateConfig(start_step=START, tau=0.9),
        config=RunConfig(
            group_size=G,
            max_steps=5,
            stop_timeout_s=DEADLINE_S,
            **{"mode": "enforce", **config},
        ),
        score=score,
        recorder=recorder,
    )
    return outcome, time.monotonic() - began


async def nothing() -> None:
    pass


async def test_a_judge_that_ignores_its_cancellation_is_left_behind(tmp_path: Path) -> None:
    """Case abort-with-slow-judge: the cut returns within its deadline, and the late result is ignored."""
    stubborn = Stubborn()

    async def judge(task: Task, rollout: Rollout) -> float:
        await stubborn.work()
        return 1.0

    with Recorder(tmp_path / "t.jsonl") as recorder:
        outcome, seconds = await run(nothing, score=judge, recorder=recorder)
        assert seconds < 10, "it would work for ever"
        assert outcome.cut_at == START
        stubborn.let_go.set()
        await stubborn.ended.wait()
    assert stubborn.cancellations == 1, "an abort is sent once"
    assert outcome.group.rollouts[0].reward is None
    [recorded] = read_groups(tmp_path)
    assert recorded.group.rollouts[0].reward is None
    assert recorded.end is not None


async def test_a_foreign_cancellation_does_not_wait_for_it_either() -> None:
    stubborn = Stubborn()
    group = asyncio.create_task(run(stubborn.work, mode="observe"))
    await asyncio.wait_for(stubborn.begun.wait(), 60)
    began = time.monotonic()
    group.cancel()
    with pytest.raises(asyncio.CancelledError):
        await group
    assert time.monotonic() - began < 10, "it would work for ever"
    stubborn.let_go.set()
    await stubborn.ended.wait()


def test_the_deadline_is_positive() -> None:
    with pytest.raises(ConfigError, match="stop_timeout_s"):
        RunConfig(stop_timeout_s=0.0)
