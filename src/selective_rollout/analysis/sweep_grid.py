"""What a sweep looks at: signals, positions, thresholds and what counts as the same action."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from typing import Any, Final

from selective_rollout.actions import ActionOptions, canonicalise
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.signals import SIGNALS, Signal
from selective_rollout.stats import decimal_grid
from selective_rollout.types import Padding

Symbol = Callable[[str], str]

HISTORY: Final = "history_p_zero_variance"
"""The signal that is known before step 1; it has its own part in a sweep."""

CHAR_DISTANCE: Final = "char_distance"
"""The mean pairwise distance of the joined action texts, character by character: a gate's level "char"."""

CANONICALISERS: Final[Mapping[str, ActionOptions]] = {
    "name_only": ActionOptions(name_only=True),
    "scrub_volatile": ActionOptions(scrub_volatile=True),
    "numeric_equal": ActionOptions(numeric_equal=True),
}
"""Stricter readings of recorded actions; "recorded" leaves them as they are."""

RECORDED: Final = "recorded"
_PADDINGS: Final[Mapping[str, Padding]] = {"distance": "end", "distance_unpadded": "none"}
_REMEMBERED: Final = 2**16


@dataclass(frozen=True, slots=True)
class Measure:
    """A signal under one reading of the actions."""

    name: str
    signal: str
    canonicaliser: str = RECORDED

    @property
    def padding(self) -> Padding | None:
        """Padding of a distance of actions, of which all positions come at once; None for other signals."""
        return _PADDINGS.get(self.signal)

    @property
    def definition(self) -> Signal | None:
        """The signal as gates know it; None for `char_distance`."""
        return SIGNALS.get(self.signal)

    @property
    def direction(self) -> int:
        """1: the larger the value, the likelier zero variance; -1: the smaller."""
        return self.definition.direction if self.definition is not None else -1

    def compared(self, value: float) -> float:
        """The value as it is held against tau, so that small always means zero variance."""
        return 1 - value if self.direction == 1 else value

    def gate(self, tau: float, start_step: int, check_every: int | None) -> GateConfig | None:
        """The rule that fires below tau; None if no gate can have it but through a fitted score."""
        if self.signal == CHAR_DISTANCE:
            return GateConfig(level="char", padding="none", start_step=start_step, tau=tau)
        if self.padding is None:
            return None
        return GateConfig(start_step=start_step, tau=tau, check_every=check_every, padding=self.padding)


@dataclass(frozen=True, slots=True)
class SweepGrid:
    """All that is tried. One value each is a replay of that configuration.

    Raises:
        ConfigError: a name is unknown, an axis is empty, or a position or threshold out of range.
    """

    taus: tuple[float, ...] = tuple(decimal_grid("0.01:0.30:0.01"))
    """Thresholds; a signal that points up is read as 1 - value, so that all fire strictly below tau."""
    start_steps: tuple[int, ...] = (5, 10, 15, 20)
    check_everys: tuple[int | None, ...] = (None, 5)
    """None: one check. Only distances of actions are checked again, as only they can be in a gate."""
    signals: tuple[str, ...] = tuple(name for name in SIGNALS if name != HISTORY)
    canonicalisers: tuple[str, ...] = (RECORDED,)
    """Readings of the actions under which distances are taken; `tool_distance` is "name_only"."""

    def __post_init__(self) -> None:
        for field in fields(self):
            values = tuple(dict.fromkeys(getattr(self, field.name)))
            if not values:
                raise ConfigError(f"sweep.{field.name} is empty: give at least one value")
            object.__setattr__(self, field.name, values)
        known = [name for name in (*SIGNALS, CHAR_DISTANCE) if name != HISTORY]
        _require_known("signal", self.signals, known)
        _require_known("canonicaliser", self.canonicalisers, [RECORDED, *CANONICALISERS])
        for tau in self.taus:
            for start_step in self.start_steps:
                for check_every in self.check_everys:
                    GateConfig(start_step=start_step, tau=tau, check_every=check_every)
        object.__setattr__(self, "taus", tuple(sorted(self.taus)))
        object.__setattr__(self, "start_steps", tuple(sorted(self.start_steps)))

    @property
    def is_single(self) -> bool:
        """Whether one rule is tried: a replay."""
        return all(len(getattr(self, field.name)) == 1 for field in fields(self))

    def measures(self) -> list[Measure]:
        """Every signal under every reading that makes a difference to it."""
        found: dict[tuple[str, str], Measure] = {}
        for signal in self.signals:
            if signal == "tool_distance":
                found.setdefault(("distance", "name_only"), Measure(signal, "distance", "name_only"))
            elif signal not in _PADDINGS:
                found[signal, RECORDED] = Measure(signal, signal)
            else:
                for reading in self.canonicalisers:
                    name = signal if reading == RECORDED else f"{signal}:{reading}"
                    found.setdefault((signal, reading), Measure(name, signal, reading))
        return list(found.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON output."""
        return {field.name: list(getattr(self, field.name)) for field in fields(self)}


def symbol_maker(canonicaliser: str) -> Symbol | None:
    """Make the other symbol of a recorded action, with a memory; None if it is the recorded one."""
    if canonicaliser == RECORDED:
        return None
    return lru_cache(_REMEMBERED)(partial(canonicalise, options=CANONICALISERS[canonicaliser]))


def _require_known(what: str, names: tuple[str, ...], known: list[str]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown {what} {name!r}; known ones are {', '.join(known)}")
