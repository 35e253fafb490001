"""The blocks of the how-to page, each as the agent file that OpenRLHF loads."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openrlhf.trainer.ray.vllm_engine import _load_agent_executor
from tests.certified import write_certified_gate
from tests.trainers.commands import exit_codes

from selective_rollout.gate.history import PromptHistory
from selective_rollout.integrations.openrlhf.which import digest
from selective_rollout.trace.reader import read_groups

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "gate-openrlhf.md"
BLOCK = re.compile(r"^```python no-run \(needs openrlhf; run by make test-trainers\)\n(.*?)^```", re.M | re.S)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """OpenRLHF's loader on the first blocks of the page; the later ones take up the names of the first."""
    monkeypatch.chdir(tmp_path)
    write_certified_gate(Path("gate.toml"), start_step=4)
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8").replace("/data", str(tmp_path)))

    def make(count: int) -> Any:
        Path("agent_func.py").write_text("\n".join(blocks[:count]), encoding="utf-8")
        return _load_agent_executor("agent_func.py")

    assert len(blocks) == 3
    return make


async def test_the_first_block_observes_a_whole_run(
    load: Callable[[int], Any], local: Callable[..., Any], tmp_path: Path
) -> None:
    executor = load(1)
    rows = await local(executor).rollouts("say#0", 8)
    assert [len(row["action_ranges"]) for row in rows] == [8] * 8
    assert executor.gate.meter.would_cut == 1
    assert not executor.gate.enforcing
    assert [each.group.task_id for each in read_groups(tmp_path / "observed")] == [digest("say#0:", "label")]


async def test_the_second_block_enforces(load: Callable[[int], Any], local: Callable[..., Any]) -> None:
    executor = load(2)
    await local(executor).rollouts("say#0", 8)
    assert executor.gate.enforcing
    assert executor.gate.meter.cut + executor.gate.meter.would_cut == 1


async def test_the_third_block_remembers(load: Callable[[int], Any], local: Callable[..., Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        executor = load(3)
    await local(executor).rollouts("say#0", 8)
    assert isinstance(executor.gate.history, PromptHistory)
    assert executor.gate.meter.groups == 1


def test_the_commands_of_the_page_are_ones() -> None:
    assert set(exit_codes(PAGE).values()) == {0}
