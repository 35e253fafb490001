"""The blocks of the page on groups over workers, run in order on Ray."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import ray
from tests.certified import write_certified_gate

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "groups-over-workers.md"
BLOCK = re.compile(r"^```python no-run \(needs openrlhf; run by make test-trainers\)\n(.*?)^```", re.M | re.S)


class Agent:
    """Takes four turns."""

    def __init__(self, number: int) -> None:
        self.done, self.reward, self._number, self._turns = False, float(number % 2), number, 0

    async def turn(self) -> tuple[str, str]:
        await asyncio.sleep(0.01)
        self._turns += 1
        self.done = self._turns == 4
        return f"look {self._turns} {self._number}", "nothing"


def test_the_page_runs_as_it_stands(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_certified_gate(Path("gate.toml"), start_step=2)
    start, roll, read = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    exec(compile(start, str(PAGE), "exec"), names)
    exec(compile(roll, str(PAGE), "exec"), names)

    async def group() -> list[float | None]:
        rollouts = (names["rollout"]("uid-1", number, 4, Agent(number)) for number in range(4))
        return list(await asyncio.gather(*rollouts))

    assert asyncio.run(group()) == [0.0, 1.0, 0.0, 1.0]
    exec(compile(read, str(PAGE), "exec"), names)
    assert capsys.readouterr().out == "1.0\n"
    ray.kill(names["coordinator"])
