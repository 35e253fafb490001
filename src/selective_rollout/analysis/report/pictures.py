"""Pictures of a sweep: signals by step, and steps saved against signal lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selective_rollout.analysis.report.sweep_view import Point, SweepView
from selective_rollout.errors import MissingExtraError

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter
except ImportError:
    raise MissingExtraError("analysis", "matplotlib") from None


def draw_heat_map(view: SweepView, path: Path) -> Path:
    """Draw the AUROC of every signal at every step; 0.5, chance, is white.

    Returns:
        The path of the PNG.
    """
    signals, steps = view.signals, view.steps
    figure, axes = _figure(max(5.0, 2.6 + 0.9 * len(steps)), 1.6 + 0.42 * len(signals))
    cells = [[view.cell(signal, step) for step in steps] for signal in signals]
    values = [
        [cell.auroc if cell is not None and cell.auroc is not None else float("nan") for cell in row]
        for row in cells
    ]
    axes.imshow(values, cmap="BrBG", vmin=0, vmax=1, aspect="auto")
    for row, of_signal in enumerate(cells):
        for column, cell in enumerate(of_signal):
            if cell is not None and cell.auroc is not None:
                weight = "bold" if view.beats_chance(cell) else "normal"
                axes.text(
                    column, row, f"{cell.auroc:.2f}", ha="center", va="center", weight=weight, fontsize=9
                )
    axes.set_xticks(range(len(steps)), [f"step {step}" for step in steps])
    axes.set_yticks(range(len(signals)), signals)
    axes.tick_params(length=0)
    axes.set_title("AUROC: zero variance against signal", loc="left", fontsize=10)
    if view.null_95 is not None:
        chance = f"bold: above {view.null_95:.2f}, which the best of all reaches by chance"
        axes.set_xlabel(chance, fontsize=8, color="#5a626b")
    axes.spines[:].set_visible(False)
    figure.savefig(path)
    return path


def draw_pareto(points: Sequence[Point], path: Path) -> Path:
    """Draw configurations by steps saved and signal lost, the undominated ones joined.

    Returns:
        The path of the PNG.
    """
    figure, axes = _figure(7.2, 4.4)
    others = [point for point in points if not point.on_front]
    front = sorted((point for point in points if point.on_front), key=lambda point: point.saved)
    axes.scatter([p.saved for p in others], [p.loss for p in others], s=18, color="#9aa3ad", linewidths=0)
    axes.plot([p.saved for p in front], [p.loss for p in front], color="#1f5f94", marker="o", markersize=5)
    for point in front:
        axes.annotate(
            point.name,
            (point.saved, point.loss),
            xytext=(6, -3),
            textcoords="offset points",
            fontsize=8,
            color="#5a626b",
        )
    axes.set(
        xlabel="steps not generated", ylabel="signal-bearing groups lost", xlim=(0, None), ylim=(0, None)
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
    return path


def _figure(width: float, height: float) -> tuple[Any, Any]:
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()
