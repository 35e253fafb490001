"""Pictures of a sweep; needs the `analysis` extra."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from selective_rollout.analysis.ranking import Area
from selective_rollout.analysis.sweep_result import RankedSignal, RuleResult, SweepResult
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
_PANELS: Final[Sequence[tuple[str, Callable[[RankedSignal], Area]]]] = (
    ("zero variance against signal", lambda ranked: ranked.area),
    ("all fail against signal", lambda ranked: ranked.all_fail),
    ("all succeed against signal", lambda ranked: ranked.all_success),
)
_MOST_NAMES: Final = 6


def plot_heat_map(result: SweepResult, path: Path) -> Path:
    """Draw the AUROC of every signal at every step; frames mark what the best by chance does not reach.

    Returns:
        The path of the PNG.
    """
    names = list(dict.fromkeys(ranked.measure.name for ranked in result.ranked))
    steps = sorted({ranked.step for ranked in result.ranked})
    figure = Figure(
        figsize=(4.2 + 3 * (0.5 + 0.75 * len(steps)), 2 + 0.42 * len(names)), dpi=130, layout="constrained"
    )
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3, sharey=True, squeeze=False)[0]
    for axes, (title, area_of) in zip(panels, _PANELS, strict=True):
        limit = result.chance.p95 if result.chance is not None and area_of is _PANELS[0][1] else None
        for ranked in result.ranked:
            place = (steps.index(ranked.step), names.index(ranked.measure.name))
            _draw_cell(axes, place, area_of(ranked), limit)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set(xlim=(-0.5, len(steps) - 0.5), ylim=(len(names) - 0.5, -0.5), xlabel="step")
        axes.set_xticks(range(len(steps)), steps)
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(length=0, labelsize=9)
        axes.spines[:].set_visible(False)
    account = result.nothing
    counts = (
        f"{account.all_fail} all fail, {account.all_success} all succeed, {account.signal} signal-bearing"
    )
    title = f"AUROC (95% interval over {result.tasks} tasks): {counts}"
    if result.chance is not None:
        title += (
            f"\nframed: above {result.chance.p95:.2f}, which the best of all reaches by chance 1 time in 20"
        )
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    figure.savefig(path)
    return path


def _draw_cell(axes: Any, place: tuple[int, int], area: Area, limit: float | None) -> None:
    x, y = place
    if area.value is None:
        axes.text(x, y, "unknown", ha="center", va="center", fontsize=7, color=_GREY)
        return
    framed = limit is not None and area.value > limit
    axes.add_patch(
        Rectangle(
            (x - 0.47, y - 0.45),
            0.94,
            0.9,
            facecolor=_COLOURS(area.value),
            edgecolor=_INK if framed else "none",
            linewidth=1.4,
        )
    )
    axes.text(x, y - 0.12, f"{area.value:.2f}", ha="center", va="center", fontsize=9, color=_INK)
    if area.interval is not None:
        interval = f"{area.interval.low:.2f}-{area.interval.high:.2f}"
        axes.text(x, y + 0.26, interval, ha="center", va="center", fontsize=6, color=_INK)


def plot_pareto(result: SweepResult, path: Path) -> Path:
    """Draw steps saved against signal lost, and against held-out reward where the trace has it.

    Returns:
        The path of the PNG.
    """
    held_out = [rule for rule in result.rules if rule.held_out is not None]
    panels = 2 if held_out else 1
    figure = Figure(figsize=(1 + 6.8 * panels, 5.6), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    known = [rule for rule in result.rules if rule.accounting.loss.value is not None]
    _draw_front(axes[0], known, lambda rule: rule.accounting.loss.value or 0.0, lambda rule: rule.on_front)
    oracle = result.nothing.oracle_saved or 0.0
    highest = max((rule.accounting.saved or 0.0 for rule in known), default=0.0)
    limit = max(0.05, min(1.0, 1.05 * max(highest, oracle)))
    flawless = f"a gate without errors at step {result.nothing.start_step}"
    axes[0].scatter(
        [0], [oracle], marker="*", s=90, color=_AGAINST, linewidths=0, label=flawless, clip_on=False
    )
    axes[0].legend(loc="upper left", frameon=False, fontsize=8)
    axes[0].plot([0, limit], [0, limit], color=_INK, linestyle="--", linewidth=1)
    axes[0].fill_between([0, limit], [0, limit], color=_AGAINST, alpha=0.07, linewidth=0)
    axes[0].annotate(
        "efficiency 1: below, fresh prompts are the better use of the steps",
        (0, 0),
        xytext=(0.98, 0.03),
        textcoords="axes fraction",
        ha="right",
        fontsize=8,
        color=_INK,
    )
    axes[0].set(xlim=(-0.02 * limit, limit), ylim=(-0.02 * limit, limit))
    axes[0].set(xlabel="signal-bearing groups cut", ylabel="steps not generated")
    axes[0].xaxis.set_major_formatter(PercentFormatter(1))
    if held_out:
        _draw_front(axes[1], held_out, lambda rule: rule.held_out or 0.0, lambda rule: rule.on_held_out_front)
        axes[1].set(xlabel="mean held-out reward of the groups kept", ylabel="steps not generated")
    for panel in axes:
        panel.yaxis.set_major_formatter(PercentFormatter(1))
        panel.spines[["top", "right"]].set_visible(False)
    account = result.nothing
    title = f"{len(result.rules)} rules on {account.groups} groups of {result.tasks} tasks"
    axes[0].set_title(title, loc="left", fontsize=11)
    figure.savefig(path)
    return path


def _draw_front(
    axes: Any,
    rules: Sequence[RuleResult],
    x_of: Callable[[RuleResult], float],
    on_front: Callable[[RuleResult], bool],
) -> None:
    """Draw all rules as dots, those of gates darker, and join the front."""
    for is_gate, colour in ((False, _GREY), (True, _FOR)):
        dots = [
            r for r in rules if (r.measure.gate(r.tau, r.start_step, r.check_every) is not None) is is_gate
        ]
        label = "distance rules" if is_gate else "other signals (through a fitted score only)"
        xs, ys = [x_of(rule) for rule in dots], [rule.accounting.saved or 0.0 for rule in dots]
        axes.scatter(xs, ys, s=11, color=colour, alpha=0.55, linewidths=0, label=label)
    front = sorted((rule for rule in rules if on_front(rule)), key=x_of)
    xs, ys = [x_of(rule) for rule in front], [rule.accounting.saved or 0.0 for rule in front]
    axes.plot(xs, ys, color=_INK, linewidth=1, marker="o", markersize=3, label="Pareto front")
    for rule in _apart(sorted(front, key=_efficiency, reverse=True), x_of):
        place = (x_of(rule), rule.accounting.saved or 0.0)
        axes.annotate(rule.name, place, xytext=(5, -9), textcoords="offset points", fontsize=7)
    axes.legend(loc="upper left", frameon=False, fontsize=8)


def _apart(rules: Sequence[RuleResult], x_of: Callable[[RuleResult], float]) -> list[RuleResult]:
    """The first few rules whose names do not get into each other's way."""
    xs, ys = [x_of(rule) for rule in rules], [rule.accounting.saved or 0.0 for rule in rules]
    width, height = max(xs, default=0.0) - min(xs, default=0.0), max(ys, default=0.0)
    named: list[int] = []
    for i in range(len(rules)):
        clear = all(abs(xs[i] - xs[j]) > 0.3 * width or abs(ys[i] - ys[j]) > 0.06 * height for j in named)
        if clear and len(named) < _MOST_NAMES:
            named.append(i)
    return [rules[i] for i in named]


def _efficiency(rule: RuleResult) -> float:
    return rule.accounting.efficiency or 0.0
