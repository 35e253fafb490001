"""Every example runs as it stands, without network or key, and says what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from selective_rollout.errors import PrerequisiteError
from selective_rollout.testing.weights import fetch_weights

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

EXPECTED = {
    "quickstart.py": [
        "step 4: distance 0.000, gate says fired",
        "step 4: distance 0.458, gate says distance",
        "-> stop the group",
        "-> let it run",
    ],
    "own_loop.py": [
        "prompt-8  distance 0.00  cut   mixed",
        "would-be cuts: 10 (8 right, 2 wrong)",
        "missed:        1",
        "384 lossless, 96 lossy, of 1440",
    ],
    "run_household.py": ["30 groups of 8", "lossless + ", "efficiency "],
    "langgraph_group.py": [
        "cut: answer 'yes'",
        "7 inferred; 28 requests of at most 56",
        "answered 140 requests",
    ],
    "vote_over_my_agent.py": [
        "'the desk': {'the desk': 1} cast, 7 inferred",
        "28 model calls of at most 56",
    ],
    "react_small_model.py": ["Find the glove. ", "Find the brush. ", "Find the jar. ", "act({"],
    "vllm_endpoint.py": [
        "household-standard-0-5: distance 0.000, cut at step 6; answer 'nursery shelf'",
        "kept: distance",
        "requests cancelled midway",
    ],
}
"""What each example must print; one without an entry must print something."""

FILES = sorted(EXAMPLES.glob("*.py"))
ON_A_REAL_MODEL = {"react_small_model.py"}
RUNS = [
    pytest.param(path, marks=[pytest.mark.llm] if path.name in ON_A_REAL_MODEL else [], id=path.name)
    for path in FILES
]


@pytest.mark.parametrize("path", RUNS)
def test_it_runs_and_says_what_it_promises(path: Path, tmp_path: Path) -> None:
    if path.name in ON_A_REAL_MODEL:
        skip_without_weights()
    environment = {**os.environ, "PYTHONWARNINGS": "error::ResourceWarning"}
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    for words in EXPECTED.get(path.name, []):
        assert words in done.stdout
    assert list(tmp_path.iterdir()) == [], "an example leaves nothing behind"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_is_short_enough_to_be_read(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 80


def skip_without_weights() -> None:
    pytest.importorskip("xllamacpp", reason="needs the llm extra")
    try:
        fetch_weights()
    except PrerequisiteError as error:
        pytest.skip(str(error))


def test_expectations_are_about_examples_that_exist() -> None:
    assert set(EXPECTED) <= {path.name for path in FILES}
