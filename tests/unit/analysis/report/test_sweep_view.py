"""Results of a sweep, read from plain data."""

from __future__ import annotations

import pytest

from selective_rollout.analysis.report.sweep_view import Cell, sweep_view
from selective_rollout.errors import ConfigError

CELLS = [{"signal": "d", "step": 10, "auroc": 0.8}, {"signal": "n", "step": 5, "auroc": None}]


def test_cells_are_found_by_place() -> None:
    view = sweep_view({"cells": CELLS, "null_95": 0.75})
    assert (view.signals, view.steps) == (["d", "n"], [5, 10])
    assert view.cell("d", 10) == Cell("d", 10, 0.8)
    assert view.cell("d", 5) is None


def test_chance_is_what_the_best_of_all_reaches() -> None:
    view = sweep_view({"cells": CELLS, "null_95": 0.75})
    assert [view.beats_chance(cell) for cell in view.cells] == [True, None]
    assert sweep_view({"cells": CELLS}).beats_chance(view.cells[0]) is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"cells": {}}, "sweep.cells must be a list, not dict"),
        ({"cells": [{"signal": "d"}]}, "is no cell"),
        ({"points": [{"name": "x", "saved": 1, "loss": 0, "colour": 1}]}, "is no point"),
        ({"points": [1]}, "is no point"),
    ],
)
def test_anything_else_is_named(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sweep_view(values)
