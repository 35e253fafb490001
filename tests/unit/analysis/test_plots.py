"""The picture of distances over steps."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from selective_rollout.analysis.plots import GroupLine, plot_distances


def test_groups_without_a_step_have_no_line(tmp_path: Path) -> None:
    lines = [GroupLine([], "unknown", None), GroupLine([0.5, 0.4], "mixed", None), GroupLine([], "mixed", 1)]
    path = plot_distances(lines, tau=0.12, start_step=2, title="some", path=tmp_path / "picture.png")
    assert path.read_bytes().startswith(b"\x89PNG")
