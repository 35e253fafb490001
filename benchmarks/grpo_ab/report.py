"""Tables and figures of the comparison; what is not known is said so."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

_NAMES: Final = {
    "none": "no gate",
    "paper": "paper's gate",
    "calibrated": "calibrated",
    "history": "calibrated + history",
}
_COLOURS: Final = {"none": "#6b7280", "paper": "#d97706", "calibrated": "#2563eb", "history": "#059669"}
_WEIGHTS: Final = {"none": 7.0, "paper": 2.5, "calibrated": 4.5, "history": 2.0}
"""Line widths: arms whose gate stays off coincide, and each must remain visible."""
_T_95: Final = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365}
"""Two-sided 95% quantiles of Student's t by degrees of freedom."""

Run = Mapping[str, Any]


def report(document: Mapping[str, Any], folder: Path) -> str:
    """Draw the figures into the folder and return the table as Markdown."""
    seeds = document["seeds"]
    runs = {arm: [_run(seed, arm) for seed in seeds] for arm in _NAMES}
    _draw_tokens(runs, folder / "grpo-ab-tokens.png")
    _draw_success(runs, seeds, folder / "grpo-ab-success.png")
    _draw_groups(runs, folder / "grpo-ab-groups.png")
    _draw_dilution(runs["none"], folder / "grpo-ab-dilution.png")
    text = _table(runs, seeds) + "\n\n" + _notes(runs, document) + "\n"
    (folder / "table.md").write_text(text, encoding="utf-8")
    return text


def _table(runs: Mapping[str, Sequence[Run]], seeds: Sequence[Mapping[str, Any]]) -> str:
    rows: list[tuple[str, Callable[[str], str]]] = [
        ("tokens generated, relative to no gate", lambda arm: _relative(runs, arm, "tokens")),
        ("steps, relative to no gate", lambda arm: _relative(runs, arm, "steps")),
        ("CPU time of sampling, relative", lambda arm: _relative(runs, arm, "seconds_sampling")),
        ("seeds in which a gate was certified", lambda arm: _certified(seeds, arm)),
        ("groups skipped / cut / flat / signal-bearing", lambda arm: _groups(runs[arm])),
        ("cuts wrong, of those audited", lambda arm: _audited(runs[arm])),
        ("signal-bearing groups per step, relative", lambda arm: _yield(runs, arm)),
        ("gradient norm, relative", lambda arm: _relative(runs, arm, "gradient_norm")),
        ("held-out success after training", lambda arm: _share(runs[arm])),
        ("difference from no gate", lambda arm: _difference(runs, arm)),
    ]
    head = ["", *_NAMES.values()]
    lines = [_line(head), _line(["---"] * len(head))]
    lines += [_line([name, *(value(arm) for arm in _NAMES)]) for name, value in rows]
    before = _t_interval([100 * _rate(seed["before"]) for seed in seeds], ".1f")
    return "\n".join(lines) + f"\n\nBefore training, held-out success is {before} %."


def _notes(runs: Mapping[str, Sequence[Run]], document: Mapping[str, Any]) -> str:
    setting = document["setting"]
    updates = setting["epochs"] * setting["tasks"] // setting["prompts"]
    points = [pair for run in runs["none"] for pair in run["dilution"]]
    said = (
        f"measured / predicted growth of the gradient, {len(points)} updates: "
        f"median {sorted(b / a for a, b in points)[len(points) // 2]:.2f}"
        if points
        else "no update had a would-be cut to measure the gradient's growth on"
    )
    return (
        f"{len(document['seeds'])} seeds, {updates} updates of {setting['prompts']} prompts x "
        f"{setting['group_size']} rollouts, {setting['tasks']} prompts x {setting['epochs']} epochs; "
        f"{document['minutes']:.0f} minutes. Intervals: 95%, Student's t over seeds.\n"
        f"Calibration on the starting policies: {_verdicts(document, 'calibrated')}; with history: "
        f"{_verdicts(document, 'history')}.\n{said}."
    )


def _verdicts(document: Mapping[str, Any], name: str) -> str:
    counted = Counter(seed["rules"][name]["verdict"] for seed in document["seeds"])
    return ", ".join(f"{verdict.replace('_', ' ')} {count} times" for verdict, count in counted.most_common())


def _certified(seeds: Sequence[Mapping[str, Any]], arm: str) -> str:
    if arm in ("none", "paper"):
        return "" if arm == "none" else "none, enforced all the same"
    return f"{sum(seed['rules'][arm]['gate'] == 'on' for seed in seeds)} of {len(seeds)}"


def _relative(runs: Mapping[str, Sequence[Run]], arm: str, name: str) -> str:
    if arm == "none":
        return "1"
    pairs = [(_total(a, name), _total(b, name)) for a, b in zip(runs[arm], runs["none"], strict=True)]
    return _t_interval([a / b for a, b in pairs if b])


def _yield(runs: Mapping[str, Sequence[Run]], arm: str) -> str:
    if arm == "none":
        return "1"

    def per_step(run: Run) -> float:
        return sum(signal for signal, _, _ in run["groups"]) / _total(run, "steps")

    pairs = [(per_step(a), per_step(b)) for a, b in zip(runs[arm], runs["none"], strict=True)]
    return _t_interval([a / b for a, b in pairs if b])


def _t_interval(values: Sequence[float], form: str = ".3f") -> str:
    if not values:
        return "unknown"
    half = _half_width(values)
    centre = mean(values)
    said = f"{centre:{form}}"
    return said if half is None else f"{said} [{centre - half:{form}}, {centre + half:{form}}]"


def _half_width(values: Sequence[float]) -> float | None:
    """Of the 95% interval of the mean; None: one value tells nothing of its spread."""
    if len(values) < 2:
        return None
    return _T_95[len(values) - 1] * stdev(values) / math.sqrt(len(values))


def _groups(runs: Sequence[Run]) -> str:
    signal, flat, cut = (sum(counts[i] for run in runs for counts in run["groups"]) for i in range(3))
    skipped = sum(run["meter"].get("gate/skipped", 0) for run in runs)
    return f"{skipped:.0f} / {cut} / {flat} / {signal}"


def _audited(runs: Sequence[Run]) -> str:
    counted = [(run["audited"]["wrong"], run["audited"]["all"]) for run in runs if run["audited"]]
    every = sum(n for _, n in counted)
    return f"{sum(wrong for wrong, _ in counted)} of {every}" if every else "unknown"


def _share(runs: Sequence[Run]) -> str:
    return _t_interval(_shares(runs), ".1f") + " %"


def _difference(runs: Mapping[str, Sequence[Run]], arm: str) -> str:
    if arm == "none":
        return ""
    gains = [a - b for a, b in zip(_shares(runs[arm]), _shares(runs["none"]), strict=True)]
    return _t_interval(gains, "+.1f") + " points"


def _shares(runs: Sequence[Run]) -> list[float]:
    """Held-out success after training in percent, by seed."""
    return [100 * _rate(run["successes"]) for run in runs]


def _rate(counts: Sequence[tuple[int, int]]) -> float:
    return sum(hits for hits, _ in counts) / sum(trials for _, trials in counts)


def _total(run: Run, name: str) -> float:
    value = run[name]
    return float(value if isinstance(value, (int, float)) else sum(value))


def _run(seed: Mapping[str, Any], arm: str) -> Run:
    return next(run for run in seed["runs"] if run["arm"] == arm)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _draw_tokens(runs: Mapping[str, Sequence[Run]], path: Path) -> None:
    figure, axes = _axes("Tokens generated while training", "update", "thousand tokens, all updates so far")
    for arm, its in runs.items():
        sums = [_running(run["tokens"]) for run in its]
        middle = [mean(values) / 1000 for values in zip(*sums, strict=True)]
        axes.plot(range(1, len(middle) + 1), middle, color=_COLOURS[arm], label=_NAMES[arm], lw=_WEIGHTS[arm])
        for one in sums:
            axes.plot(range(1, len(one) + 1), [v / 1000 for v in one], color=_COLOURS[arm], alpha=0.2, lw=0.8)
    _legend_below(axes)
    _save(figure, path)


def _draw_success(runs: Mapping[str, Sequence[Run]], seeds: Sequence[Mapping[str, Any]], path: Path) -> None:
    figure, axes = _axes(
        "Held-out success, with 95% intervals, against tokens spent",
        "thousand tokens per seed",
        "held-out success, %",
    )
    for arm, its in runs.items():
        shares, half = _shares(its), _half_width(_shares(its))
        spent = mean(_total(run, "tokens") for run in its) / 1e3
        axes.errorbar(
            [spent],
            [mean(shares)],
            yerr=half,
            fmt="o",
            ms=4 + 2 * _WEIGHTS[arm],
            capsize=4,
            color=_COLOURS[arm],
        )
        axes.scatter([], [], color=_COLOURS[arm], label=_NAMES[arm])
    before = mean(100 * _rate(seed["before"]) for seed in seeds)
    axes.axhline(before, color="#9ca3af", ls="--", lw=1, label="before training")
    axes.margins(x=0.2)
    _legend_below(axes)
    _save(figure, path)


def _draw_groups(runs: Mapping[str, Sequence[Run]], path: Path) -> None:
    figure, axes = _axes("What became of the prompts drawn", "", "share of prompts, %")
    parts = (("skipped", "#e5e7eb"), ("cut", "#d97706"), ("flat", "#9ca3af"), ("signal-bearing", "#2563eb"))
    for place, its in enumerate(runs.values()):
        signal, flat, cut = (sum(counts[i] for run in its for counts in run["groups"]) for i in range(3))
        skipped = sum(run["meter"].get("gate/skipped", 0) for run in its)
        every, bottom = signal + flat + cut + skipped, 0.0
        for (name, colour), count in zip(parts, (skipped, cut, flat, signal), strict=True):
            height = 100 * count / every
            axes.bar(
                place, height, bottom=bottom, color=colour, label=name if place == 0 else None, width=0.65
            )
            bottom += height
    axes.set_xticks(range(len(runs)), [_NAMES[arm] for arm in runs])
    _legend_below(axes)
    _save(figure, path)


def _draw_dilution(runs: Sequence[Run], path: Path) -> None:
    figure, axes = _axes(
        "How much larger the gradient is without the would-be cuts",
        "expected, if the cuts carried no gradient",
        "measured, by update",
    )
    points = [pair for run in runs for pair in run["dilution"]]
    axes.scatter([a for a, _ in points], [b for _, b in points], s=14, color="#2563eb", alpha=0.5, lw=0)
    low, high = (pick([1.0, *(side for pair in points for side in pair)]) for pick in (min, max))
    axes.plot([low, high], [low, high], color="#6b7280", lw=1, ls="--", label="as expected")
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(2))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} x"))
        axis.set_minor_locator(NullLocator())
    _legend_below(axes)
    _save(figure, path)


def _running(values: Sequence[float]) -> list[float]:
    total, sums = 0.0, []
    for value in values:
        total += value
        sums.append(total)
    return sums


def _axes(title: str, x: str, y: str) -> tuple[Any, Any]:
    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    axes.set_title(title, loc="left", fontsize=12)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e7eb", lw=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _legend_below(axes: Any) -> None:
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=130)
    plt.close(figure)
