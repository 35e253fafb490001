"""A small search-and-place text world on the standard library: the package's own workload.

A house has rooms, rooms have places, some places have a door. The agent finds one object, treats it at a
station if asked to, puts it where it belongs and ends with `answer(<place>)`, naming the place where it found
the object. The reward is sparse: 1.0 if object, treatment and answer are all right, else 0.0. Everything
follows from `task.metadata["seed"]`; the number of steps is limited by whoever runs the world.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from selective_rollout.env.base import Observation, StepResult
from selective_rollout.env.household_scenario import STATIONS, draw_scenario
from selective_rollout.errors import ConfigError, EnvironmentFault
from selective_rollout.types import Task

NOTHING_HAPPENS: Final = "Nothing happens."
"""Reply to every command that is unknown or impossible now."""

_VERBS = ("enter", "go to", "open", "take", "put", *STATIONS)


@lru_cache(maxsize=2048)
def split_command(action: str) -> tuple[str, str]:
    """Split an action into verb and noun: "go to sink" -> ("go to", "sink"); ("", text) if there is no verb.

    Case and extra white space do not matter.
    """
    text = " ".join(action.lower().split())
    if text.startswith("answer(") and text.endswith(")"):
        return "answer", text[len("answer(") : -1].strip()
    for verb in _VERBS:
        if text.startswith(verb + " "):
            return verb, text[len(verb) + 1 :]
    return "", text


@lru_cache(maxsize=8192)
def _always_possible(seed: int, room: str, at: str | None) -> tuple[str, ...]:
    """Sorted commands that depend on nothing but where the agent stands."""
    rooms = draw_scenario(seed).rooms
    answers = [f"answer({place})" for places in rooms.values() for place in places]
    ways = [f"enter {other}" for other in rooms if other != room]
    return tuple(sorted((*answers, *ways, *(f"go to {place}" for place in rooms[room] if place != at))))


class HouseholdEnvironment:
    """One household world; the class itself is an `EnvironmentFactory`.

    Args:
        task: one of `household_tasks`; only `metadata["seed"]` is read.
        rollout: not used, since all rollouts of a task live in equal worlds.

    Raises:
        ConfigError: the task's metadata hold no integer seed.
    """

    replayable: Final = True

    def __init__(self, task: Task, rollout: int = 0) -> None:
        seed = task.metadata.get("seed")
        if not isinstance(seed, int):
            raise ConfigError(f"task {task.id!r} has no integer metadata['seed']: use household_tasks()")
        self._seed = seed
        self._scenario = draw_scenario(seed)
        self._where: dict[str, str] = dict(self._scenario.objects)
        self._room = next(iter(self._scenario.rooms))
        self._at: str | None = None
        self._opened: set[str] = set()
        self._holding: str | None = None
        self._touched: set[str] = set()
        self._treated: set[str] = set()
        """Treatments done, as commands ("heat mug")."""
        self._answer: str | None = None

    def start(self) -> Observation:
        """Say where the agent stands."""
        return Observation(f"You stand in the {self._room}.", self._admissible())

    def step(self, action: str) -> StepResult:
        """Perform one command.

        Raises:
            EnvironmentFault: the agent had answered already.
        """
        if self._answer is not None:
            raise EnvironmentFault("this household rollout has ended with an answer: take no further steps")
        reply = self._perform(*split_command(action))
        ended = self._answer is not None
        return StepResult(
            observation=reply or NOTHING_HAPPENS,
            admissible=() if ended else self._admissible(),
            reward=float(ended and self._solved()),
            terminated=ended,
            is_error=reply is None,
            answer=self._answer,
            state_key=self._state_key(),
        )

    def close(self) -> None:
        """Nothing is held."""

    def _perform(self, verb: str, noun: str) -> str | None:
        """Change the world and return the reply; None if the command is impossible now."""
        if verb == "enter":
            return self._enter(noun)
        if verb == "go to":
            return self._go_to(noun)
        if verb == "open":
            return self._open(noun)
        if verb == "take":
            return self._take(noun)
        if verb == "put":
            return self._put(noun)
        if verb == "answer":
            return self._end(noun)
        return self._treat(verb, noun) if verb else None

    def _enter(self, room: str) -> str | None:
        if room not in self._scenario.rooms or room == self._room:
            return None
        self._room, self._at = room, None
        return f"You stand in the {room}."

    def _go_to(self, place: str) -> str | None:
        if place not in self._scenario.rooms[self._room] or place == self._at:
            return None
        self._at = place
        view = f"You see: {self._visible()}." if self._is_open(place) else "It is closed."
        return f"You stand at the {place}. {view}"

    def _open(self, place: str) -> str | None:
        if place != self._at or self._is_open(place):
            return None
        self._opened.add(place)
        return f"You open the {place}. You see: {self._visible()}."

    def _take(self, thing: str) -> str | None:
        if self._holding is not None or thing not in self._within_reach():
            return None
        del self._where[thing]
        self._holding = thing
        self._touched.add(thing)
        return f"You take the {thing}."

    def _put(self, thing: str) -> str | None:
        if self._at is None or thing != self._holding or not self._is_open(self._at):
            return None
        self._where[thing] = self._at
        self._holding = None
        return f"You put the {thing} at the {self._at}."

    def _treat(self, treatment: str, thing: str) -> str | None:
        station = STATIONS[treatment]
        if thing != self._holding or self._at != station or not self._is_open(station):
            return None
        self._treated.add(f"{treatment} {thing}")
        return f"You {treatment} the {thing}."

    def _end(self, place: str) -> str | None:
        if all(place not in places for places in self._scenario.rooms.values()):
            return None
        self._answer = place
        return f"You answer: {place}."

    def _is_open(self, place: str) -> bool:
        return place in self._opened or place not in self._scenario.doors

    def _within_reach(self) -> list[str]:
        if self._at is None or not self._is_open(self._at):
            return []
        return sorted(thing for thing, place in self._where.items() if place == self._at)

    def _visible(self) -> str:
        return ", ".join(self._within_reach()) or "nothing"

    def _solved(self) -> bool:
        goal = self._scenario
        return (
            self._answer == goal.source
            and self._where.get(goal.target) == goal.destination
            and (goal.treatment is None or f"{goal.treatment} {goal.target}" in self._treated)
        )

    def _admissible(self) -> tuple[str, ...]:
        here = []
        if self._at is not None and not self._is_open(self._at):
            here = [f"open {self._at}"]
        elif self._at is not None and self._holding is not None:
            here = [f"{verb} {self._holding}" for verb, place in STATIONS.items() if place == self._at]
            here.append(f"put {self._holding}")
        elif self._at is not None:
            here = [f"take {thing}" for thing in self._within_reach()]
        return tuple(sorted((*_always_possible(self._seed, self._room, self._at), *here)))

    def _state_key(self) -> str:
        start = self._scenario.objects
        places = {thing: self._where.get(thing, "hand") for thing in sorted(self._touched)}
        moved = (f"{thing}@{place}" for thing, place in places.items() if place != start[thing])
        return "|".join((self._room, self._at or "", *sorted(self._opened), *sorted(self._treated), *moved))
