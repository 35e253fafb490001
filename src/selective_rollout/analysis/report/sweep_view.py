"""A sweep's results as the report draws them: a heat map of signals by step, and a Pareto front.

The input is plain data, so that the report depends on no sweep: `cells`, each with "signal", "step", "auroc"
and optionally "low", "high"; `null_95`, the AUROC that the best of as many configurations reaches by chance
in 95% of label permutations; `points`, each with "name", "saved", "loss", "efficiency" and "on_front".
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


@dataclass(frozen=True, slots=True)
class SweepView:
    """What there is to draw."""

    cells: tuple[Cell, ...]
    points: tuple[Point, ...]
    null_95: float | None

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
    null = values.get("null_95")
    return SweepView(
        cells=tuple(_made(Cell, entry, "cells") for entry in _list(values, "cells")),
        points=tuple(_made(Point, entry, "points") for entry in _list(values, "points")),
        null_95=None if null is None else float(null),
    )


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
