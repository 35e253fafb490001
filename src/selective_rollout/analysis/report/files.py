"""Writing a report's files, each whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from selective_rollout.analysis.curve import GroupLine
from selective_rollout.analysis.plots import plot_distances
from selective_rollout.analysis.report.collect import ReportData
from selective_rollout.analysis.report.html import Extras, render_page, title_of
from selective_rollout.analysis.sweep_plots import plot_heat_map, plot_pareto
from selective_rollout.analysis.whole_files import Writer, write_files

MOST_LINES: Final = 2000
"""Groups drawn in a picture; more would be one grey block."""


def write_report(folder: Path, data: ReportData, extras: Extras, document: dict[str, Any]) -> list[Path]:
    """Write the page, the document and the pictures.

    Every file is complete before it takes the place of an older one.

    Args:
        folder: made if it does not exist.
        data: what was collected.
        extras: results of other commands.
        document: plain data for report.json.

    Returns:
        The files written, the page first.

    Raises:
        ConfigError: the folder cannot be written.
    """
    page = render_page(data, extras)
    text = json.dumps(document, indent=2, allow_nan=False)
    writers: list[Writer] = [
        ("report.html", lambda path: path.write_text(page, encoding="utf-8")),
        ("report.json", lambda path: path.write_text(text, encoding="utf-8")),
        ("distance.png", lambda path: _draw_distances(data, path)),
    ]
    sweep = extras.sweep
    if sweep is not None and sweep.cells:
        writers.append(("signals.png", lambda path: plot_heat_map(sweep, path)))
    if sweep is not None and sweep.points:
        writers.append(("pareto.png", lambda path: plot_pareto(sweep, path)))
    return write_files(folder, "report", writers)


def _draw_distances(data: ReportData, path: Path) -> Path:
    rule = data.gates[0].rule
    lines = [
        GroupLine(
            [float("nan") if distance is None else distance for distance in row.timeline.distances],
            "unknown" if row.kind == "stopped" else row.kind,
            row.cuts[0],
        )
        for row in data.rows[:MOST_LINES]
    ]
    title = f"{title_of(data)}: distance over steps, {len(lines):,} groups"
    return plot_distances(lines, tau=rule.tau, start_step=rule.start_step, title=title, path=path)
