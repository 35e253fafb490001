"""Pictures of recorded groups; needs the `analysis` extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from selective_rollout.analysis.curve import GroupLine
from selective_rollout.errors import MissingExtraError

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
except ImportError:
    raise MissingExtraError("analysis", "matplotlib") from None

_COLOURS: Final = {
    "all_fail": "#c1553b",
    "all_success": "#2f7f6f",
    "constant": "#7a6fa8",
    "mixed": "#9aa3ad",
    "unknown": "#d9c56f",
}
_SPREAD: Final = (0.0, -0.12, 0.12, -0.24, 0.24, -0.36, 0.36)
"""Sideways offsets, in steps, of marks at one step."""
_NAMES: Final = {
    "all_fail": "all fail (zero variance)",
    "all_success": "all succeed (zero variance)",
    "constant": "equal in between (zero variance)",
    "mixed": "mixed (signal-bearing)",
    "unknown": "unknown",
}


def plot_distances(
    lines: Sequence[GroupLine], *, tau: float, start_step: int, title: str, path: Path
) -> Path:
    """Draw distance over steps, one line a group, against tau; wrong cuts are marked.

    A group without a single step has no line: all its rollouts failed at once, or were cut inside the first.

    Returns:
        The path of the PNG.
    """
    figure = Figure(figsize=(9.5, 5.6), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    longest = max((len(line.distances) for line in lines), default=0) or start_step
    faint = max(0.18, min(0.8, 30 / (len(lines) + 1)))
    for kind in ("mixed", "unknown", "constant", "all_fail", "all_success"):
        _draw_kind(axes, [line for line in lines if line.kind == kind], kind, faint)
    _draw_gate(axes, tau, start_step, longest)
    _draw_cuts(axes, lines)
    axes.set(xlim=(0.5, longest + 0.5), ylim=(-0.03, 1.03), xlabel="step k", ylabel="mean pairwise distance")
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        handles=_legend(lines),
        loc="upper center",
        bbox_to_anchor=(0.5, -0.12),
        ncols=3,
        frameon=False,
        fontsize=9,
    )
    figure.savefig(path)
    return path


def _draw_kind(axes: Any, lines: Sequence[GroupLine], kind: str, faint: float) -> None:
    for is_cut, alpha, width in ((False, faint, 0.9), (True, 0.85, 1.3)):
        segments = [
            [(k, d) for k, d in enumerate(line.distances, start=1)]
            for line in lines
            if line.distances and (line.cut_at is not None) is is_cut
        ]
        collection = LineCollection(segments, colors=_COLOURS[kind], linewidths=width, alpha=alpha)
        axes.add_collection(collection)


def _draw_gate(axes: Any, tau: float, start_step: int, longest: int) -> None:
    axes.plot([start_step, longest + 0.5], [tau, tau], color="#222222", linewidth=1.2, linestyle="--")
    axes.axvline(start_step, color="#222222", linewidth=0.8, linestyle=":")
    axes.annotate(
        f"tau = {tau:g}",
        (longest + 0.4, tau),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    axes.annotate(
        f"start_step {start_step}", (start_step, 1.0), xytext=(4, 0), textcoords="offset points", fontsize=9
    )


def _draw_cuts(axes: Any, lines: Sequence[GroupLine]) -> None:
    """Mark each cut; cuts at one step are spread sideways, by rank of distance, so that all can be seen."""
    for wrong, marker, size, colour in ((False, "o", 9, "#222222"), (True, "X", 42, "#d40000")):
        points = sorted(
            (line.cut_at, line.distances[line.cut_at - 1])
            for line in lines
            if line.cut_at is not None
            and line.cut_at <= len(line.distances)
            and (line.kind == "mixed") is wrong
        )
        if points:
            xs = [k + _SPREAD[rank % len(_SPREAD)] for rank, (k, _) in enumerate(points)]
            ys = [distance for _, distance in points]
            axes.scatter(xs, ys, marker=marker, s=size, color=colour, zorder=3, linewidths=0)


def _legend(lines: Sequence[GroupLine]) -> list[Any]:
    kinds = [kind for kind in _COLOURS if any(line.kind == kind for line in lines)]
    handles: list[Any] = [
        Line2D(
            [], [], color=_COLOURS[kind], label=f"{_NAMES[kind]}: {sum(line.kind == kind for line in lines)}"
        )
        for kind in kinds
    ]
    wrong = sum(line.kind == "mixed" for line in lines if line.cut_at is not None)
    right = sum(line.cut_at is not None for line in lines) - wrong
    handles.append(
        Line2D([], [], marker="o", color="#222222", linestyle="", markersize=4, label=f"cut, right: {right}")
    )
    handles.append(Line2D([], [], marker="X", color="#d40000", linestyle="", label=f"cut, wrong: {wrong}"))
    return handles
