"""A sweep's results as pictures and page draw them: heat maps of signals by step, and a Pareto front.

The input is plain data, so that the report depends on no sweep: `cells`, each with "signal", "step", "auroc"
and optionally "low", "high", and in the same form `all_fail` and `all_success`, against signal-bearing groups
only; `null_95`, the AUROC that the best of as many configurations reaches by chance in 95% of label
permutations; `points`, see `Point`; `about`, what was looked at; `oracle`, {"step", "saved"} of a gate
without errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selective_rollout.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Cell:
    """How well one signal at one step tells zero variance from signal."""

    signal: str
    step: int
    auroc: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One configuration of the gate."""

    name: str
    saved: float
    """Share of all steps not generated."""
    loss: float
    """Share of the signal-bearing groups cut."""
    efficiency: float | None = None
    on_front: bool = False
    is_gate: bool = True
    """False: only a fitted score can have this rule."""
    held_out: float | None = None
    """Mean held-out reward of the groups kept."""
    on_held_out_front: bool = False


@dataclass(frozen=True, slots=True)
class Oracle:
    """A gate without errors."""

    step: int
    saved: float


@dataclass(frozen=True, slots=True)
class SweepView:
    """What there is to draw."""

    cells: tuple[Cell, ...]
    points: tuple[Point, ...]
    null_95: float | None
    all_fail: tuple[Cell, ...] = ()
    all_success: tuple[Cell, ...] = ()
    about: str = ""
    oracle: Oracle | None = None

    @property
    def signals(self) -> list[str]:
        """Signals in the order given."""
        return list(dict.fromkeys(cell.signal for cell in self.cells))

    @property
    def steps(self) -> list[int]:
        """Steps, rising."""
        return sorted({cell.step for cell in self.cells})

    def cell(self, signal: str, step: int) -> Cell | None:
        """The cell at a place of the map."""
        return next((c for c in self.cells if c.signal == signal and c.step == step), None)

    def beats_chance(self, cell: Cell) -> bool | None:
        """Whether the best of all signals looked at would rarely reach this by chance; None if unknown."""
        return None if cell.auroc is None or self.null_95 is None else cell.auroc > self.null_95


def sweep_view(values: Mapping[str, Any]) -> SweepView:
    """Read a sweep's results.

    Raises:
        ConfigError: an entry lacks a key or holds one that is not known.
    """
    null, oracle = values.get("null_95"), values.get("oracle")
    return SweepView(
        cells=_all_made(Cell, values, "cells"),
        points=_all_made(Point, values, "points"),
        null_95=None if null is None else float(null),
        all_fail=_all_made(Cell, values, "all_fail"),
        all_success=_all_made(Cell, values, "all_success"),
        about=str(values.get("about", "")),
        oracle=None if oracle is None else _made(Oracle, oracle, "oracle"),
    )


def _all_made(kind: Any, values: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    return tuple(_made(kind, entry, name) for entry in _list(values, name))


def _list(values: Mapping[str, Any], name: str) -> Sequence[Any]:
    entries = values.get(name, [])
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise ConfigError(f"sweep.{name} must be a list, not {type(entries).__name__}")
    return entries


def _made(kind: Any, entry: Any, where: str) -> Any:
    try:
        return kind(**entry)
    except TypeError as error:
        raise ConfigError(f"sweep.{where}: {entry!r} is no {kind.__name__.lower()} ({error})") from None
