"""The tasks of the household world: a drawn house, what lies where in it, the goal, and the prompt."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from selective_rollout.errors import ConfigError
from selective_rollout.types import Task

STATIONS: Final[Mapping[str, str]] = {"clean": "sink", "cool": "fridge", "heat": "stove"}
"""Treatment -> the place where it is done."""

WORKLOADS: Final = ("standard", "hard", "uniform")
"""Names that `household_tasks` accepts; `env.household_habits` says what the scripted agent makes of them."""

_KITCHEN = ("fridge", "kitchen table", "sink", "stove")
_ROOMS = ("attic", "bathroom", "bedroom", "cellar", "hall", "lounge", "nursery", "pantry", "study", "shed")
_OPEN_FURNITURE = ("bench", "desk", "rack", "shelf", "stool", "table", "tray")
_FURNITURE_WITH_DOOR = ("box", "cabinet", "chest", "crate", "drawer", "locker", "wardrobe")
_OBJECTS = (
    *("apple", "bottle", "bowl", "brush", "candle", "coin", "cup", "fork", "glove", "hammer", "jar", "key"),
    *("knife", "lamp", "letter", "mirror", "mug", "pan", "pear", "pencil", "plate", "ring", "scarf", "spoon"),
)
_OTHER_ROOMS = 4
_OPEN_PLACES_PER_ROOM = 2
_CLUTTER = 12


@dataclass(frozen=True, slots=True)
class Scenario:
    """The facts of one task: the house, what lies where, and the goal."""

    rooms: Mapping[str, tuple[str, ...]]
    """Room -> its places; the agent starts in the first room."""
    doors: frozenset[str]
    """Places that start closed."""
    objects: Mapping[str, str]
    """Object -> the place where it lies at the start."""
    target: str
    treatment: str | None
    """Key of `STATIONS`, or None."""
    destination: str

    @property
    def source(self) -> str:
        """Where the target lies at the start: the right answer."""
        return self.objects[self.target]


@lru_cache(maxsize=1024)
def draw_scenario(seed: int) -> Scenario:
    """Draw the facts of one task; equal seeds give equal facts on every machine."""
    rng = random.Random(seed)
    rooms: dict[str, tuple[str, ...]] = {"kitchen": _KITCHEN}
    doors = {"fridge"}
    for room in rng.sample(_ROOMS, _OTHER_ROOMS):
        with_door = f"{room} {rng.choice(_FURNITURE_WITH_DOOR)}"
        without = (f"{room} {name}" for name in rng.sample(_OPEN_FURNITURE, _OPEN_PLACES_PER_ROOM))
        doors.add(with_door)
        rooms[room] = tuple(sorted((with_door, *without)))
    order = list(rooms)
    rng.shuffle(order)
    rooms = {room: rooms[room] for room in order}
    places = [place for room in rooms.values() for place in room]
    destination = rng.choice([place for place in places if place not in STATIONS.values()])
    target, *clutter = rng.sample(_OBJECTS, 1 + _CLUTTER)
    objects = {target: rng.choice([place for place in places if place != destination])}
    objects.update((thing, rng.choice(places)) for thing in clutter)
    return Scenario(
        rooms=rooms,
        doors=frozenset(doors),
        objects=objects,
        target=target,
        treatment=rng.choice((None, *STATIONS)),
        destination=destination,
    )


def household_tasks(n: int, seed: int = 0, workload: str = "standard", epochs: int = 1) -> Iterator[Task]:
    """Yield `n` tasks, `epochs` times over; ids and prompts recur, so every epoch meets the same tasks.

    Args:
        n: number of different tasks.
        seed: other seeds give other houses (and, with the scripted agent, other habits).
        workload: "standard", "hard" or "uniform"; part of the prompt, where the scripted agent finds it.
        epochs: how often the whole list is gone through.

    Raises:
        ConfigError: unknown workload, negative n, or epochs below 1.
    """
    if workload not in WORKLOADS:
        raise ConfigError(f"unknown household workload {workload!r}: choose one of {', '.join(WORKLOADS)}")
    if n < 0 or epochs < 1:
        raise ConfigError(f"household_tasks needs n >= 0 and epochs >= 1, not n={n}, epochs={epochs}")
    return (_task(index, seed, workload) for _ in range(epochs) for index in range(n))


def _task(index: int, seed: int, workload: str) -> Task:
    house = f"{workload}-{seed}-{index}"
    scenario_seed = random.Random(house).getrandbits(32)
    scenario = draw_scenario(scenario_seed)
    metadata = {"seed": scenario_seed, "type": scenario.treatment or "move", "workload": workload}
    return Task(id=f"household-{house}", prompt=_prompt(scenario, house), metadata=metadata)


def _prompt(scenario: Scenario, house: str) -> str:
    rooms = "\n".join(
        f"- {room}: {', '.join(place + '*' * (place in scenario.doors) for place in places)}"
        for room, places in scenario.rooms.items()
    )
    stations = ", ".join(f"{verb} <object> (at the {place})" for verb, place in STATIONS.items())
    treatment = f"{scenario.treatment} it, " if scenario.treatment else ""
    return (
        f"You are in house {house}. Reply with exactly one command per turn.\n"
        f"Rooms and their places (* has a door: open it to see or use what is inside):\n{rooms}\n"
        "Commands: enter <room>, go to <place> (in the same room), open <place>, take <object>, "
        f"put <object>, {stations}, answer(<place>). You can carry one object.\n"
        f"Task: find the {scenario.target}, {treatment}put it at the {scenario.destination}, "
        "then end with answer(<place>), naming the place where you found it."
    )
