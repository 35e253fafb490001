"""A group over two workers of verl on Ray, with the gate in a named actor; either may be killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
from verl_actors import Worker, servers
from verl_world import SIZE, TURNS, batch_of

HALF = SIZE // 2


@pytest.fixture
def spread(cluster: None, config: Callable[..., Any]) -> Iterator[Callable[..., list[Any]]]:
    """Makes two workers; the second one's servers may hang."""
    made: list[Any] = []

    def make(actor: str, *, hangs: bool = False, **settings: Any) -> list[Any]:
        shared = config(shared="true", actor=actor, **settings)
        made.extend(Worker.remote(shared, servers(shared, hangs=mute)) for mute in (False, hangs))
        return made

    yield make
    for worker in made:
        ray.kill(worker)


def roll_out(workers: list[Any], task: str) -> list[Any]:
    """As verl's older manager deals out a batch."""
    chunks = batch_of([task]).chunk(len(workers))
    return [worker.generate_sequences.remote(chunk) for worker, chunk in zip(workers, chunks, strict=True)]


def trained(output: Any) -> list[bool]:
    return list((output.batch["response_mask"].sum(-1) > 0).tolist())


def test_members_in_two_workers_are_cut_together_until_the_gate_dies(
    spread: Callable[..., list[Any]], started: Callable[[str], Any]
) -> None:
    gate = started("both")
    workers = spread("both")
    assert [trained(half) for half in ray.get(roll_out(workers, "a="))] == [[False] * HALF] * 2
    assert [trained(half) for half in ray.get(roll_out(workers, "b"))] == [[True] * HALF] * 2
    asked = [ray.get(worker.asked.remote()) for worker in workers]
    assert sum(each["a="] for each in asked) < SIZE * TURNS
    assert sum(each["b"] for each in asked) == SIZE * TURNS
    assert ray.get(gate.metrics.remote())["gate/cut"] == 1

    ray.kill(gate)
    assert [trained(half) for half in ray.get(roll_out(workers, "c="), timeout=120)] == [[True] * HALF] * 2


def test_a_killed_worker_ends_the_gate_for_its_group(spread: Callable[..., list[Any]]) -> None:
    survivor, victim = spread("patient", hangs=True, lease_s=3)
    # The survivor makes the actor, so that it outlives the victim.
    ray.get(survivor.generate_sequences.remote(batch_of(["b"])))
    stays, gone = roll_out([survivor, victim], "a=")
    while not ray.get(victim.asked.remote())["a="]:
        pass
    ray.kill(victim)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(gone)
    assert trained(ray.get(stays, timeout=120)) == [True] * HALF
    metrics = ray.get(ray.get_actor("patient").metrics.remote())
    assert (metrics["gate/groups"], metrics["gate/cut"]) == (2, 0)
