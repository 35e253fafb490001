"""A taskset, a harness that runs in this process, and a model server on loopback: verifiers for real."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("verifiers.v1", reason="make test-trainers installs verifiers into its own environment")

import aiohttp
import verifiers.v1 as vf
from tests.trainers.marking import mark
from verifiers.v1.runtimes import ProgramResult, SubprocessConfig

from selective_rollout.integrations.verifiers import GatedTask
from selective_rollout.testing import LoopbackServer, Reply, ScriptedBrain

KEY_VARIABLE = "LOOPBACK_MODEL_KEY"
TURNS = 6
_OTHERS_WARNINGS = ("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, Path(__file__).parent, _OTHERS_WARNINGS)


class ToyData(vf.TaskData):
    """What a task is about."""

    rewards: tuple[float, ...] = ()
    """By member, in order of launch; the last one holds for all further ones."""
    breaks: tuple[int, ...] = ()
    """Members that die after their first turn."""


class ToyTask(vf.Task[ToyData]):
    """A task that rewards by the member's number."""

    scored: ClassVar[list[str]] = []

    @vf.reward
    async def given(self, trace: vf.Trace) -> float:
        """Return the member's reward."""
        ToyTask.scored.append(trace.id)
        rewards = self.data.rewards or (0.0,)
        return rewards[min(trace.info["member"], len(rewards) - 1)]


class GatedToyTask(GatedTask, ToyTask):
    """The same with the mixin."""


class ToyTaskset(vf.Taskset[ToyTask, vf.TasksetConfig]):
    """Tasks by hand."""

    def load(self) -> Iterable[ToyTask]:
        """Return no tasks: tests make their own."""
        return []


class GatedToyTaskset(vf.Taskset[GatedToyTask, vf.TasksetConfig]):
    """Tasks by hand."""

    def load(self) -> Iterable[GatedToyTask]:
        """Return no tasks: tests make their own."""
        return []


class ToyHarness(vf.Harness[vf.HarnessConfig]):
    """Talks to the model through the interception server, in this process; nobody gets two turns ahead."""

    SUPPORTS_MCP = False
    NEEDS_CONTAINER = False
    EXECUTES_CODE = False
    crew: ClassVar[int] = 4
    """Members to wait for before the first turn."""
    launched: ClassVar[dict[str, int]] = {}
    turns: ClassVar[dict[str, dict[int, int]]] = {}
    before_turn: ClassVar[Callable[[int, int], Awaitable[None]] | None] = None
    """Called with member and turn."""

    async def setup(self, runtime: Any) -> None:
        """Nothing to provision."""

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
    ) -> ProgramResult:
        """Take turns until the model says that it is done; any refusal kills the program."""
        member = ToyHarness.launched.get(data.prompt, 0)
        ToyHarness.launched[data.prompt] = member + 1
        trace.info["member"] = member
        turns = ToyHarness.turns.setdefault(data.prompt, {})
        turns[member] = 0
        try:
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {secret}"}) as session:
                await self._talk(session, f"{endpoint}/chat/completions", ctx.model, data, member, turns)
        finally:
            del turns[member]
        return ProgramResult(exit_code=0, stdout="", stderr="")

    async def _talk(
        self, session: Any, url: str, model: str, data: Any, member: int, turns: dict[int, int]
    ) -> None:
        messages: list[Any] = [{"role": "user", "content": f"{data.prompt}|{member}"}]
        for turn in range(TURNS):
            if turn and member in data.breaks:
                raise RuntimeError("the program died")
            turns[member] = turn
            while ToyHarness.launched[data.prompt] < ToyHarness.crew or min(turns.values()) < turn - 1:
                await asyncio.sleep(0.002)
            if ToyHarness.before_turn is not None:
                await ToyHarness.before_turn(member, turn)
            async with session.post(url, json={"model": model, "messages": messages}) as response:
                response.raise_for_status()
                said = (await response.json())["choices"][0]["message"]["content"]
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "ok"}]


def say(request: dict[str, Any], choice: int, seed: int | None) -> Reply:
    """Act alike on prompts with "=", else each member in its own way; at length from turn 3 on "long"."""
    prompt, member = str(request["messages"][0]["content"]).split("|")
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    said = f"go {turn}" if "=" in prompt else f"go {turn} of {member}"
    return Reply(said + " and on" * 500 if "long" in prompt and turn >= 3 else said)


@pytest.fixture(autouse=True)
def _plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the toys where verifiers looks for plugins."""
    for name, exported in (
        ("toy_taskset", ToyTaskset),
        ("gated_toy_taskset", GatedToyTaskset),
        ("toy_harness", ToyHarness),
    ):
        module = types.ModuleType(name)
        module.__spec__ = None
        setattr(module, exported.__name__, exported)
        module.__all__ = [exported.__name__]  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv(KEY_VARIABLE, "sk-loopback")
    monkeypatch.setattr(ToyHarness, "launched", {})
    monkeypatch.setattr(ToyHarness, "turns", {})
    monkeypatch.setattr(ToyTask, "scored", [])


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    """A model server whose counters tell what was asked."""
    with LoopbackServer(ScriptedBrain(say), "vllm") as running:
        yield running


@pytest.fixture
def slow_server() -> Iterator[LoopbackServer]:
    """One that takes its time, so that requests are in flight when others end."""
    with LoopbackServer(ScriptedBrain(say), "vllm", step_delay_s=0.01) as running:
        yield running


def context(server: LoopbackServer, **sampling: Any) -> vf.ModelContext:
    """Return the model to ask."""
    return vf.ModelContext(
        client=vf.EvalClientConfig(base_url=server.base_url, api_key_var=KEY_VARIABLE),
        model=server.model,
        sampling=vf.SamplingConfig(**sampling),
    )


def environment(taskset: str = "toy-taskset", **agent: Any) -> vf.SingleAgentEnv:
    """Return an environment of the toys."""
    seat = vf.AgentConfig(harness=vf.HarnessConfig(id="toy-harness"), runtime=SubprocessConfig(), **agent)
    return vf.SingleAgentEnv(vf.SingleAgentEnvConfig(taskset=vf.TasksetConfig(id=taskset), agent=seat))


@pytest.fixture
def ask() -> Callable[..., vf.ModelContext]:
    """Makes the model to ask, see `context`."""
    return context


@pytest.fixture
def make_env() -> Callable[..., vf.SingleAgentEnv]:
    """Makes an environment, see `environment`."""
    return environment


@pytest.fixture
def make_task() -> Callable[..., ToyTask]:
    """Makes a task from a prompt, its members' rewards and those that break."""

    def make(prompt: str, *, kind: type[ToyTask] = ToyTask, config: Any = None, **data: Any) -> ToyTask:
        return kind(ToyData(prompt=prompt, idx=0, **data), config)

    return make


@pytest.fixture
def toys() -> types.SimpleNamespace:
    """The classes themselves, to look into."""
    return types.SimpleNamespace(harness=ToyHarness, task=ToyTask, gated=GatedToyTask, turns=TURNS)
