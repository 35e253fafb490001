"""The blocks of the how-to page, in the order in which they stand there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.trainers.commands import exit_codes
from verl.experimental.agent_loop import AgentLoopWorker
from verl_actors import servers
from verl_world import SIZE, TURNS, batch_of, configure

from selective_rollout.gate.history import PromptHistory
from selective_rollout.integrations.verl import gates

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "gate-verl.md"
FILES = re.compile(r"^```text\n(- name.*?)^```", re.M | re.S)
PYTHON = re.compile(r"^```python no-run \(needs verl; run by make test-trainers\)\n(.*?)^```", re.M | re.S)
ALL = SIZE * TURNS


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Callable[..., Any]:
    """Rolls out with an agent loop file, in this process."""

    async def generate(text: str, agent: str = "gated_tool_agent") -> tuple[Any, Any]:
        text = text.replace("/data/gate.toml", str(folder / "gate.toml")).replace("/data", str(tmp_path))
        text = re.sub("  trace: .*\n", "", text) + "  shared: false\n"
        config = configure(folder, text, f"actor_rollout_ref.rollout.agent.default_agent_loop={agent}")
        client = servers(config)
        gates._LINKS.clear()
        await AgentLoopWorker(config, client).generate_sequences(batch_of(["a=", "b"]))
        (link,) = gates._LINKS.values()
        gates._LINKS.clear()
        return client.asked, link.args[0].gate  # type: ignore[attr-defined]

    return generate


async def test_the_first_file_observes(run: Callable[..., Any]) -> None:
    asked, gate = await run(FILES.findall(PAGE.read_text(encoding="utf-8"))[0])
    assert set(asked.values()) == {ALL}
    assert not gate.enforcing


async def test_the_second_file_enforces(run: Callable[..., Any]) -> None:
    asked, gate = await run(FILES.findall(PAGE.read_text(encoding="utf-8"))[1])
    assert gate.enforcing
    assert gate.audit_rate == 0.1
    assert asked["b"] == ALL


async def test_the_class_remembers_prompts(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gated.py").write_text(PYTHON.findall(PAGE.read_text(encoding="utf-8"))[0], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    _, gate = await run("- name: own\n  _target_: gated.Gated\n", "own")
    assert isinstance(gate.history, PromptHistory)
    assert gate.rule.history_mixed == 8


def test_the_commands_of_the_page_are_ones() -> None:
    assert set(exit_codes(PAGE).values()) == {0}
