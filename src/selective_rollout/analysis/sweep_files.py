"""Writing a sweep's files, each whole or not at all; needs the `analysis` extra."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from selective_rollout.analysis.report.sweep_view import sweep_view
from selective_rollout.analysis.sweep_plots import plot_heat_map, plot_pareto
from selective_rollout.analysis.sweep_result import SweepResult
from selective_rollout.analysis.whole_files import Writer, write_files
from selective_rollout.errors import ConfigError

DOCUMENT: Final = "sweep.json"


def require_free(folder: Path) -> None:
    """Refuse a folder that holds a sweep already.

    Raises:
        ConfigError: it does.
    """
    if (folder / DOCUMENT).exists():
        raise ConfigError(f"{folder / DOCUMENT} exists: name another folder with --out")


def write_sweep(folder: Path, result: SweepResult, document: dict[str, Any]) -> list[Path]:
    """Write the document and the pictures.

    Args:
        folder: made if it does not exist.
        result: what to draw.
        document: plain data for sweep.json.

    Returns:
        The files written.

    Raises:
        ConfigError: the folder cannot be written.
    """
    text = json.dumps(document, indent=2, allow_nan=False)
    view = sweep_view(result.report_view())
    writers: list[Writer] = [
        ("signals.png", lambda path: plot_heat_map(view, path)),
        ("pareto.png", lambda path: plot_pareto(view, path)),
        (DOCUMENT, lambda path: path.write_text(text, encoding="utf-8")),
    ]
    return write_files(folder, "sweep", writers)
