"""An agent that is a shell script around curl: what it sees when its group is cut."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from selective_rollout.engine.config import RunConfig
from selective_rollout.gate.config import GateConfig
from selective_rollout.testing import LoopbackServer, Reply, ScriptedBrain

Start = Callable[..., Awaitable[Any]]
CURL = shutil.which("curl")
pytestmark = pytest.mark.skipif(CURL is None, reason="curl is not installed")

AGENT = """
history='{"role":"user","content":"find it"}'
for turn in 1 2 3 4; do
  answer=$(curl -sS --fail-with-body --retry 2 "$1/v1/chat/completions" \\
    -H "Content-Type: application/json" -H "X-Selective-Rollout-Group: sh-1" \\
    -H "X-Selective-Rollout-Rollout: $2" -H "X-Selective-Rollout-Group-Size: 2" \\
    -d "{\\"model\\":\\"loopback-model\\",\\"messages\\":[$history]}")
  status=$?
  if [ $status -ne 0 ]; then echo "$answer"; exit $status; fi
  history="$history,{\\"role\\":\\"assistant\\",\\"content\\":\\"Action: look $turn\\"}"
  history="$history,{\\"role\\":\\"user\\",\\"content\\":\\"nothing\\"}"
done
echo done
"""


def look(request: dict[str, Any], choice: int, seed: int | None) -> Reply | str:
    turns = sum(message["role"] == "assistant" for message in request["messages"])
    return f"Action: look {turns + 1}"


async def run_agent(root: str, rollout: int) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", AGENT, "agent", root, str(rollout)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode().strip()


async def test_in_observe_mode_it_notices_nothing(start: Start) -> None:
    with LoopbackServer(ScriptedBrain(look), api_key=None) as model:
        running = await start(model.base_url, rule=GateConfig(start_step=2))
        assert await asyncio.gather(*(run_agent(running.root, i) for i in range(2))) == [(0, "done")] * 2
        assert running.gateway.view().groups[0].fired_at == 2


async def test_a_cut_is_a_410_that_curl_does_not_retry(start: Start) -> None:
    with LoopbackServer(ScriptedBrain(look), api_key=None) as model:
        rule, run = GateConfig(start_step=2), RunConfig(mode="enforce")
        running = await start(model.base_url, rule=rule, run=run)
        ends = await asyncio.gather(*(run_agent(running.root, i) for i in range(2)))
        assert model.counters.requests == 4
    assert running.gateway.counts.requests["cut"] == 2
    for status, said in ends:
        assert status == 22  # curl: the server answered with an error
        error = json.loads(said)["error"]
        assert (error["code"], error["group"], error["cut_at"]) == ("group_cut", "sh-1", 2)
        assert "End this rollout; it needs no reward." in error["message"]
