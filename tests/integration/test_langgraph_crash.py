"""Kill -9 in the middle of a group, and another process that goes on: on sqlite, and on a real Postgres.

Run as a script, this file is the process that is killed, and the one that goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.messages.utils import convert_to_openai_messages
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.survivor import survivor_order
from selective_rollout.env.base import Observation, StepResult
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.langgraph import GroupResult, GroupRunner, build_graph
from selective_rollout.policy import Endpoint
from selective_rollout.policy.openai_client import OpenAIPolicy
from selective_rollout.testing import LoopbackServer, Reply, ScriptedBrain, ToolCall
from selective_rollout.trace.reader import RecordedGroup, read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Task

G = 4
STEPS = 4
"""Tool steps of an agent; its answer is one request more."""
CHECK = 2
UNDISTURBED = G * CHECK + (STEPS - CHECK) + 1
"""Requests of a group that is cut at the check, and whose survivor goes on."""
FIRST, SECOND, THIRD, LAST = survivor_order("g", G)
THREAD: RunnableConfig = {"configurable": {"thread_id": "g"}}
BOTH = pytest.mark.parametrize("saver", ["sqlite", "postgres"], indirect=True)


class TestRunner:
    """A tool agent of which G copies run under a `GroupRunner`."""

    def test_killed_before_the_check(self, saver: str, bench: Bench) -> None:
        """The leader has answered, two wait at the check, and one is at its second request."""
        result = bench.killed_then_resumed("runner", saver, at=f"model:{LAST}:2", after=5 + 2 + 2 + 1)
        assert (result["cut_at"], result["survivor"], result["answer"]) == (CHECK, FIRST, "desk")
        assert bench.effects() == {FIRST: STEPS, SECOND: 1, THIRD: 1, LAST: 1}
        assert bench.requests() == UNDISTURBED
        assert bench.recorded().group.attempt == 2

    def test_killed_while_the_survivor_goes_on(self, saver: str, bench: Bench) -> None:
        result = bench.killed_then_resumed("runner", saver, at=f"model:{FIRST}:4", after=3 + 2 * (G - 1))
        assert (result["cut_at"], result["survivor"], result["answer"]) == (CHECK, FIRST, "desk")
        assert bench.effects() == {FIRST: STEPS, SECOND: 1, THIRD: 1, LAST: 1}
        assert bench.requests() == UNDISTURBED

    @BOTH
    def test_a_survivor_is_never_chosen_again(self, saver: str, bench: Bench) -> None:
        """The first in line failed before the check. It would not fail now, and stays out all the same."""
        result = bench.killed_then_resumed(
            "runner", saver, at=f"model:{SECOND}:4", after=1 + 3 + 2 + 2, fails=FIRST
        )
        assert (result["cut_at"], result["survivor"], result["answer"]) == (CHECK, SECOND, "desk")
        assert result["failures"] == {str(FIRST): "error: RuntimeError: out of order"}
        assert bench.effects() == {SECOND: STEPS, THIRD: 1, LAST: 1}
        assert bench.requests() == UNDISTURBED - 1
        recorded = bench.recorded()
        assert recorded.end is not None
        assert (recorded.end.cut_at, recorded.end.survivor) == (CHECK, SECOND)

    def test_a_dropped_group_stays_dropped(self, saver: str, bench: Bench) -> None:
        result = bench.killed_then_resumed(
            "runner", saver, at=f"model:{LAST}:2", after=2 * (G - 1) + 1, outcome="drop"
        )
        assert (result["cut_at"], result["statuses"]) == (CHECK, ["cut"] * G)
        assert bench.effects() == dict.fromkeys(range(G), 1)
        assert bench.requests() == G * CHECK

    def test_only_the_tool_in_flight_runs_twice(self, saver: str, bench: Bench) -> None:
        """What no checkpoint can know: the effect has happened, its superstep has not ended."""
        result = bench.killed_then_resumed("runner", saver, at=f"tool:{FIRST}:3", after=3 + 2 * (G - 1))
        assert result["answer"] == "desk"
        assert bench.effects() == {FIRST: STEPS + 1, SECOND: 1, THIRD: 1, LAST: 1}
        assert bench.requests() == UNDISTURBED


class TestGraph:
    """The graph of `build_graph`, which steps its environments again to where they stood."""

    @BOTH
    @pytest.mark.parametrize(
        ("at", "after"), [(f"model:{LAST}:2", G + 3), (f"model:{FIRST}:4", G * CHECK + 1)]
    )
    def test_no_request_is_repeated(self, saver: str, bench: Bench, at: str, after: int) -> None:
        result = bench.killed_then_resumed("graph", saver, at=at, after=after)
        assert (result["cut_at"], result["survivor"], result["answer"]) == (CHECK, FIRST, "desk")
        assert bench.requests() == UNDISTURBED
        recorded = bench.recorded()
        assert [len(rollout.steps) for rollout in recorded.group.rollouts] == [
            STEPS + 1 if rollout == FIRST else CHECK for rollout in range(G)
        ]


class Bench:
    """Runs the two processes and counts from outside what they did."""

    def __init__(self, server: LoopbackServer, folder: Path) -> None:
        self.folder = folder
        self._server = server

    def killed_then_resumed(self, what: str, saver: str, *, at: str, after: int, **options: Any) -> Any:
        """Kill a process at a point once it has made so many requests; what its successor came to."""
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        killed = self._run(what, saver, "--kill-at", at, "--after", str(after), *words)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert self.requests() == after
        words = [] if "outcome" not in options else words
        resumed = self._run(what, saver, "--resume", *words)
        assert (resumed.returncode, resumed.stderr) == (0, "")
        return json.loads(resumed.stdout)

    def requests(self) -> int:
        return self._server.wait_until(lambda counters: counters.in_flight == 0).requests

    def effects(self) -> dict[int, int]:
        """Tool runs by rollout, over both processes."""
        return dict(Counter(int(line) for line in (self.folder / "effects").read_text().split()))

    def recorded(self) -> RecordedGroup:
        """The one group of the trace, which both processes wrote."""
        (recorded,) = read_groups(self.folder / "trace.jsonl")
        assert recorded.end is not None
        assert [decision.fires for decision in recorded.decisions] == [True]
        return recorded

    def _run(self, what: str, saver: str, *words: str) -> subprocess.CompletedProcess[str]:
        server = self._server
        place = ["--url", server.base_url, "--key", server.api_key, "--model", server.model]
        return subprocess.run(
            [sys.executable, __file__, what, saver, str(self.folder), *place, *words],
            env={**os.environ, "LANGGRAPH_STRICT_MSGPACK": "true"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def answered(request: dict[str, Any], choice: int, seed: int | None) -> Reply:
    """Look into four places, then answer; as tool calls, or as text where no tools are spoken of."""
    said = sum(message["role"] == "assistant" for message in request["messages"])
    if request.get("user") != "runner":
        return Reply(f"look(place={said})" if said < STEPS else "answer(desk)")
    if said < STEPS:
        return Reply(tool_calls=(ToolCall("look", f'{{"place": {said}}}'),))
    return Reply("desk")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with LoopbackServer(ScriptedBrain(answered)) as server:
        yield Bench(server, tmp_path)


@pytest.fixture
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:{tmp_path / 'threads.sqlite'}"
    if importlib.util.find_spec("langgraph.checkpoint.postgres") is None:
        pytest.skip("langgraph-checkpoint-postgres is not installed")
    postgres: Postgres = request.getfixturevalue("postgres")
    return f"postgres:{postgres.new_database()}"


class Postgres:
    """A server of its own on a Unix socket in a folder of its own, as a user that is not root."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._databases = 0
        self._user: dict[str, Any] = {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}
        if self._user:
            shutil.chown(folder, "nobody", "nogroup")

    def start(self) -> None:
        self._call("initdb", "--pgdata", "data", "--username", "test", "--auth", "trust", "--no-sync")
        options = f"-k {self._folder} -c listen_addresses='' -c fsync=off"
        self._call("pg_ctl", "start", "--wait", "--pgdata", "data", "--log", "log", "--options", options)

    def stop(self) -> None:
        self._call("pg_ctl", "stop", "--wait", "--pgdata", "data", "--mode", "immediate")

    def new_database(self) -> str:
        self._databases += 1
        name = f"test{self._databases}"
        self._call("createdb", "--host", str(self._folder), "--username", "test", name)
        return f"host={self._folder} user=test dbname={name}"

    def _call(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [self._programs / program, *words],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
            **self._user,
        )
        assert done.returncode == 0, done.stderr.decode()


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    found = [*sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True), shutil.which("initdb")]
    programs = next((Path(path).resolve().parent for path in found if path is not None), None)
    if programs is None:
        pytest.skip("Postgres is not installed")
    folder = Path(tempfile.mkdtemp(prefix="sr-pg-", dir="/tmp"))  # a socket's path must be short
    server = Postgres(programs, folder)
    try:
        server.start()
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Executioner:
    """Kills this process at one point, once everybody else has come to rest."""

    def __init__(self, at: str | None, after: int) -> None:
        kind, rollout, step = (at or "nowhere:0:0").split(":")
        self._at = (kind, int(rollout), int(step))
        self._after = after
        self.replies = 0

    async def pass_by(self, kind: str, rollout: int, step: int) -> None:
        if (kind, rollout, step) != self._at:
            return
        deadline = time.monotonic() + 30
        while self.replies < self._after and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for _ in range(300):  # for checkpoints that are being written
            await asyncio.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)


def agent_of(options: argparse.Namespace, client: openai.AsyncOpenAI, axe: Executioner, saver: Any) -> Any:
    async def model(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        rollout, messages = config["metadata"]["sr_rollout"], state["messages"]
        await axe.pass_by("model", rollout, sum(message.type == "ai" for message in messages) + 1)
        response = await client.chat.completions.create(
            model=options.model, messages=convert_to_openai_messages(messages), user="runner"
        )
        axe.replies += 1
        said, usage = response.choices[0].message, response.usage
        assert usage is not None
        counts = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
        calls = [
            {"name": "look", "args": json.loads(call.function.arguments), "id": call.id}
            for call in said.tool_calls or ()
            if call.type == "function"
        ]
        told: Any = {**counts, "total_tokens": usage.total_tokens}
        return {"messages": [AIMessage(said.content or "", tool_calls=calls, usage_metadata=told)]}

    async def tools(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        rollout = config["metadata"]["sr_rollout"]
        if rollout == options.fails:
            raise RuntimeError("out of order")
        with (options.folder / "effects").open("a") as effects:
            effects.write(f"{rollout}\n")
        await axe.pass_by("tool", rollout, sum(message.type == "ai" for message in state["messages"]))
        (call,) = state["messages"][-1].tool_calls
        return {"messages": [ToolMessage("nothing here", tool_call_id=call["id"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", tools)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


class Policy:
    """An `OpenAIPolicy` that passes by the executioner."""

    def __init__(self, endpoint: Endpoint, axe: Executioner) -> None:
        self._policy = OpenAIPolicy(endpoint)
        self._axe = axe

    async def complete(self, messages: Any, info: Any) -> Any:
        await self._axe.pass_by("model", info.rollout, info.step)
        completion = await self._policy.complete(messages, info)
        self._axe.replies += 1
        return completion

    async def aclose(self) -> None:
        await self._policy.aclose()


class Room:
    """A world that can be stepped to where it stood."""

    replayable = True

    def __init__(self, task: Task, rollout: int) -> None:
        self.steps = 0

    def start(self) -> Observation:
        return Observation("You stand in a room.")

    def step(self, action: str) -> StepResult:
        self.steps += 1
        ends = action.startswith("answer(")
        return StepResult(f"step {self.steps}", terminated=ends, answer="desk" if ends else None)

    def close(self) -> None:
        pass


async def main(options: argparse.Namespace) -> dict[str, Any]:
    axe = Executioner(options.kill_at, options.after)
    gate = GateConfig(start_step=CHECK, outcome=options.outcome)
    config = RunConfig(group_size=G, mode="enforce")
    async with saver_at(options.saver) as saver:
        with Recorder(options.folder / "trace.jsonl") as recorder:
            common: Any = {"gate": gate, "config": config, "recorder": recorder, "certified": True}
            if options.what == "graph":
                endpoint = Endpoint(base_url=options.url, api_key=options.key, model=options.model)
                graph = build_graph(lambda: Policy(endpoint, axe), Room, checkpointer=saver, **common)
                prompt = None if options.resume else {"prompt": "Where is the mug?"}
                return summary(GroupResult.from_state(await graph.ainvoke(prompt, THREAD)))
            async with openai.AsyncOpenAI(base_url=options.url, api_key=options.key, max_retries=0) as client:
                runner = GroupRunner(agent_of(options, client, axe, saver), **common)
                if options.resume:
                    return summary(await runner.aresume("g"))
                return summary(await runner.ainvoke({"messages": [("user", "Where is the mug?")]}, THREAD))


@contextlib.asynccontextmanager
async def saver_at(place: str) -> AsyncIterator[Any]:
    kind, _, where = place.partition(":")
    if kind == "sqlite":
        async with AsyncSqliteSaver.from_conn_string(where) as saver:
            yield saver
    else:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

        async with AsyncPostgresSaver.from_conn_string(where) as saver:
            await saver.setup()
            yield saver


def summary(result: Any) -> dict[str, Any]:
    return {
        "cut_at": result.cut_at,
        "survivor": result.survivor,
        "answer": result.answer,
        "statuses": [rollout.status.value for rollout in result.rollouts],
        "failures": {
            r.index: f"{r.failure.kind}: {r.failure.message}"
            for r in result.rollouts
            if r.failure is not None
        },
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what")
    parser.add_argument("saver")
    parser.add_argument("folder", type=Path)
    for name in ("--url", "--key", "--model"):
        parser.add_argument(name)
    parser.add_argument("--kill-at")
    parser.add_argument("--after", type=int, default=0)
    parser.add_argument("--fails", type=int)
    parser.add_argument("--outcome", default="survivor")
    parser.add_argument("--resume", action="store_true")
    print(json.dumps(asyncio.run(main(parser.parse_args()))))
