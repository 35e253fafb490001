"""Distances that were computed elsewhere: a CSV with columns group, step, distance, zero_variance."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Final

from selective_rollout.analysis.sample import Unit
from selective_rollout.errors import TraceError

COLUMNS: Final = ("group", "step", "distance", "zero_variance")

# Tables that hold an unknown label or step write the others as floats.
_LABELS: Final = {
    **{"1": True, "1.0": True, "true": True},
    **{"0": False, "0.0": False, "false": False},
    **{"": None, "nan": None},
}


def read_scores(path: Path, step: int) -> tuple[list[Unit], int]:
    """Read the groups' distances at one step; each group counts as a task of its own.

    An empty distance is one that no tau cuts, an empty label an unknown one.

    Returns:
        The labelled groups, in file order, and the number of groups left out because their label is unknown.

    Raises:
        TraceError: file:line of what cannot be read, a missing column, a group twice, or a step without rows.
    """
    units: list[Unit] = []
    steps: set[int] = set()
    groups: set[str] = set()
    unknown = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, strict=True)
            missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise TraceError(f"{path}:1: no column {', '.join(missing)}; needed are {', '.join(COLUMNS)}")
            for row in rows:
                where = f"{path}:{rows.line_num}"
                at = _step(where, row["step"])
                steps.add(at)
                if at != step:
                    continue
                group = row["group"]
                if group in groups:
                    raise TraceError(f"{where}: group {group!r} has a second row for step {step}")
                groups.add(group)
                label = _label(where, row["zero_variance"])
                if label is None:
                    unknown += 1
                else:
                    units.append(_unit(where, group, row["distance"], label))
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot read the scores ({error})") from None
    if not groups:
        known = ", ".join(map(str, sorted(steps))) or "none"
        raise TraceError(f"{path}: no rows for step {step}; steps in the file: {known}")
    return units, unknown


def _unit(where: str, group: str, text: str | None, label: bool) -> Unit:
    if text is None or not text.strip():
        return Unit(group, label, (), 0)
    try:
        distance = float(text)
    except ValueError:
        distance = math.nan
    if not 0 <= distance <= 1:
        raise TraceError(f"{where}: distance {text!r} is not a number from 0 to 1")
    return Unit(group, label, ((distance, 0),), 0)


def _step(where: str, text: str | None) -> int:
    try:
        return int((text or "").removesuffix(".0"))
    except ValueError:
        raise TraceError(f"{where}: step {text!r} is not a whole number") from None


def _label(where: str, text: str | None) -> bool | None:
    name = (text or "").strip().lower()
    if name not in _LABELS:
        raise TraceError(f"{where}: zero_variance {text!r} must be 0, 1, true, false or empty")
    return _LABELS[name]
