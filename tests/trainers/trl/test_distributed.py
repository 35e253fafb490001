"""Two processes that train together over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


def launch(model: Path, output: Path, processes: int, port: int) -> list[dict[str, Any]]:
    """What each process printed; several meet at the port."""
    script = Path(__file__).with_name("two_ranks.py")
    running = []
    for rank in range(processes):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "ACCELERATE_USE_CPU": "true",
            "PYTHONPATH": str(ROOT),
        }
        if processes > 1:
            environment |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(processes),
                "LOCAL_WORLD_SIZE": str(processes),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
        command = [sys.executable, str(script), str(model), str(output), str(processes)]
        running.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    results = []
    for process in running:
        said, _ = process.communicate(timeout=300)
        lines = [line for line in said.splitlines() if line.startswith("RESULT ")]
        assert lines, said[-3000:]
        results.append(json.loads(lines[-1][len("RESULT ") :]))
    return results


@pytest.fixture(scope="module")
def two(
    model_folder: Path, tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> tuple[list[dict[str, Any]], Path]:
    """What two processes saw, and where they wrote."""
    output = tmp_path_factory.mktemp("two")
    return launch(model_folder, output, 2, free_port()), output


@pytest.fixture(scope="module")
def one(
    model_folder: Path, tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> dict[str, Any]:
    """What one process sees that has the kept group only."""
    return launch(model_folder, tmp_path_factory.mktemp("one"), 1, free_port())[0]


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_a_group_cut_on_one_rank_is_absent_from_the_common_gradient(
    loss_type: str, two: tuple[list[dict[str, Any]], Path], one: dict[str, Any]
) -> None:
    ranks, _ = two
    assert sum(rank[loss_type]["cut"] for rank in ranks) == 1
    for rank in ranks:
        assert rank[loss_type]["gradient"] == pytest.approx(one[loss_type]["gradient"], rel=1e-3, abs=1e-6)


def test_ranks_share_totals_and_what_they_know_of_the_prompts(
    two: tuple[list[dict[str, Any]], Path],
) -> None:
    ranks, output = two
    assert ranks[0]["both"]["logged"] == 2
    assert [rank["both"]["known"] for rank in ranks] == [["0", "1", "2"]] * 2
    saved = json.loads((output / "both" / "checkpoint-2" / "selective_rollout.json").read_text())
    assert len(saved["processes"]) == 2


def test_a_layout_in_which_groups_straddle_ranks_is_refused(
    two: tuple[list[dict[str, Any]], Path],
) -> None:
    ranks, _ = two
    assert all("a group would straddle processes" in rank["refused"] for rank in ranks)
