"""Many groups on one loop."""

from __future__ import annotations

import asyncio

import pytest

from selective_rollout.errors import GroupError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import Reason
from selective_rollout.gate.registry import GateRegistry

RULE = GateConfig(start_step=2)


def report_all(registry: GateRegistry, group: str, actions: str, size: int = 2) -> None:
    for action in actions:
        for rollout in range(size):
            registry.report(group, rollout, action)


async def test_whoever_can_stop_the_group_is_woken_by_the_fire() -> None:
    registry = GateRegistry(RULE)
    registry.open("g", 2)
    waiter = asyncio.create_task(registry.wait_stopped("g"))
    await asyncio.sleep(0)
    assert not waiter.done()
    report_all(registry, "g", "ab")
    assert (await waiter).fires
    assert registry.close("g").fired is not None
    assert len(registry) == 0


async def test_a_kept_group_ends_the_wait_without_a_fire() -> None:
    registry = GateRegistry(RULE)
    registry.open("g", 2)
    registry.report("g", 0, "a")
    registry.report("g", 1, "b")
    registry.report("g", 0, "c")
    registry.report("g", 1, "d")
    assert (await registry.wait_stopped("g")).reason is Reason.CHECKED


async def test_closing_wakes_the_waiters() -> None:
    registry = GateRegistry(RULE)
    registry.open("g", 2)
    waiter = asyncio.create_task(registry.wait_stopped("g"))
    await asyncio.sleep(0)
    registry.close("g")
    assert (await waiter).reason is Reason.DISABLED


async def test_groups_do_not_see_each_other() -> None:
    registry = GateRegistry(RULE)
    registry.open("same", 2)
    registry.open("split", 2)
    report_all(registry, "same", "ab")
    registry.report("split", 0, "a")
    registry.report("split", 1, "b")
    assert registry.close("same").fired is not None
    assert registry.close("split").fired is None


def test_opening_twice_gives_the_same_gate_but_not_another_size() -> None:
    registry = GateRegistry(RULE)
    assert registry.open("g", 2) is registry.open("g", 2)
    with pytest.raises(GroupError, match="group 'g' is open with 2 rollouts, not with 3"):
        registry.open("g", 3)


def test_groups_that_are_never_closed_are_reported() -> None:
    registry = GateRegistry(RULE, max_open=2)
    registry.open("a", 2)
    registry.open("b", 2)
    with pytest.raises(GroupError, match="group 'c': 2 groups are open; close those that have ended"):
        registry.open("c", 2)


def test_a_group_that_is_not_open_is_named() -> None:
    with pytest.raises(GroupError, match="group 'ghost' is not open"):
        GateRegistry(RULE).report("ghost", 0, "a")


async def test_ends_count_as_arrivals() -> None:
    registry = GateRegistry(RULE)
    registry.open("g", 3)
    report_all(registry, "g", "a", size=3)
    registry.fail("g", 2)
    registry.report("g", 0, "b")
    registry.finish("g", 1, 1.0, action="b")
    assert (await registry.wait_stopped("g")).fires
