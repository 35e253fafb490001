"""Who the policy imitates before training: an agent that knows the way and is careless in known places.

Carelessness is one trait per object: where it is high, the agent strays, forgets the treatment and
misreports. So the imitating policy becomes sharp on some prompts and undecided on others, also on houses it
never saw. That is what a distance gate lives on, and what training can repair.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from benchmarks.grpo_ab.world import Notes, World

from selective_rollout.draws import stable_fraction
from selective_rollout.env.household_scenario import STATIONS
from selective_rollout.types import Task

CARELESS: Final = (0.0, 0.0, 0.0, 0.3, 1.0)
"""Equally likely degrees of carelessness."""
STRAYS, FORGETS, MISREPORTS = 0.15, 0.7, 0.4
"""Rates at full carelessness: per step, per rollout with a treatment, per rollout."""


def demonstrations(tasks: list[Task], max_steps: int, seed: int) -> Iterator[tuple[list[str], str]]:
    """Yield notes and the command that follows, step by step, one rollout per task."""
    rng = random.Random(seed)
    for task in tasks:
        world = World.open(task)
        careless = carelessness(world.notes.brief.target)
        forgets = rng.random() < FORGETS * careless
        misreports = rng.random() < MISREPORTS * careless
        for _ in range(max_steps):
            stray = rng.random() < STRAYS * careless
            intended = plan(world.notes, forgets=forgets, misreports=misreports)
            command = rng.choice(_strays(world.notes)) if stray else intended
            yield world.notes.text(), command
            if world.step(command).terminated:
                break


def plan(notes: Notes, *, forgets: bool = False, misreports: bool = False) -> str:
    """The command that brings the task forward."""
    brief = notes.brief
    if notes.found is None:
        return _search(notes)
    if notes.placed:
        return f"answer({brief.destination if misreports else notes.found})"
    if notes.holding != brief.target:
        return _way(notes, notes.found) or (
            f"put {notes.holding}" if notes.holding else f"take {brief.target}"
        )
    if brief.treatment is not None and not notes.treated and not forgets:
        return _way(notes, STATIONS[brief.treatment]) or f"{brief.treatment} {brief.target}"
    return _way(notes, brief.destination) or f"put {brief.target}"


def _search(notes: Notes) -> str:
    if not notes.unseen:
        return f"answer({notes.brief.destination})"
    here = [place for place in notes.unseen if notes.brief.room_of[place] == notes.room]
    place = (here or notes.unseen)[0]
    return _way(notes, place) or f"open {place}"


def _way(notes: Notes, place: str) -> str | None:
    room = notes.brief.room_of[place]
    if notes.room != room:
        return f"enter {room}"
    if notes.at != place:
        return f"go to {place}"
    return f"open {place}" if place in notes.brief.doors - notes.opened else None


def _strays(notes: Notes) -> list[str]:
    return [
        *(f"enter {room}" for room in notes.brief.rooms if room != notes.room),
        *(f"go to {place}" for place in notes.brief.rooms[notes.room] if place != notes.at),
    ]


def carelessness(target: str) -> float:
    """How careless the demonstrator is with an object, from 0 to 1."""
    return CARELESS[int(stable_fraction("careless", target) * len(CARELESS))]
