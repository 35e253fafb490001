"""A group over two workers of Ray, with the gate in a named actor; either may be killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from spread import Worker, make_gate

from selective_rollout.integrations.ray_registry import start_coordinator


@pytest.fixture(scope="module")
def workers(cluster: None) -> Iterator[list[Any]]:
    made = [Worker.remote() for _ in range(3)]
    ray.get([worker.ready.remote() for worker in made])
    yield made
    for worker in made:
        ray.kill(worker)


def start(name: str, **options: Any) -> Any:
    coordinator = start_coordinator(make_gate, name=name, **options)
    ray.get(coordinator.metrics.remote())
    return coordinator


def spread(workers: list[Any], name: str, group: str, **options: Any) -> list[Any]:
    settings = {"alike": True, "pause_s": 0.02, **options}
    halves = ([0, 2], [1, 3])
    return [
        worker.rollouts.remote(name, group, members, **settings)
        for worker, members in zip(workers, halves, strict=False)
    ]


def test_members_in_two_workers_are_cut_together(workers: list[Any]) -> None:
    coordinator = start("alive")
    same, other = spread(workers, "alive", "same"), spread(workers, "alive", "other", alike=False)
    cut = [result for half in ray.get(same) for result in half]
    assert [kept for kept, _ in cut] == [False] * 4
    assert all(done < 8 for _, done in cut)
    assert [result for half in ray.get(other) for result in half] == [(True, 8)] * 4
    metrics = ray.get(coordinator.metrics.remote())
    assert (metrics["gate/groups"], metrics["gate/cut"]) == (2, 1)
    ray.kill(coordinator)


def test_a_killed_coordinator_hangs_nobody(workers: list[Any]) -> None:
    coordinator = start("mortal")
    running = spread(workers, "mortal", "g", pause_s=0.3)
    time.sleep(0.45)
    ray.kill(coordinator)
    assert [result for half in ray.get(running, timeout=60) for result in half] == [(True, 8)] * 4
    # And nobody who comes after.
    late = spread(workers, "mortal", "h")
    assert [result for half in ray.get(late, timeout=60) for result in half] == [(True, 8)] * 4


def test_a_killed_worker_ends_the_gate_for_its_group(workers: list[Any]) -> None:
    coordinator = start("patient", lease_s=3.0)
    survivor, victim = workers[0], workers.pop()
    stays = survivor.rollouts.remote("patient", "g", [0, 2], alike=True, pause_s=0.05)
    gone = victim.rollouts.remote("patient", "g", [1, 3], alike=True, pause_s=30.0)
    time.sleep(0.3)
    ray.kill(victim)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(gone)
    assert ray.get(stays, timeout=60) == [(True, 8)] * 2
    metrics = ray.get(coordinator.metrics.remote())
    assert (metrics["gate/groups"], metrics["gate/cut"]) == (1, 0)
    ray.kill(coordinator)
