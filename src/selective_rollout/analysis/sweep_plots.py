"""Pictures of a sweep; needs the `analysis` extra."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from selective_rollout.analysis.report.sweep_view import Cell, Point, SweepView
from selective_rollout.errors import MissingExtraError

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import PercentFormatter
except ImportError:
    raise MissingExtraError("analysis", "matplotlib") from None

_INK: Final = "#222222"
_GREY: Final = "#9aa3ad"
_AGAINST: Final = "#c1553b"
_FOR: Final = "#2f7f6f"
_COLOURS: Final = LinearSegmentedColormap.from_list("areas", [_AGAINST, "#f7f5f2", _FOR])
_MOST_NAMES: Final = 6


def plot_heat_map(view: SweepView, path: Path) -> Path:
    """Draw the AUROC of every signal at every step; frames mark what the best by chance does not reach.

    Returns:
        The path of the PNG.
    """
    shown = [
        (title, cells)
        for title, cells in (
            ("zero variance against signal", view.cells),
            ("all fail against signal", view.all_fail),
            ("all succeed against signal", view.all_success),
        )
        if cells
    ]
    names, steps = view.signals, view.steps
    width, height = 4.2 + len(shown) * (0.5 + 0.75 * len(steps)), 2 + 0.42 * len(names)
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, (title, cells) in zip(panels, shown, strict=True):
        for cell in cells:
            framed = cells is view.cells and bool(view.beats_chance(cell))
            _draw_cell(axes, (steps.index(cell.step), names.index(cell.signal)), cell, framed)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set(xlim=(-0.5, len(steps) - 0.5), ylim=(len(names) - 0.5, -0.5), xlabel="step")
        axes.set_xticks(range(len(steps)), steps)
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(length=0, labelsize=9)
        axes.spines[:].set_visible(False)
    title = "AUROC (95% interval over tasks)" + (f": {view.about}" if view.about else "")
    if view.null_95 is not None:
        title += f"\nframed: above {view.null_95:.2f}, which the best of all reaches by chance 1 time in 20"
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    figure.savefig(path)
    return path


def _draw_cell(axes: Any, place: tuple[int, int], cell: Cell, framed: bool) -> None:
    x, y = place
    if cell.auroc is None:
        axes.text(x, y, "unknown", ha="center", va="center", fontsize=7, color=_GREY)
        return
    axes.add_patch(
        Rectangle(
            (x - 0.47, y - 0.45),
            0.94,
            0.9,
            facecolor=_COLOURS(cell.auroc),
            edgecolor=_INK if framed else "none",
            linewidth=1.4,
        )
    )
    axes.text(x, y - 0.12, f"{cell.auroc:.2f}", ha="center", va="center", fontsize=9, color=_INK)
    if cell.low is not None and cell.high is not None:
        interval = f"{cell.low:.2f}-{cell.high:.2f}"
        axes.text(x, y + 0.26, interval, ha="center", va="center", fontsize=6, color=_INK)


def plot_pareto(view: SweepView, path: Path) -> Path:
    """Draw steps saved against signal lost, and against held-out reward where the trace has it.

    Returns:
        The path of the PNG.
    """
    held_out = [point for point in view.points if point.held_out is not None]
    panels = 2 if held_out else 1
    figure = Figure(figsize=(1 + 6.8 * panels, 5.6), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    _draw_front(axes[0], view.points, lambda point: point.loss, lambda point: point.on_front)
    _draw_worth(axes[0], view)
    if held_out:
        _draw_front(
            axes[1], held_out, lambda point: point.held_out or 0.0, lambda point: point.on_held_out_front
        )
        axes[1].set(xlabel="mean held-out reward of the groups kept", ylabel="steps not generated")
    for panel in axes:
        panel.yaxis.set_major_formatter(PercentFormatter(1))
        panel.spines[["top", "right"]].set_visible(False)
    title = f"{len(view.points):,} rules" + (f" on {view.about}" if view.about else "")
    axes[0].set_title(title, loc="left", fontsize=11)
    figure.savefig(path)
    return path


def _draw_worth(axes: Any, view: SweepView) -> None:
    """Draw what no gate can reach, and where a gate is worth no more than fresh prompts."""
    flawless = 0.0 if view.oracle is None else view.oracle.saved
    highest = max((point.saved for point in view.points), default=0.0)
    limit = max(0.05, min(1.0, 1.05 * max(highest, flawless)))
    if view.oracle is not None:
        label = f"a gate without errors at step {view.oracle.step}"
        axes.scatter(
            [0], [flawless], marker="*", s=90, color=_AGAINST, linewidths=0, label=label, clip_on=False
        )
        axes.legend(loc="upper left", frameon=False, fontsize=8)
    axes.plot([0, limit], [0, limit], color=_INK, linestyle="--", linewidth=1)
    axes.fill_between([0, limit], [0, limit], color=_AGAINST, alpha=0.07, linewidth=0)
    axes.annotate(
        "efficiency 1: below, fresh prompts are the better use of the steps",
        (0, 0),
        xytext=(0.98, 0.03),
        textcoords="axes fraction",
        ha="right",
        fontsize=8,
        color=_INK,
    )
    axes.set(xlim=(-0.02 * limit, limit), ylim=(-0.02 * limit, limit))
    axes.set(xlabel="signal-bearing groups cut", ylabel="steps not generated")
    axes.xaxis.set_major_formatter(PercentFormatter(1))


def _draw_front(
    axes: Any,
    points: Sequence[Point],
    x_of: Callable[[Point], float],
    on_front: Callable[[Point], bool],
) -> None:
    """Draw all rules as dots, those of gates darker, and join the front."""
    for is_gate, colour in ((False, _GREY), (True, _FOR)):
        dots = [point for point in points if point.is_gate is is_gate]
        label = "distance rules" if is_gate else "other signals (through a fitted score only)"
        xs, ys = [x_of(point) for point in dots], [point.saved for point in dots]
        axes.scatter(xs, ys, s=11, color=colour, alpha=0.55, linewidths=0, label=label)
    front = sorted((point for point in points if on_front(point)), key=x_of)
    xs, ys = [x_of(point) for point in front], [point.saved for point in front]
    axes.plot(xs, ys, color=_INK, linewidth=1, marker="o", markersize=3, label="Pareto front")
    for point in _apart(sorted(front, key=lambda point: point.efficiency or 0.0, reverse=True), x_of):
        place = (x_of(point), point.saved)
        axes.annotate(point.name, place, xytext=(5, -9), textcoords="offset points", fontsize=7)
    axes.legend(loc="upper left", frameon=False, fontsize=8)


def _apart(points: Sequence[Point], x_of: Callable[[Point], float]) -> list[Point]:
    """The first few rules whose names do not get into each other's way."""
    xs, ys = [x_of(point) for point in points], [point.saved for point in points]
    width, height = max(xs, default=0.0) - min(xs, default=0.0), max(ys, default=0.0)
    named: list[int] = []
    for i in range(len(points)):
        clear = all(abs(xs[i] - xs[j]) > 0.3 * width or abs(ys[i] - ys[j]) > 0.06 * height for j in named)
        if clear and len(named) < _MOST_NAMES:
            named.append(i)
    return [points[i] for i in named]
