"""The habits of the scripted household agent: what it brings to every rollout of one prompt.

Drawn from a hash of the prompt, they persist over rollouts and epochs: how sharp the agent is, in which order
it believes the object may lie, how long it searches, and how often it slips in a choice that comes after the
object is found. Distance carries information about zero variance only because sharpness differs between
prompts and goes along with being decided about that choice. The workload "standard" has both, "hard" is
undecided nearly everywhere, so that equal prefixes promise nothing, and "uniform" has one sharpness for all
prompts and slips in the very last command only, so that prefixes tell nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, Literal

from selective_rollout.draws import stable_fraction
from selective_rollout.errors import ConfigError

HOUSE: Final = re.compile(r"You are in house (([a-z]+)-\S+)\. ")
"""How a household prompt is recognised."""

_ROOM = re.compile(r"^- ([a-z ]+): (.+)$", re.MULTILINE)
_GOAL = re.compile(
    r"^Task: find the ([a-z ]+?), (?:([a-z]+) it, )?put it at the ([a-z ]+), then end", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class _Temper:
    """How the habits of one workload are drawn."""

    epsilons: tuple[float, ...]
    """Equally likely rates of stray actions; a repeated one is likelier."""
    undecided_if_sharp: float
    """Share of the prompts below `_SHARP_BELOW` whose slip differs between rollouts."""
    undecided: float
    """The same share among the other prompts."""
    forgets: float
    """Share of the slips that forget the treatment, if there is one; the others only show in the answer."""


_SHARP_BELOW: Final = 0.05
_SPREAD: Final = (0.0, 0.0, 0.01, 0.05, 0.1, 0.1, 0.15, 0.15, 0.15, 0.15, 0.3)
_TEMPERS: Final = {
    "standard": _Temper(_SPREAD, undecided_if_sharp=0.1, undecided=0.95, forgets=0.5),
    "hard": _Temper(_SPREAD, undecided_if_sharp=0.9, undecided=0.9, forgets=0.5),
    "uniform": _Temper((0.05,), undecided_if_sharp=0.8, undecided=0.8, forgets=0.0),
}
_PATIENCE: Final = (0.55, 0.85)
_UNDECIDED_SLIP: Final = (0.25, 0.75)
_ALWAYS_SLIPS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Habits:
    """What the agent brings to every rollout of one prompt."""

    epsilon: float
    """Rate of stray actions; 0 is perfectly sharp."""
    search_order: tuple[str, ...]
    """Places, the most believed in first."""
    patience: int
    """Number of places it looks into before it gives up and answers with a guess."""
    slip: float
    """Probability that a rollout slips."""
    slip_kind: Literal["forget", "misreport"]
    """Leave out the treatment, or report the destination as the place of the find."""


@dataclass(frozen=True, slots=True)
class Brief:
    """What the prompt says, and the habits that its hash brings."""

    house: str
    rooms: Mapping[str, tuple[str, ...]]
    room_of: Mapping[str, str]
    doors: frozenset[str]
    target: str
    treatment: str | None
    destination: str
    habits: Habits


def household_habits(prompt: str) -> Habits:
    """Return the habits that the scripted agent has on this prompt: the known cause of what its groups do.

    Raises:
        ConfigError: the text is no household prompt.
    """
    return read_prompt(prompt).habits


@lru_cache(maxsize=4096)
def read_prompt(prompt: str) -> Brief:
    """Read a household prompt; text around it does no harm.

    Raises:
        ConfigError: the text is no household prompt.
    """
    house, goal = HOUSE.search(prompt), _GOAL.search(prompt)
    if house is None or goal is None or house[2] not in _TEMPERS:
        raise ConfigError("not a household prompt: take prompts from household_tasks() unchanged")
    listed = {room: tuple(places.split(", ")) for room, places in _ROOM.findall(prompt)}
    rooms = {room: tuple(place.rstrip("*") for place in places) for room, places in listed.items()}
    return Brief(
        house=house[1],
        rooms=rooms,
        room_of={place: room for room, places in rooms.items() for place in places},
        doors=frozenset(p.rstrip("*") for places in listed.values() for p in places if p.endswith("*")),
        target=goal[1],
        treatment=goal[2],
        destination=goal[3],
        habits=_habits(house[1], _TEMPERS[house[2]], rooms, treated=goal[2] is not None),
    )


def _habits(house: str, temper: _Temper, rooms: Mapping[str, tuple[str, ...]], treated: bool) -> Habits:
    draw = partial(stable_fraction, house)
    epsilon = temper.epsilons[int(draw("epsilon") * len(temper.epsilons))]
    undecided = temper.undecided_if_sharp if epsilon < _SHARP_BELOW else temper.undecided
    if draw("undecided") < undecided:
        slip = _between(_UNDECIDED_SLIP, draw("slip"))
    else:
        slip = float(draw("slip") < _ALWAYS_SLIPS)
    order = tuple(
        place
        for room in sorted(rooms, key=partial(draw, "room"))
        for place in sorted(rooms[room], key=partial(draw, "place"))
    )
    forgets = treated and draw("kind") < temper.forgets
    return Habits(
        epsilon=epsilon,
        search_order=order,
        patience=round(len(order) * _between(_PATIENCE, draw("patience"))),
        slip=slip,
        slip_kind="forget" if forgets else "misreport",
    )


def _between(bounds: tuple[float, float], unit: float) -> float:
    low, high = bounds
    return low + (high - low) * unit
