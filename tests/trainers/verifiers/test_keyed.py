"""Groups that nobody names: the mixin, and the plug in the config, under loops that know of no gate."""

from __future__ import annotations

import asyncio
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import verifiers.v1 as vf

from selective_rollout.engine.training import TrainingGate
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.verifiers import (
    STOP_CONDITION,
    AmbiguousGroupWarning,
    KeyedGroups,
    plug,
)
from selective_rollout.testing import LoopbackServer
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder

G = 4
RULE = GateConfig(start_step=3, tau=0.12)
Make = Callable[..., Any]


def enforcing() -> TrainingGate:
    return TrainingGate(RULE, mode="enforce", certified=True)


async def run(env: Any, ctx: Any, *tasks: Any, n: int = G) -> list[Any]:
    """What the loop of `vf-eval` does."""
    slots = [slot for task in tasks for slot in env.slots(task, n)]
    async with env.serving():
        return list(await asyncio.gather(*(env.run_slot(slot, ctx) for slot in slots)))


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> Callable[[KeyedGroups], vf.TaskConfig]:
    """A config that names the hook of these groups, as a module of one's own would hold it."""

    def make(groups: KeyedGroups) -> vf.TaskConfig:
        module = types.ModuleType("my_gate")
        module.group_gate = groups.group_gate  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "my_gate", module)
        return vf.TaskConfig(stops={STOP_CONDITION: {"fn": "my_gate:group_gate"}})

    return make


async def test_a_plug_in_the_config_needs_no_change_of_the_taskset(
    server: LoopbackServer, ask: Make, make_env: Make, make_task: Make, plugged: Make, toys: SimpleNamespace
) -> None:
    groups = KeyedGroups(enforcing(), G)
    config = plugged(groups)
    alike, apart = make_task("a=", config=config), make_task("b", config=config, rewards=[0, 1])
    episodes = await run(make_env(), ask(server), alike, apart)
    assert [episode.traces[0].stop_condition for episode in episodes] == [
        *[STOP_CONDITION] * G,
        *["agent_completed"] * G,
    ]
    assert G * toys.turns < server.counters.requests < 2 * G * toys.turns
    assert (groups.gate.meter.groups, groups.gate.meter.cut, groups.gate.meter.signal) == (2, 1, 1)


async def test_a_second_run_of_the_same_tasks_can_be_recorded_beside_the_first(
    server: LoopbackServer, ask: Make, make_env: Make, make_task: Make, plugged: Make, tmp_path: Path
) -> None:
    for _ in range(2):
        with Recorder(tmp_path) as recorder:
            groups = KeyedGroups(TrainingGate(RULE, recorder=recorder), G)
            await run(make_env(), ask(server), make_task("b", config=plugged(groups)))
            groups.close()
    first, second = read_groups(tmp_path)
    assert first.group.task_id == second.group.task_id


async def test_the_mixin_does_the_same_and_scores_no_rollout_that_was_cut(
    server: LoopbackServer,
    ask: Make,
    make_env: Make,
    make_task: Make,
    toys: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = KeyedGroups(enforcing(), G)
    monkeypatch.setattr(toys.gated, "groups", groups)
    episodes = await run(
        make_env("gated-toy-taskset"),
        ask(server),
        make_task("a=", kind=toys.gated),
        make_task("b", kind=toys.gated, rewards=[1, 0]),
    )
    assert groups.gate.meter.cut == 1
    assert [episode.traces[0].rewards == {} for episode in episodes] == [True] * G + [False] * G
    assert groups.gate.meter.signal == 1


async def test_a_task_that_comes_again_later_is_another_group(
    server: LoopbackServer, ask: Make, make_env: Make, make_task: Make, plugged: Make
) -> None:
    groups = KeyedGroups(enforcing(), G)
    task, env = make_task("a=", config=plugged(groups)), make_env()
    for _ in range(3):
        await run(env, ask(server), task)
    assert (groups.gate.meter.groups, groups.gate.meter.cut) == (3, 3)


async def test_the_same_task_twice_at_once_is_let_run_with_a_warning(
    server: LoopbackServer, ask: Make, make_env: Make, make_task: Make, plugged: Make, toys: SimpleNamespace
) -> None:
    groups = KeyedGroups(enforcing(), G)
    task = make_task("a=", config=plugged(groups))
    with pytest.warns(AmbiguousGroupWarning, match="more than 4 rollouts of task .* run at once"):
        episodes = await run(make_env(), ask(server), task, task)
    assert {episode.traces[0].stop_condition for episode in episodes} == {"agent_completed"}
    assert server.counters.requests == 2 * G * toys.turns
    assert groups.gate.meter.cut == 0
    assert all(episode.ok for episode in await run(make_env(), ask(server), task))


async def test_a_key_of_ones_own_tells_them_apart(
    server: LoopbackServer, ask: Make, make_env: Make, make_task: Make, plugged: Make
) -> None:
    groups = KeyedGroups(enforcing(), G, key=lambda trace: str(trace.task.data.name))
    config = plugged(groups)
    tasks = [make_task("a=", config=config, name=f"{visit}") for visit in range(2)]
    await run(make_env(), ask(server), *tasks)
    assert groups.gate.meter.cut == 2


async def test_a_member_that_dies_before_its_first_call_leaves_no_place_for_the_next_visit(
    server: LoopbackServer,
    ask: Make,
    make_env: Make,
    make_task: Make,
    plugged: Make,
    toys: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(toys.harness, "crew", G - 1)
    groups = KeyedGroups(enforcing(), G)
    task, env = make_task("a=", config=plugged(groups)), make_env()
    await run(env, ask(server), task, n=G - 1)
    episodes = await run(env, ask(server), task)
    assert {episode.traces[0].stop_condition for episode in episodes} == {STOP_CONDITION}
    assert (groups.gate.meter.groups, groups.gate.meter.cut, groups.gate.meter.flat) == (2, 1, 1)


async def test_rollouts_that_break_never_hang_their_group(
    server: LoopbackServer, ask: Make, make_env: Make, make_task: Make, plugged: Make
) -> None:
    groups = KeyedGroups(enforcing(), G)
    task = make_task("a=", config=plugged(groups), breaks=[0, 3])
    async with asyncio.timeout(20):
        episodes = await run(make_env(), ask(server), task)
    assert [episode.ok for episode in episodes] == [False, True, True, False]
    assert groups.gate.meter.cut == 1


async def test_more_groups_than_may_be_open_are_let_run(
    server: LoopbackServer,
    ask: Make,
    make_env: Make,
    make_task: Make,
    plugged: Make,
    toys: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(toys.harness, "crew", 2)
    groups = KeyedGroups(enforcing(), 2, max_open=1)
    config = plugged(groups)
    tasks = [make_task(f"{name}=", config=config) for name in "abc"]
    async with asyncio.timeout(30):
        episodes = await run(make_env(), ask(server), *tasks, n=2)
    assert all(episode.ok for episode in episodes)
    assert groups.gate.begun >= 3
    groups.close()
    assert groups.gate.meter.groups == groups.gate.begun


async def test_settings_come_from_the_environment_for_those_who_write_no_code(
    server: LoopbackServer,
    ask: Make,
    make_env: Make,
    make_task: Make,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    groups, recorder = plug.groups_from(
        {"SELECTIVE_ROLLOUT_GROUP_SIZE": "4", "SELECTIVE_ROLLOUT_TRACE": str(tmp_path)}
    )
    assert recorder is not None
    monkeypatch.setattr(plug, "_groups", lambda: groups)
    config = vf.TaskConfig(
        stops={STOP_CONDITION: {"fn": "selective_rollout.integrations.verifiers.group_gate"}}
    )
    await run(make_env(), ask(server), make_task("b", config=config, rewards=[0, 1]))
    recorder.close()
    events = [json.loads(line) for line in recorder.path.read_text().splitlines()]
    assert [event["type"] for event in events].count("rollout_end") == G
    assert {event["reward"] for event in events if event["type"] == "reward"} == {0.0, 1.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "GROUP_SIZE to the number of rollouts per task"),
        ({"GROUP_SIZE": "many"}, "'many'"),
        ({"GROUP_SIZE": "4", "MODE": "on"}, "observe or enforce"),
        ({"GROUP_SIZE": "0"}, "at least 1"),
    ],
)
def test_settings_that_are_missing_or_wrong_are_named(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plug.groups_from({f"SELECTIVE_ROLLOUT_{name}": value for name, value in settings.items()})
