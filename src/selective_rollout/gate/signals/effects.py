"""Signals of agreement on what was done to the world, for which state-changing tools must be declared.

A member's *effects* at k are those of its first k actions that change the world and were not answered with an
error; a failed write changes nothing. Parallel calls of one step count one by one, all of them failed if the
step's reply was an error. Both signals lie in [0, 1], point up (direction +1), and are None with fewer than
two present members or if nobody said whether a state-changing step failed; the step that ended its member
normally may have had no reply and then counts as done.

Agreement may merely mean that nobody has written yet: members without effects agree fully.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from selective_rollout.actions import ActionOptions, RawAction, canonicalise, changes_world
from selective_rollout.actions.parse import calls_from_text
from selective_rollout.errors import ConfigError
from selective_rollout.gate.signals.agreement import mean_of_pairs
from selective_rollout.gate.signals.base import Direction
from selective_rollout.gate.signals.view import GroupView

Effects: TypeAlias = Iterable[str] | Callable[[RawAction], bool]
"""Tools that change the world (of text actions: first words), or a predicate."""


@dataclass(frozen=True, slots=True)
class _EffectSignal:
    """What both signals share.

    Raises:
        ConfigError: the effects are empty or are neither names nor a function.
    """

    effects: Effects
    _options: ActionOptions = field(init=False, repr=False, compare=False)

    needs: ClassVar[frozenset[str]] = frozenset({"actions", "errors"})
    direction: ClassVar[Direction] = 1

    def __post_init__(self) -> None:
        options = ActionOptions(effects=self.effects)
        if not options.effects:
            raise ConfigError(
                "effects is empty: list the tools that change the world, or leave the signal out"
            )
        object.__setattr__(self, "effects", options.effects)
        object.__setattr__(self, "_options", options)

    def done(self, view: GroupView, k: int) -> list[Counter[str]] | None:
        """Effects with their counts, one row per present member; None if a needed error flag is unknown."""
        parts = {action: self._effects_of(action) for row in view.prefixes(k) for action in row}
        rows = []
        for member in view.present(k):
            row: Counter[str] = Counter()
            for t, action in enumerate(view.actions[member][:k]):
                if not parts[action]:
                    continue
                failed = view.reply(view.errors, member, t)
                if failed is None and not view.ended_by(member, t):
                    return None
                if not failed:
                    row.update(parts[action])
            rows.append(row)
        return rows

    def _effects_of(self, action: str) -> tuple[str, ...]:
        """Return the state-changing calls of a canonical action, or the whole of a state-changing text."""
        calls = [RawAction((call,)) for call in calls_from_text(action)]
        if calls:
            return tuple(canonicalise(call) for call in calls if changes_world(call, self._options))
        return (action,) if changes_world(action, self._options) else ()


@dataclass(frozen=True, slots=True)
class EffectEquality(_EffectSignal):
    """Share of member pairs whose effects are equal, counting how often each was done."""

    name: ClassVar[str] = "effect_equality"

    def value(self, view: GroupView, k: int) -> float | None:
        """The share at k."""
        rows = self.done(view, k)
        return None if rows is None else mean_of_pairs(rows, _equality)


@dataclass(frozen=True, slots=True)
class EffectJaccard(_EffectSignal):
    """Mean pairwise Jaccard similarity of the members' sets of effects; 1 for two members without any."""

    name: ClassVar[str] = "effect_jaccard"

    def value(self, view: GroupView, k: int) -> float | None:
        """The mean at k."""
        rows = self.done(view, k)
        return None if rows is None else mean_of_pairs(rows, _jaccard)


def _equality(a: Mapping[str, int], b: Mapping[str, int]) -> float:
    return float(a == b)


def _jaccard(a: Mapping[str, int], b: Mapping[str, int]) -> float:
    union = a.keys() | b.keys()
    return len(a.keys() & b.keys()) / len(union) if union else 1.0
