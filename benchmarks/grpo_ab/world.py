"""The household world as the small policy sees it: notes on what happened so far, as words of a fixed list.

An agent that acts for many turns keeps notes; here code keeps them, from the prompt and the replies alone,
and the policy reads them before every command. So a step's context is short and the policy can be tiny.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from selective_rollout.env.base import StepResult
from selective_rollout.env.household import HouseholdEnvironment, split_command
from selective_rollout.env.household_habits import Brief, read_prompt
from selective_rollout.env.household_scenario import STATIONS, draw_scenario
from selective_rollout.types import Task

PAD, BEGIN, END, BAR, NOTHING, YES, NO = "<pad>", "<begin>", "<end>", "|", "nothing", "yes", "no"
MAX_ACTION: Final = 6
"""Most words of a command, the end mark included."""
CONTEXT: Final = 32
"""Words of notes before each command; what does not fit is left out at the end, where least depends on it."""


@lru_cache(maxsize=1)
def words() -> tuple[str, ...]:
    """Every word that notes and commands may hold; the position in the list is the token id."""
    found: set[str] = set()
    for seed in range(3000):
        scenario = draw_scenario(seed)
        for room, places in scenario.rooms.items():
            found.update((room, *(word for place in places for word in place.split())))
        found.update(scenario.objects)
    verbs = ("enter", "go", "to", "open", "take", "put", "answer", *STATIONS)
    return (PAD, BEGIN, END, BAR, NOTHING, YES, NO, *verbs, *sorted(found - set(verbs)))


@lru_cache(maxsize=1)
def ids() -> dict[str, int]:
    """Token id of every word."""
    return {word: i for i, word in enumerate(words())}


@dataclass(slots=True)
class Notes:
    """What one rollout knows."""

    brief: Brief
    room: str
    at: str | None = None
    visible: tuple[str, ...] = ()
    holding: str | None = None
    opened: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    found: str | None = None
    """Where the target lay when it was first seen."""
    placed: bool = False
    """Whether the target lies where it belongs."""
    treated: bool = False
    failed: bool = False
    """Whether the last command was impossible."""

    @property
    def unseen(self) -> list[str]:
        """Places not looked into yet, in the order of the prompt."""
        return [place for places in self.brief.rooms.values() for place in places if place not in self.seen]

    def take_in(self, command: str, reply: StepResult) -> None:
        """Note what a command brought about."""
        self.failed = bool(reply.is_error)
        if self.failed:
            return
        verb, noun = split_command(command)
        if verb == "enter":
            self.room, self.at, self.visible = noun, None, ()
        elif verb == "go to":
            self.at, self.visible = noun, ()
        elif verb == "open":
            self.opened.add(noun)
        elif verb == "take":
            self.holding, self.placed = noun, self.placed and noun != self.brief.target
        elif verb == "put":
            self.holding = None
            self.placed = self.placed or (noun == self.brief.target and self.at == self.brief.destination)
        elif verb in STATIONS and noun == self.brief.target:
            self.treated = self.treated or verb == self.brief.treatment
        self._look(reply.observation)

    def _look(self, text: str) -> None:
        _, found, sight = text.partition("You see: ")
        if found and self.at is not None:
            self.seen.add(self.at)
            self.visible = tuple(sight.rstrip(".").split(", ")) if sight != "nothing." else ()
            if self.brief.target in self.visible and self.found is None:
                self.found = self.at

    def text(self) -> list[str]:
        """The notes as words, fixed fields first."""
        brief = self.brief
        closed = self.at in brief.doors and self.at not in self.opened
        rest = [place for place in self.unseen if brief.room_of[place] == self.room]
        rooms = dict.fromkeys(brief.room_of[place] for place in self.unseen)
        return [
            *(BEGIN, brief.target, brief.treatment or NOTHING, *_two(brief.destination)),
            *(YES if self.treated else NO, YES if self.placed else NO, YES if self.failed else NO),
            *(self.holding or NOTHING, YES if self.brief.target in self.visible else NO),
            *(self.room, *_two(self.at), YES if closed else NO, *_two(self.found)),
            *(word for place in rest for word in _two(place)), BAR,
            *rooms,
        ][:CONTEXT]  # fmt: skip


def _two(place: str | None) -> tuple[str, str]:
    """A place in two words, so that every field stands where the policy expects it."""
    first, _, second = (place or NOTHING).partition(" ")
    return first, second or NOTHING


@dataclass(slots=True)
class World:
    """One rollout's environment with its notes."""

    environment: HouseholdEnvironment
    notes: Notes

    @classmethod
    def open(cls, task: Task) -> World:
        """Begin a rollout of a task."""
        environment = HouseholdEnvironment(task)
        start = environment.start()
        brief = read_prompt(task.prompt)
        return cls(environment, Notes(brief, start.text.removeprefix("You stand in the ").rstrip(".")))

    def step(self, command: str) -> StepResult:
        """Perform a command and note what came of it."""
        reply = self.environment.step(command)
        self.notes.take_in(command, reply)
        return reply


def command_of(action: Sequence[str]) -> str:
    """A command as the world understands it, from the words the policy wrote."""
    if action and action[0] == "answer":
        return f"answer({' '.join(action[1:])})"
    return " ".join(action)


def words_of(command: str) -> list[str]:
    """The words that write a command; the inverse of `command_of`."""
    verb, noun = split_command(command)
    return [*verb.split(), *noun.split()]
