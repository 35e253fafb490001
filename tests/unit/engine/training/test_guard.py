"""A cut ends a coroutine; no other cancellation is touched."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from selective_rollout.engine.training import GroupCut, TrainingGate, TrainingGroup, guarded
from selective_rollout.gate.config import GateConfig


def opened(size: int = 2) -> TrainingGroup:
    rule = GateConfig(start_step=1, tau=0.5)
    return TrainingGate(rule, mode="enforce", certified=True).open("g", size)


def cut(group: TrainingGroup) -> None:
    for rollout in range(group.size):
        group.step(rollout, "a")


async def sleeper(group: TrainingGroup, log: list[str], rollout: int = 0) -> None:
    try:
        async with guarded(group, rollout):
            await asyncio.sleep(60)
    except GroupCut as error:
        log.append(str(error))


async def started(group: TrainingGroup, log: list[str]) -> asyncio.Task[None]:
    task = asyncio.create_task(sleeper(group, log))
    await asyncio.sleep(0)
    return task


async def test_a_cut_wakes_the_waiting_member() -> None:
    group, log = opened(), list[str]()
    task = await started(group, log)
    cut(group)
    await task
    assert log == ["group 'g' was cut"]
    assert task.cancelling() == 0


async def test_a_group_already_cut_lets_nobody_in() -> None:
    group, log = opened(), list[str]()
    cut(group)
    await sleeper(group, log)
    assert log == ["group 'g' was cut"]


async def test_a_foreign_cancellation_passes() -> None:
    group, log = opened(), list[str]()
    task = await started(group, log)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == []


@pytest.mark.parametrize("foreign_first", [True, False])
async def test_of_both_at_once_the_foreign_one_wins(foreign_first: bool) -> None:
    group, log = opened(), list[str]()
    task = await started(group, log)
    if foreign_first:
        task.cancel()
    cut(group)
    if not foreign_first:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == []


async def test_the_member_that_brought_the_cut_about_ends_at_the_end_of_its_block() -> None:
    group, reached = opened(), False
    group.step(1, "a")
    with pytest.raises(GroupCut):
        async with guarded(group, 0):
            assert group.step(0, "a") is False
            await asyncio.sleep(0)
            reached = True
    assert reached
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_work_that_swallows_the_cancellation_still_ends_as_cut_and_leaves_no_trace() -> None:
    group = opened()

    async def stubborn() -> str:
        try:
            async with guarded(group, 0):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(60)
        except GroupCut:
            await asyncio.sleep(0)
            return "cut"
        return "done"

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    cut(group)
    assert await task == "cut"
    assert task.cancelling() == 0


async def test_an_error_while_being_cut_is_the_error_and_the_task_is_clean() -> None:
    group = opened()

    async def breaks() -> None:
        async with guarded(group, 0):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise OSError("socket") from None

    task = asyncio.create_task(breaks())
    await asyncio.sleep(0)
    cut(group)
    with pytest.raises(OSError, match="socket"):
        await task
    assert task.cancelling() == 0


async def test_work_that_ends_in_time_is_left_alone() -> None:
    group = opened()
    async with guarded(group, 0):
        group.step(0, "a")
    group.step(1, "b")
    assert not group.stopped


async def test_inside_a_timeout_the_cut_is_no_timeout() -> None:
    group, log = opened(), list[str]()

    async def timed() -> None:
        async with asyncio.timeout(30):
            await sleeper(group, log)

    task = asyncio.create_task(timed())
    await asyncio.sleep(0)
    cut(group)
    await task
    assert log
