"""`vf-eval`, verifiers' own command, with the hook named on its command line and no line of code changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from selective_rollout.testing import LoopbackServer, TutorialBrain

G, TASKS, STEPS = 4, 6, 8
_COMMAND = str(Path(sys.executable).with_name("vf-eval"))
_HOOK = "selective_rollout.integrations.verifiers.group_gate"
_ARGUMENTS = (
    f"fuses -r {G} --no-push --no-rich -o out --run.dir run --client.api-key-var LOOPBACK_MODEL_KEY "
    "--env.agent.harness.id fuses --env.agent.runtime.type subprocess "
    f"--env.taskset.task.stops.group_gate.fn {_HOOK}"
).split()
_PLUGINS = """
import aiohttp
import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult

__all__ = ["Fuses", "InProcess"]


class Fuse(vf.Task[vf.TaskData]):
    @vf.reward
    async def short(self, trace: vf.Trace) -> float:
        return 1.0


class Fuses(vf.Taskset[Fuse, vf.TasksetConfig]):
    def load(self):
        return [Fuse(vf.TaskData(prompt=f"Which fuse feeds pump {n}?"), self.config.task) for n in range(6)]


class InProcess(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        messages = [{"role": "user", "content": data.prompt}]
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {secret}"}) as session:
            while not messages[-1]["content"].startswith("answer("):
                messages += [{"role": "user", "content": "next?"}] * (len(messages) > 1)
                body = {"model": ctx.model, "messages": messages}
                async with session.post(f"{endpoint}/chat/completions", json=body) as response:
                    response.raise_for_status()
                    messages.append((await response.json())["choices"][0]["message"])
        return ProgramResult(exit_code=0, stdout="", stderr="")
"""


def evaluate(folder: Path, **settings: str) -> tuple[int, list[dict[str, object]]]:
    """Run the command; returns the model calls made, and verifiers' episodes."""
    (folder / "fuses.py").write_text(_PLUGINS, encoding="utf-8")
    with LoopbackServer(TutorialBrain(0.5, steps=STEPS)) as server:
        environment = {**os.environ, "LOOPBACK_MODEL_KEY": server.api_key or "", "PYTHONPATH": str(folder)}
        environment |= {f"SELECTIVE_ROLLOUT_{name}": value for name, value in settings.items()}
        done = subprocess.run(
            [_COMMAND, *_ARGUMENTS, "-m", server.model, "--client.base-url", server.base_url],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        asked = server.counters.requests
    lines = (folder / "out" / "run" / "traces.jsonl").read_text(encoding="utf-8").splitlines()
    return asked, [json.loads(line) for line in lines]


def test_observing_and_enforcing_from_the_command_line(tmp_path: Path) -> None:
    observed, enforced = tmp_path / "observed", tmp_path / "enforced"
    observed.mkdir()
    enforced.mkdir()
    asked, episodes = evaluate(observed, GROUP_SIZE=str(G), TRACE=str(observed / "trace"))
    assert asked == TASKS * G * STEPS
    assert len(episodes) == TASKS * G
    (trace,) = (observed / "trace").glob("*.jsonl")
    events = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    assert [event["type"] for event in events].count("group_end") == TASKS

    (enforced / "gate.toml").write_text("[gate]\nstart_step = 3\ntau = 0.12\n", encoding="utf-8")
    asked, episodes = evaluate(enforced, GROUP_SIZE=str(G), MODE="enforce", GATE=str(enforced / "gate.toml"))
    cut = {
        episode["task"]["data"]["prompt"]  # type: ignore[index]
        for episode in episodes
        if episode["traces"][0]["stop_condition"] == "group_gate"  # type: ignore[index]
    }
    brain = TutorialBrain(0.5, steps=STEPS)
    prompts = {f"Which fuse feeds pump {n}?" for n in range(TASKS)}
    assert cut == {prompt for prompt in prompts if brain.is_convergent(prompt)} != set()
    assert asked < TASKS * G * STEPS
    assert all(episode["ok"] for episode in episodes)


def test_a_missing_setting_fails_every_rollout_with_its_name(tmp_path: Path) -> None:
    asked, episodes = evaluate(tmp_path)
    assert asked == 0
    message = episodes[0]["traces"][0]["errors"][0]["message"]  # type: ignore[index]
    assert "set SELECTIVE_ROLLOUT_GROUP_SIZE to the number of rollouts per task" in message
