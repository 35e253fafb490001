"""What a gate saves on LangChain agents: calls, tokens and time, each way of holding on the same tasks.

The household world, every rollout in a house of its own, is given to agents of `create_agent` as tools; they
ask a real HTTP server on loopback through `ChatOpenAI`. Every task is run once per arm, in turns, with the
same seeds. The model is the package's scripted household agent and answers a conversation always alike, so
each arm runs the very rollouts of `no gate` until it stops some. Latencies are drawn per request (log-normal,
median 200 ms, one in 40 above a second) and equal in all arms, too.

Calls and tokens are the server's own counts. Those of `no gate`, `all` and `followers` follow from the
rollouts, and the benchmark fails if the server counted anything else.

    python benchmarks/langchain_household.py [--tasks 2] [--first 4] [--plots FOLDER] [--json]

Two tasks, one that is kept and one that is cut, take about a minute: it is ChatOpenAI that works. Needs the
extras `langgraph`, `langchain` and `analysis`, and langchain-openai.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from statistics import NormalDist
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pydantic import BaseModel, SecretStr

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.env.household import HouseholdEnvironment, split_command
from selective_rollout.env.household_policy import household_reply
from selective_rollout.env.household_scenario import STATIONS, household_tasks
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.langchain import GroupGateMiddleware, gated_group
from selective_rollout.integrations.langgraph import GroupRunner
from selective_rollout.stats import bootstrap_interval, clopper_pearson
from selective_rollout.testing import Fault, FaultContext, LoopbackServer, Reply, ToolCall
from selective_rollout.testing.faults import body_key
from selective_rollout.types import Hold, RolloutStatus, Task

SIZE = 8
KEY = SecretStr("sk-loopback")
RULE = GateConfig(outcome="survivor")
"""The paper's rule: distance below 0.12 at step 10."""
VOTE = GateConfig(outcome="vote")
VERBS = ("enter", "go to", "open", "take", "put", *STATIONS)
MEDIAN_S, SPREAD = 0.2, 0.8
LEVEL = 0.95
FEWEST = 5
"""Tasks below which no interval is given."""


@dataclass(frozen=True)
class Arm:
    """One way of running a group."""

    name: str
    rule: GateConfig = RULE
    hold: Hold | None = None
    enforce: bool = True
    is_middleware: bool = False


ARMS = (
    Arm("no gate", enforce=False),
    Arm("all", hold="all"),
    Arm("followers", hold="followers"),
    Arm("followers, as middleware", hold="followers", is_middleware=True),
    Arm("none", hold="none"),
    Arm("two waves", rule=VOTE),
)


@dataclass(frozen=True)
class Run:
    """One group in one arm."""

    outcome: GroupOutcome
    calls: int
    prompt_tokens: int
    completion_tokens: int
    tool_runs: int
    seconds: float
    steps: Sequence[tuple[int, float]] = field(repr=False)
    """Rollout and second of every action, as soon as the model had chosen it."""


class Argument(BaseModel):
    """What every command takes."""

    what: str


class HouseholdTools:
    """One house as tools, which one rollout of an agent may call."""

    def __init__(self, task: Task, rollout: int) -> None:
        self._house = HouseholdEnvironment(task, rollout)
        self.seen_first = self._house.start().text
        self.runs = 0

    def tools(self) -> list[StructuredTool]:
        """One tool per verb."""
        return [
            StructuredTool.from_function(
                coroutine=self._command(verb),
                name=verb.replace(" ", "_"),
                description=f"{verb} something",
                args_schema=Argument,
            )
            for verb in VERBS
        ]

    def _command(self, verb: str) -> Callable[[str], Any]:
        async def perform(what: str) -> str:
            self.runs += 1
            return self._house.step(f"{verb} {what}").observation

        return perform


class ToolBrain:
    """The scripted household agent, saying its commands as tool calls and its answer as text."""

    def reply(self, request: dict[str, Any], *, choice: int, seed: int | None) -> Reply:
        """Answer from the conversation and the seed alone."""
        verb, noun = split_command(household_reply([_as_text(m) for m in request["messages"]], seed or 0))
        if verb == "answer":
            return Reply(noun)
        return Reply(tool_calls=(ToolCall(verb.replace(" ", "_"), json.dumps({"what": noun})),))


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls") or ()
    if calls:
        called = calls[0]["function"]
        command = f"{called['name'].replace('_', ' ')} {json.loads(called['arguments'])['what']}"
        return {"role": "assistant", "content": command}
    return {"role": message["role"], "content": message.get("content")}


def latency(context: FaultContext) -> Fault:
    """A time to the first token that belongs to the conversation and the seed, whoever asks, and when."""
    unit = int(hashlib.sha256(body_key(context.body).encode()).hexdigest()[:12], 16) / 16**12
    delay = MEDIAN_S * math.exp(SPREAD * NormalDist().inv_cdf(min(max(unit, 1e-6), 1 - 1e-6)))
    return Fault("slow_first_token", delay_s=delay)


class Bench:
    """Runs groups against one server, one after the other."""

    def __init__(self, server: LoopbackServer) -> None:
        self._server = server
        self._model = ChatOpenAI(model=server.model, base_url=server.base_url, api_key=KEY, max_retries=0)

    async def close(self) -> None:
        """Close the connections."""
        self._model.root_client.close()
        await self._model.root_async_client.close()

    async def run(self, task: Task, arm: Arm) -> Run:
        """Run one group, and count."""
        houses = [HouseholdTools(task, rollout) for rollout in range(SIZE)]
        middleware = [GroupGateMiddleware()] if arm.is_middleware else []
        agents = [
            create_agent(
                self._model.model_copy(update={"seed": 1 + rollout}), house.tools(), middleware=middleware
            )
            for rollout, house in enumerate(houses)
        ]
        question = {"messages": [("user", f"{task.prompt}\n{houses[0].seen_first}")]}
        before, began = self._server.counters, time.perf_counter()
        steps: list[tuple[int, float]] = []
        if arm.is_middleware:
            outcome = await _as_middleware(task, arm, agents, question)
        else:
            outcome = await _as_runner(task, arm, agents, question, began, steps)
        seconds = time.perf_counter() - began
        after = await self._server.until(lambda counters: counters.in_flight == 0)
        return Run(
            outcome=outcome,
            calls=after.requests - before.requests,
            prompt_tokens=after.prompt_tokens - before.prompt_tokens,
            completion_tokens=after.completion_tokens - before.completion_tokens,
            tool_runs=sum(house.runs for house in houses),
            seconds=seconds,
            steps=steps,
        )


async def _as_runner(
    task: Task, arm: Arm, agents: Sequence[Any], question: Any, began: float, steps: list[tuple[int, float]]
) -> GroupOutcome:
    config = RunConfig(
        group_size=SIZE, max_steps=60, mode="enforce" if arm.enforce else "observe", hold=arm.hold
    )
    runner = GroupRunner(agents.__getitem__, gate=arm.rule, config=config, certified=True)
    thread: Any = {"configurable": {"thread_id": task.id}}
    result: GroupOutcome | None = None
    async for event in runner.astream(question, thread, task_id=task.id):
        if event.type == "step" and event.rollout is not None:
            steps.append((event.rollout, time.perf_counter() - began))
        result = event.result or result
    assert result is not None
    return result


async def _as_middleware(task: Task, arm: Arm, agents: Sequence[Any], question: Any) -> GroupOutcome:
    group = gated_group(arm.rule, SIZE, mode="enforce", hold=arm.hold, group_id=task.id, certified=True)
    async with group:
        await asyncio.gather(*(group.run(i, agent.ainvoke(question)) for i, agent in enumerate(agents)))
    return group.outcome


def check_counts(task: Task, runs: Mapping[str, Run]) -> None:
    """Hold the server's counts against what the rollouts of `no gate` say they must be."""
    whole = runs["no gate"].outcome
    lengths = [len(rollout.steps) for rollout in whole.group.rollouts]
    assert all(rollout.status is RolloutStatus.FINISHED for rollout in whole.group.rollouts), task.id
    assert runs["no gate"].calls == sum(lengths), task.id
    cut_at = whole.would_cut_at
    for name in ("all", "followers", "followers, as middleware"):
        run = runs[name]
        assert run.outcome.cut_at == cut_at, (task.id, name)
        expected = sum(lengths)
        if cut_at is not None:
            survivor = run.outcome.survivor
            assert survivor is not None
            expected = sum(min(cut_at, length) for length in lengths)
            expected += max(0, lengths[survivor] - cut_at)
        assert run.calls == expected, (task.id, name, run.calls, expected)
    assert runs["followers"].calls <= runs["none"].calls <= sum(lengths), task.id
    assert runs["two waves"].calls <= sum(lengths), task.id


async def run_all(tasks: Iterable[Task], note: Callable[[str], None]) -> dict[str, list[Run]]:
    """Every task in every arm; the arms take turns in going first, so that no one has the quieter machine."""
    found: dict[str, list[Run]] = {arm.name: [] for arm in ARMS}
    with LoopbackServer(
        ToolBrain(), api_key=KEY.get_secret_value(), faults=latency, max_model_len=100_000, max_records=1
    ) as server:
        bench = Bench(server)
        for number, task in enumerate(tasks):
            turn = number % len(ARMS)
            runs = {arm.name: await bench.run(task, arm) for arm in (*ARMS[turn:], *ARMS[:turn])}
            check_counts(task, runs)
            for name, run in runs.items():
                found[name].append(run)
            cut = runs["all"].outcome.cut_at
            note(f"{task.id}: {'kept' if cut is None else f'cut at step {cut}'}")
        await bench.close()
    return found


@dataclass(frozen=True)
class Share:
    """A share of what `no gate` took, with its interval over tasks; None where those are too few for one."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{100 * self.value:.0f}%"
        return f"{100 * self.value:.0f}% [{100 * self.low:.0f}, {100 * self.high:.0f}]"


def share(of: Callable[[Run], float], runs: Sequence[Run], whole: Sequence[Run]) -> Share:
    """The ratio of the sums of a quantity; tasks are what is drawn for the interval."""
    pairs = [(of(ours), of(theirs)) for ours, theirs in zip(runs, whole, strict=True)]

    def ratio(sample: Sequence[tuple[float, float]]) -> float:
        ours, theirs = zip(*sample, strict=True)
        return float(sum(ours) / sum(theirs))

    interval = bootstrap_interval(ratio, pairs, confidence=LEVEL) if len(pairs) >= FEWEST else None
    if interval is None:
        return Share(ratio(pairs))
    return Share(ratio(pairs), interval.low, interval.high)


@dataclass(frozen=True)
class Row:
    """One arm over all tasks."""

    arm: str
    cuts: int
    calls: int
    tool_runs: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    calls_share: Share
    tokens_share: Share
    """Of completion tokens."""
    seconds_share: Share
    same_answer: int
    """Groups whose answer is the full vote's, or among those tied for it."""
    same_low: float
    same_high: float


def row_of(arm: str, runs: Sequence[Run], whole: Sequence[Run]) -> Row:
    same = sum(_is_a_winner(run.outcome.answer, full.outcome) for run, full in zip(runs, whole, strict=True))
    agreement = clopper_pearson(same, len(runs), LEVEL)
    return Row(
        arm=arm,
        cuts=sum(run.outcome.cut_as is not None for run in runs),
        calls=sum(run.calls for run in runs),
        tool_runs=sum(run.tool_runs for run in runs),
        prompt_tokens=sum(run.prompt_tokens for run in runs),
        completion_tokens=sum(run.completion_tokens for run in runs),
        seconds=sum(run.seconds for run in runs),
        calls_share=share(lambda run: run.calls, runs, whole),
        tokens_share=share(lambda run: run.completion_tokens, runs, whole),
        seconds_share=share(lambda run: run.seconds, runs, whole),
        same_answer=same,
        same_low=agreement.low,
        same_high=agreement.high,
    )


def _is_a_winner(answer: str | None, full: GroupOutcome) -> bool:
    return answer is not None and full.votes[answer] == max(full.votes.values())


def show(rows: Sequence[Row], tasks: int) -> str:
    lines = [
        f"{tasks} tasks, groups of {SIZE}; shares of `no gate` with {LEVEL:.0%} intervals over tasks",
        f"{'arm':<25}{'cut':>4}{'calls':>7}{'tools':>7}{'tokens in':>11}{'out':>8}{'s':>7}"
        f"{'calls':>16}{'tokens out':>16}{'seconds':>16}  same answer",
    ]
    for row in rows:
        lines.append(
            f"{row.arm:<25}{row.cuts:>4}{row.calls:>7,}{row.tool_runs:>7,}{row.prompt_tokens:>11,}"
            f"{row.completion_tokens:>8,}{row.seconds:>7.1f}{row.calls_share!s:>16}{row.tokens_share!s:>16}"
            f"{row.seconds_share!s:>16}  {row.same_answer} of {tasks} "
            f"[{100 * row.same_low:.0f}, {100 * row.same_high:.0f}]%"
        )
    return "\n".join(lines)


def plot_shares(rows: Sequence[Row], path: Path) -> None:
    """What each arm takes of `no gate`'s calls, tokens and time."""
    figure = Figure(figsize=(9.5, 3.6), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3, sharey=True)
    arms = rows[1:][::-1]
    for axes, name, shares in zip(
        panels,
        ("model calls", "completion tokens", "wall-clock time"),
        ("calls_share", "tokens_share", "seconds_share"),
        strict=True,
    ):
        for place, row in enumerate(arms):
            value: Share = getattr(row, shares)
            if value.low is not None and value.high is not None:
                axes.plot([100 * value.low, 100 * value.high], [place] * 2, color="#9aa3ad", linewidth=2.5)
            axes.plot(100 * value.value, place, "o", color="#2f7f6f", markersize=7)
            label = f"{100 * value.value:.0f}"
            axes.annotate(
                label, (100 * value.value, place), (0, 7), textcoords="offset points", ha="center", fontsize=8
            )
        axes.axvline(100, color="#444", linewidth=0.8, linestyle=":")
        right = max(120.0, *(105 * _farthest(getattr(row, shares)) for row in arms))
        axes.set(xlim=(0, right), ylim=(-0.6, len(arms) - 0.3), xlabel=f"{name}, % of no gate")
        axes.set_yticks(range(len(arms)), [row.arm for row in arms])
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def _farthest(value: Share) -> float:
    return value.value if value.high is None else value.high


def plot_timeline(runs: Mapping[str, Run], task: str, path: Path) -> None:
    """Every action of one group over time, arm by arm."""
    shown = {name: run for name, run in runs.items() if run.steps}
    figure = Figure(figsize=(9.5, 6.4), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(shown), 1, sharex=True)
    for axes, (name, run) in zip(panels, shown.items(), strict=True):
        for rollout in run.outcome.group.rollouts:
            times = [at for index, at in run.steps if index == rollout.index]
            went_on = rollout.status is not RolloutStatus.CUT
            colour = "#2f7f6f" if went_on else "#c1553b"
            axes.plot(times, [rollout.index] * len(times), "|", color=colour, markersize=6)
            if times and went_on:
                axes.plot(times[-1], rollout.index, "o", color=colour, markersize=4)
        axes.axvline(run.seconds, color="#444", linewidth=0.8, linestyle=":")
        axes.set(ylim=(-0.8, SIZE - 0.2), yticks=[])
        axes.set_title(f"{name}: {run.calls} calls, answer after {run.seconds:.1f} s", loc="left", fontsize=9)
        axes.spines[["top", "right", "left"]].set_visible(False)
    panels[-1].set_xlabel(
        f"seconds ({task}); one line per rollout, one mark per action; red: stopped, dot: answered"
    )
    figure.savefig(path)


def draw(found: Mapping[str, Sequence[Run]], rows: Sequence[Row], folder: Path) -> list[Path]:
    """The pictures; the timeline is of the first group that is cut."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "langchain-shares.png"]
    plot_shares(rows, paths[0])
    cut = [i for i, run in enumerate(found["followers"]) if run.outcome.cut_as is not None]
    if cut:
        runs = {name: of[cut[0]] for name, of in found.items()}
        paths.append(folder / "langchain-timeline.png")
        plot_timeline(runs, runs["no gate"].outcome.group.id, paths[1])
    return paths


def main() -> int:
    parser = argparse.ArgumentParser(description="What a gate saves on LangChain agents.")
    parser.add_argument("--tasks", type=int, default=2, help="number of household tasks (default 2)")
    parser.add_argument("--first", type=int, default=4, help="number of the first of them (default 4)")
    parser.add_argument("--plots", type=Path, help="folder for the pictures")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    arguments = parser.parse_args()
    warnings.simplefilter("error")
    tasks = list(islice(household_tasks(arguments.first + arguments.tasks), arguments.first, None))
    found = asyncio.run(run_all(tasks, lambda line: print(line, file=sys.stderr)))
    rows = [row_of(name, runs, found["no gate"]) for name, runs in found.items()]
    if arguments.json:
        print(json.dumps({"tasks": len(tasks), "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        print(show(rows, len(tasks)))
    if arguments.plots is not None:
        for path in draw(found, rows, arguments.plots):
            print(path, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
