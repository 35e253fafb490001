"""Members elsewhere: one verdict for all of them, and nobody waits for a process that is gone."""

from __future__ import annotations

import asyncio
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from tests.idle_time import skip_idle_time

from selective_rollout.engine.training import GroupCut, TrainingGate, remote
from selective_rollout.engine.training.remote import Coordinator, CoordinatorLostWarning, RemoteMember
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig

RULE = GateConfig(start_step=2, tau=0.5)


@pytest.fixture(autouse=True)
async def _exact_times(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_idle_time()
    monkeypatch.setattr(remote, "time", SimpleNamespace(monotonic=asyncio.get_running_loop().time))


class Wire:
    """A link to a coordinator in this process, which can be cut."""

    def __init__(self, **settings: Any) -> None:
        gate = TrainingGate(RULE, mode="enforce", certified=True)
        self.coordinator = Coordinator(gate, **settings)
        self.down = False
        self.mute = False

    async def __call__(self, method: str, *arguments: Any) -> Any:
        await asyncio.sleep(0)
        if self.down:
            raise ConnectionError("it died")
        if self.mute:
            await asyncio.sleep(60)
        return await getattr(self.coordinator, method)(*arguments)


async def rollout(
    wire: Wire, number: int, *, alike: bool = True, steps: int = 6, group: str = "g", **options: Any
) -> tuple[bool, int]:
    """Whether it was kept, and its steps."""
    done = 0
    settings = {"wait_s": 0.05, "patience_s": 0.2, **options}
    async with RemoteMember(wire, group, number, 3, **settings) as member:
        try:
            async with member.guarded():
                for step in range(steps):
                    await asyncio.sleep(0.002)
                    done += 1
                    if not await member.step(f"go {step}" if alike else f"go {step} {number}"):
                        break
            await member.finish(float(number))
        except GroupCut:
            pass
        return await member.kept(), done


async def test_all_members_hear_of_a_cut() -> None:
    wire = Wire()
    results = await asyncio.gather(*(rollout(wire, number) for number in range(3)))
    assert [kept for kept, _ in results] == [False] * 3
    assert all(2 <= done < 6 for _, done in results)
    assert wire.coordinator.gate.meter.cut == 1


async def test_a_cut_interrupts_what_a_member_waits_for() -> None:
    wire = Wire()

    async def slow(number: int) -> str:
        async with RemoteMember(wire, "g", number, 3) as member:
            try:
                async with member.guarded():
                    if await member.step("go 0") and await member.step("go 1"):
                        await asyncio.sleep(60)
            except GroupCut:
                return "cut"
        return "done"

    results = await asyncio.wait_for(asyncio.gather(*map(slow, range(3))), 5)
    assert results == ["cut"] * 3


async def test_a_group_that_differs_is_kept_and_its_rewards_are_known() -> None:
    wire = Wire()
    results = await asyncio.gather(*(rollout(wire, number, alike=False) for number in range(3)))
    assert results == [(True, 6)] * 3
    assert (wire.coordinator.gate.meter.signal, wire.coordinator.gate.meter.cut) == (1, 0)


async def test_groups_at_the_same_time_are_apart() -> None:
    wire = Wire()
    results = await asyncio.gather(
        *(rollout(wire, number, group="same") for number in range(3)),
        *(rollout(wire, number, group="else", alike=False) for number in range(3)),
    )
    assert [kept for kept, _ in results] == [False] * 3 + [True] * 3


@pytest.mark.parametrize("way", ["down", "mute"])
async def test_without_the_coordinator_members_run_to_their_end(way: str) -> None:
    wire = Wire()

    async def dies() -> None:
        await asyncio.sleep(0.002)
        setattr(wire, way, True)

    with pytest.warns(CoordinatorLostWarning, match="the gate is off for group 'g'"):
        results, _ = await asyncio.wait_for(
            asyncio.gather(asyncio.gather(*(rollout(wire, n, steps=9) for n in (1, 2))), dies()), 5
        )
    assert results == [(True, 9)] * 2


async def test_a_coordinator_that_was_never_there_costs_a_warning() -> None:
    wire = Wire()
    wire.down = True
    with pytest.warns(CoordinatorLostWarning, match="it died"):
        assert await rollout(wire, 0) == (True, 6)


async def test_a_member_that_is_gone_ends_the_gate_for_its_group() -> None:
    wire = Wire(lease_s=0.2)
    # Member 0 never comes; without it the check is never decided, and the others do not wait for it.
    results = await asyncio.wait_for(asyncio.gather(rollout(wire, 1), rollout(wire, 2)), 5)
    assert results == [(True, 6)] * 2
    late = await rollout(wire, 0)
    assert late == (True, 6)
    meter = wire.coordinator.gate.meter
    assert (meter.groups, meter.cut, meter.signal) == (1, 0, 1)


async def test_groups_without_anybody_are_cleared_away() -> None:
    wire = Wire(lease_s=0.05)
    await wire("join", "left behind", 0, 3)
    await asyncio.sleep(0.1)
    await wire("join", "next", 0, 3)
    assert list(wire.coordinator._places) == ["next"]
    assert await wire("watch", "left behind", 0, 1.0) == "off"
    assert await wire("watch", "unheard of", 0, 1.0) == "off"
    wire.coordinator._places["next"].group.close()


async def test_a_failing_member_leaves_the_others_their_gate() -> None:
    wire = Wire()

    async def breaks() -> None:
        async with RemoteMember(wire, "g", 0, 3) as member:
            await member.fail("environment", "broke")

    results = await asyncio.gather(breaks(), rollout(wire, 1), rollout(wire, 2))
    assert [kept for kept, _ in results[1:]] == [False, False]


async def test_cancellation_from_outside_passes_through() -> None:
    wire = Wire(lease_s=0.2)
    task = asyncio.create_task(rollout(wire, 0, steps=10_000))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert await rollout(wire, 1) == (True, 6)


async def scored(wire: Wire, number: int, reward: float | None) -> bool:
    """Roll out as `rollout` does, but for the reward, which comes after all have ended; None: never."""
    async with RemoteMember(wire, "g", number, 3, wait_s=0.05, patience_s=5.0) as member:
        for step in range(4):
            await member.step(f"go {step} {number}")
        await member.finish()
        kept = await member.kept(scored_later=True)
    if reward is not None:
        await member.score(reward)
    return kept


async def test_rewards_may_come_once_everybody_has_ended() -> None:
    wire = Wire()
    results = await asyncio.gather(*(scored(wire, number, float(number)) for number in range(3)))
    assert results == [True] * 3
    assert wire.coordinator.gate.meter.signal == 1
    assert not wire.coordinator._places


async def test_a_group_whose_rewards_do_not_come_is_closed_without_them() -> None:
    wire = Wire(lease_s=0.05)
    assert await asyncio.gather(*(scored(wire, number, None) for number in range(3))) == [True] * 3
    assert list(wire.coordinator._places) == ["g"]
    await asyncio.sleep(0.1)
    await wire("join", "next", 0, 3)
    meter = wire.coordinator.gate.meter
    assert (meter.groups, meter.unlabelled, meter.signal) == (1, 1, 0)
    wire.coordinator._places["next"].group.close()


async def test_a_cut_member_leaves_at_once_and_is_never_scored() -> None:
    wire = Wire()

    async def alike(number: int) -> bool:
        async with RemoteMember(wire, "g", number, 3, wait_s=0.05, patience_s=5.0) as member:
            await member.step("go 0")
            await member.step("go 1")
            return await member.kept(scored_later=True)

    assert await asyncio.gather(*map(alike, range(3))) == [False] * 3
    assert not wire.coordinator._places
    assert wire.coordinator.gate.meter.cut == 1


def test_patience_has_to_outlast_a_question() -> None:
    with pytest.raises(ConfigError, match="patience_s must be above wait_s=30"):
        RemoteMember(Wire(), "g", 0, 3, wait_s=30.0)
