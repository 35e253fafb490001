"""A report's files: whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from selective_rollout.analysis.report import files
from selective_rollout.analysis.report.collect import ReportData, collect
from selective_rollout.analysis.report.files import write_report
from selective_rollout.analysis.report.html import Extras, render_page, title_of
from selective_rollout.analysis.report.population import NamedGate
from selective_rollout.analysis.report.sweep_view import sweep_view
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.trace.recorder import Recorder

SWEEP = {
    "cells": [
        {"signal": "distance", "step": 10, "auroc": 0.7},
        {"signal": "novelty", "step": 5, "auroc": 0.4},
    ],
    "points": [
        {"name": "<em>tau</em>", "saved": 0.1, "loss": 0.05, "on_front": True},
        {"name": "y", "saved": 0.05, "loss": 0.2},
    ],
    "null_95": 0.65,
}
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    path = tmp_path_factory.mktemp("trace") / "a <em>bold<em> name.jsonl"
    with Recorder(path) as recorder, recorder.group("</script><em>", size=2) as group:
        for index in (0, 1):
            group.step(index, "<i>go</i>")
            group.finish(index, reward=0.0, answer="x")
    return collect([path], [NamedGate("<u>mine</u>", GateConfig(start_step=1))])


def test_page_document_and_pictures_are_written(data: ReportData, tmp_path: Path) -> None:
    written = write_report(tmp_path / "out", data, Extras(sweep=sweep_view(SWEEP)), {"a": 1})
    names = [path.name for path in written]
    assert names == ["report.html", "report.json", "distance.png", "signals.png", "pareto.png"]
    assert sorted(names) == sorted(path.name for path in (tmp_path / "out").iterdir())
    assert all(path.read_bytes().startswith(PNG) for path in written[2:])


def test_without_a_sweep_there_are_no_pictures_of_one(data: ReportData, tmp_path: Path) -> None:
    names = [path.name for path in write_report(tmp_path, data, Extras(), {})]
    assert names == ["report.html", "report.json", "distance.png"]


def test_a_failure_midway_leaves_the_old_file_and_nothing_half_written(
    data: ReportData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(tmp_path, data, Extras(), {})
    before = (tmp_path / "distance.png").read_bytes()

    def half(path: Path, *_: object, **__: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "plot_distances", lambda *_, path, **__: half(path))
    with pytest.raises(ConfigError, match=r"No space left on device.*another --out"):
        write_report(tmp_path, data, Extras(), {})
    assert (tmp_path / "distance.png").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 3


def test_names_from_outside_are_escaped(data: ReportData) -> None:
    page = render_page(data, Extras(sweep=sweep_view(SWEEP), certificate={"text": "<em>sure</em>"}))
    for markup in ("<i>", "<u>", "<em>"):
        assert markup not in page
    assert page.count("</script>") == 2
    assert title_of(data) == "a <em>bold<em> name.jsonl"


def test_the_page_needs_nothing_from_elsewhere(data: ReportData) -> None:
    page = render_page(data)
    for outside in ("http://", "https://", "<link", "@import", "src=", "url("):
        assert outside not in page.replace("http://www.w3.org/2000/svg", "")
