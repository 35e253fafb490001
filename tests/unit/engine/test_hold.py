"""Who may take the next step."""

from __future__ import annotations

import asyncio

import pytest

from selective_rollout.engine.hold import GateControl
from selective_rollout.engine.survivor import survivor_order
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.group import GroupGate
from selective_rollout.types import Hold, Outcome

G = 3
ORDER = survivor_order("g", G)


def controlled(
    outcome: Outcome = "survivor", hold: Hold = "all", *, enforce: bool = True, timeout_s: float = 60
) -> tuple[GroupGate, GateControl, list[int]]:
    gate = GroupGate(GateConfig(start_step=1, outcome=outcome), G, group_id="g")
    stopped: list[int] = []
    control = GateControl(gate, hold=hold, enforce=enforce, on_stop=stopped.append, timeout_s=timeout_s)
    return gate, control, stopped


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_held_members_go_on_once_the_group_is_kept() -> None:
    gate, control, _ = controlled()
    control.note(gate.report(0, "a"))
    waiting = asyncio.create_task(control.permit(0))
    await settled()
    assert not waiting.done()
    control.note(gate.report(1, "b"))
    control.note(gate.report(2, "c"))
    assert await waiting is True


async def test_a_cut_parks_all_but_the_survivor_until_it_has_answered() -> None:
    gate, control, stopped = controlled()
    for rollout in range(G):
        control.note(gate.report(rollout, "a"))
    survivor, other, last = ORDER
    assert sorted(stopped) == sorted([other, last])
    assert await control.permit(survivor) is True
    parked = asyncio.create_task(control.permit(other))
    await settled()
    assert not parked.done()
    control.ended(survivor, failed=False, answer="desk")
    assert await parked is False
    assert control.verdict().answer == "desk"


async def test_a_failed_survivor_hands_over() -> None:
    gate, control, _ = controlled()
    for rollout in range(G):
        control.note(gate.report(rollout, "a"))
    parked = asyncio.create_task(control.permit(ORDER[1]))
    await settled()
    control.ended(ORDER[0], failed=True, answer=None)
    assert await parked is True
    assert control.verdict().survivor == ORDER[1]


async def test_followers_wait_and_the_leader_does_not() -> None:
    gate, control, _ = controlled(hold="followers")
    leader, follower, _ = ORDER
    control.note(gate.report(leader, "a"))
    control.note(gate.report(follower, "a"))
    assert await control.permit(leader) is True
    waiting = asyncio.create_task(control.permit(follower))
    await settled()
    assert not waiting.done()
    waiting.cancel()


async def test_observing_holds_and_stops_nobody() -> None:
    gate, control, stopped = controlled(enforce=False)
    for rollout in range(G):
        control.note(gate.report(rollout, "a"))
        assert await control.permit(rollout) is True
    assert stopped == []
    assert not control.verdict().stopped


async def test_a_hold_that_takes_too_long_ends_with_the_gate_off() -> None:
    gate, control, _ = controlled(timeout_s=0.01)
    control.note(gate.report(0, "a"))
    assert await control.permit(0) is True
    assert gate.next_check is None


async def test_a_cancellation_in_the_turn_of_the_wake_up_is_not_lost() -> None:
    gate, control, _ = controlled(timeout_s=0.5)
    control.note(gate.report(0, "a"))
    held = asyncio.create_task(control.permit(0))
    await settled()
    control.ended(1, failed=True, answer=None)
    held.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held
