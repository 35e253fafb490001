"""The blocks of the how-to page and of the README, run in order with a model that fits a test."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from tests.certified import write_certified_gate
from transformers import PreTrainedTokenizerFast
from trl import GRPOConfig

from selective_rollout.cli.main import main

ROOT = Path(__file__).resolve().parents[3]
PAGES = (ROOT / "docs" / "how-to" / "gate-trl-grpo.md", ROOT / "README.md")
PYTHON = "python no-run (needs trl; run by make test-trainers)"
BLOCK = re.compile(rf"^```({re.escape(PYTHON)}|console)\n(.*?)^```", re.M | re.S)


class Drawers:
    """An environment as TRL wants it."""

    def reset(self, **row: Any) -> str:
        return "Three drawers."

    def look(self, which: str) -> str:
        """Look into a drawer.

        Args:
            which: the drawer.
        """
        return "nothing"

    def get_reward(self) -> float:
        return 0.0


def run(arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of our command."""
    monkeypatch.setattr(sys, "argv", ["selective-rollout", *shlex.split(arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_runs_as_it_stands(
    page: Path,
    model_folder: Path,
    tool_tokenizer: PreTrainedTokenizerFast,
    settings: Callable[..., dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    tool_tokenizer.save_pretrained(tmp_path / "model")
    for file in model_folder.iterdir():
        if file.name in ("config.json", "model.safetensors", "generation_config.json"):
            (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    write_certified_gate(Path("gate.toml"), start_step=4)
    chosen = settings(gradient_accumulation_steps=1, max_completion_length=12)
    names: dict[str, Any] = {
        "model": str(tmp_path / "model"),
        "args": GRPOConfig(**chosen),
        "dataset": Dataset.from_dict({"prompt": [[{"role": "user", "content": "Find it."}]] * 4}),
        "Dataset": Dataset,
        "Drawers": Drawers,
    }
    for kind, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == PYTHON:
            exec(compile(block, str(page), "exec"), names)
        for line in block.splitlines() if kind == "console" else ():
            assert run(line.removeprefix("$ selective-rollout"), monkeypatch) == 0
    assert names["trainer"].gate is not None
