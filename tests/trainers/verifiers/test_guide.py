"""What the guide for verifiers shows is run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import verifiers.v1 as vf
from tests.trainers.commands import exit_codes

from selective_rollout.engine.rule import UncertifiedGateWarning
from selective_rollout.testing import LoopbackServer

_PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "gate-verifiers.md"


async def test_the_blocks_of_the_guide_run_as_they_stand(
    server: LoopbackServer,
    ask: Callable[..., Any],
    make_env: Callable[..., Any],
    make_task: Callable[..., Any],
    toys: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(toys.harness, "crew", 8)
    Path("gate.toml").write_text("[gate]\nstart_step = 3\ntau = 0.12\n", encoding="utf-8")
    loop, own_task = re.findall(r"^```python [^\n]*\n(.*?)^```", _PAGE.read_text("utf-8"), re.M | re.S)
    names: dict[str, Any] = {"MyData": vf.TaskData}
    with pytest.warns(UncertifiedGateWarning):
        exec(compile(loop, str(_PAGE), "exec"), names)
    with pytest.warns(UncertifiedGateWarning):
        exec(compile(own_task, str(_PAGE), "exec"), names)
    tasks = [make_task("a="), make_task("b", rewards=[0, 1])]
    episodes = await names["batch"](make_env(), tasks, ask(server), 0)
    assert {episode.traces[0].task.key for episode in episodes} == {tasks[1].key}
    assert {episode.traces[0].stop_condition for episode in episodes} == {"agent_completed"}
    assert names["MyTask"].groups.size == 8


def test_the_commands_of_the_page_are_ones() -> None:
    assert set(exit_codes(_PAGE).values()) == {0}
