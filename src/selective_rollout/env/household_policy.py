"""The scripted household agent: a stochastic policy that reads nothing but the conversation and a seed.

It stands in for a language model whose rollouts of one prompt agree or differ for reasons that are known.
What a prompt brings is in `env.household_habits`; what differs between rollouts, stray actions and the slip,
is drawn from the rollout's seed. It keeps no state, so the same function acts in-process and behind a server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from selective_rollout.draws import stable_fraction
from selective_rollout.env.household import NOTHING_HAPPENS, split_command
from selective_rollout.env.household_habits import HOUSE, Brief, read_prompt
from selective_rollout.env.household_scenario import STATIONS
from selective_rollout.errors import ConfigError

_START = re.compile(r"^You stand in the ([a-z ]+)\.", re.MULTILINE)
_SIGHT = re.compile(r"You see: (.+)\.$", re.MULTILINE)


def household_reply(messages: Sequence[Mapping[str, Any]], seed: int) -> str:
    """Return the scripted agent's next message: the text of one household command.

    Args:
        messages: chat messages; one of the first holds the household prompt, then observations (role "user")
            and the agent's own commands (role "assistant") take turns.
        seed: the rollout's seed. Equal seeds behave equally, so siblings and epochs need different ones.

    Raises:
        ConfigError: no message holds a household prompt.
    """
    first = next((i for i, message in enumerate(messages) if HOUSE.search(_text(message))), None)
    if first is None:
        raise ConfigError("no message holds a household prompt: send the task's prompt as the first message")
    brief = read_prompt(_text(messages[first]))
    memory = _remember(brief, messages[first:])
    draw = partial(stable_fraction, brief.house, seed)
    if draw("stray", memory.turn) < brief.habits.epsilon:
        options = _stray_options(brief, memory)
        return options[int(draw("which", memory.turn) * len(options))]
    return _intended(brief, memory, slips=draw("slip") < brief.habits.slip)


def _text(message: Mapping[str, Any]) -> str:
    """Text of a message whose content is a string or OpenAI's list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or () if isinstance(part, Mapping))


@dataclass(slots=True)
class _Memory:
    """What a rollout has seen and done so far, read back from its conversation."""

    turn: int = 0
    """Actions taken."""
    room: str | None = None
    at: str | None = None
    visible: tuple[str, ...] = ()
    holding: str | None = None
    opened: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    """Places whose inside it has seen."""
    found: str | None = None
    """Where it saw the target first."""
    lies_at: str | None = None
    """Where the target lies now, as far as it knows."""
    treated: set[str] = field(default_factory=set)


def _remember(brief: Brief, messages: Sequence[Mapping[str, Any]]) -> _Memory:
    memory = _Memory()
    action: str | None = None
    for message in messages:
        text = _text(message)
        if message.get("role") == "assistant":
            action = text
            memory.turn += 1
        elif action is None:
            started = _START.search(text)
            memory.room = started[1] if started else memory.room
        elif not text.startswith(NOTHING_HAPPENS):
            _take_in(brief, memory, *split_command(action), text)
    return memory


def _take_in(brief: Brief, memory: _Memory, verb: str, noun: str, observation: str) -> None:
    """Update the memory by one action that worked."""
    if verb == "enter":
        memory.room, memory.at, memory.visible = noun, None, ()
    elif verb == "go to":
        memory.at, memory.visible = noun, ()
    elif verb == "open":
        memory.opened.add(noun)
    elif verb == "take":
        memory.holding = noun
        memory.visible = tuple(thing for thing in memory.visible if thing != noun)
    elif verb == "put":
        memory.holding = None
        memory.visible += (noun,)
    elif verb in STATIONS and noun == brief.target:
        memory.treated.add(verb)
    sight = _SIGHT.search(observation)
    if sight and memory.at:
        memory.seen.add(memory.at)
        memory.visible = tuple(sight[1].split(", ")) if sight[1] != "nothing" else ()
    if brief.target in memory.visible:
        memory.lies_at = memory.at
        memory.found = memory.found or memory.at


def _intended(brief: Brief, memory: _Memory, slips: bool) -> str:
    """The command that brings the plan forward."""
    habits = brief.habits
    if memory.found is None:
        unseen = [place for place in habits.search_order if place not in memory.seen]
        if not unseen or len(memory.seen) >= habits.patience:
            return f"answer({(unseen or habits.search_order)[0]})"
        return _approach(brief, memory, unseen[0]) or f"open {unseen[0]}"
    forgets = slips and habits.slip_kind == "forget"
    treatment = None if forgets or brief.treatment in memory.treated else brief.treatment
    if memory.holding == brief.target:
        goal = STATIONS[treatment] if treatment else brief.destination
        return _approach(brief, memory, goal) or f"{treatment or 'put'} {brief.target}"
    if memory.lies_at == brief.destination and treatment is None:
        misreports = slips and habits.slip_kind == "misreport"
        return f"answer({brief.destination if misreports else memory.found})"
    return _fetch(brief, memory)


def _fetch(brief: Brief, memory: _Memory) -> str:
    """Get hold of the target where it lies, putting down there whatever fills the hands."""
    way = _approach(brief, memory, memory.lies_at or brief.destination)
    return way or (f"put {memory.holding}" if memory.holding else f"take {brief.target}")


def _approach(brief: Brief, memory: _Memory, place: str) -> str | None:
    """The next command on the way to an accessible place; None once there."""
    room = brief.room_of[place]
    if memory.room != room:
        return f"enter {room}"
    if memory.at != place:
        return f"go to {place}"
    return f"open {place}" if place in brief.doors - memory.opened else None


def _stray_options(brief: Brief, memory: _Memory) -> list[str]:
    """Possible commands other than answers, in a fixed order."""
    options = [f"enter {room}" for room in brief.rooms if room != memory.room]
    options += [f"go to {place}" for place in brief.rooms.get(memory.room or "", ()) if place != memory.at]
    if memory.at in brief.doors - memory.opened:
        options.append(f"open {memory.at}")
    elif memory.at and memory.holding:
        options.append(f"put {memory.holding}")
    elif memory.at:
        options += [f"take {thing}" for thing in memory.visible]
    return options
