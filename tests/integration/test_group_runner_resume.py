"""A group of agents that is gone on with: what it had settled stands, and its trace stays readable."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.survivor import survivor_order
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.integrations.langgraph import AgentGroupResult, GroupRunner, IdenticalSamplingWarning
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder

G = 4
STEPS = 4
PROMPT = {"messages": [("user", "Where is the mug?")]}
THREAD: RunnableConfig = {"configurable": {"thread_id": "g"}}
SURVIVE = GateConfig(start_step=2, outcome="survivor")
ENFORCE = RunConfig(group_size=G, mode="enforce")
FIRST, SECOND, THIRD, LAST = survivor_order("g", G)
USAGE: Any = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}

Tool = Callable[[int, int], Any]
"""(rollout, run of it)"""


class Agents:
    """Agents on one store, with tools that tests decide about, and a model that may stall."""

    def __init__(self) -> None:
        self.saver = InMemorySaver()
        self.tool: Tool = lambda rollout, run: None
        self.model: FakeListChatModel | None = None
        self.stalls: tuple[int, int] | None = None
        self.stalled = asyncio.Event()
        self.models: Counter[int] = Counter()
        self.runs: Counter[int] = Counter()

    def compiled(self, rollout: int | None = None) -> Any:
        builder = StateGraph(MessagesState)
        builder.add_node("model", self._model)
        builder.add_node("tools", self._tools)
        builder.add_edge(START, "model")
        builder.add_conditional_edges(
            "model", lambda state: "tools" if state["messages"][-1].tool_calls else END
        )
        builder.add_edge("tools", "model")
        return builder.compile(checkpointer=self.saver)

    async def _model(self, state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        rollout, step = config["metadata"]["sr_rollout"], sum(m.type == "ai" for m in state["messages"]) + 1
        place = survivor_order(config["metadata"]["sr_group"], G).index(rollout)
        if (survivor_order("g", G)[place], step) == self.stalls:
            self.stalled.set()
            await asyncio.sleep(60)
        if self.model is not None:
            await self.model.ainvoke(state["messages"])
        self.models[rollout] += 1
        if step > STEPS:
            return {"messages": [AIMessage("desk", usage_metadata=USAGE)]}
        call = {"name": f"look{step}", "args": {}, "id": f"c{rollout}-{step}"}
        return {"messages": [AIMessage("", tool_calls=[call], usage_metadata=USAGE)]}

    async def _tools(self, state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        rollout = config["metadata"]["sr_rollout"]
        self.tool(rollout, self.runs[rollout] + 1)
        self.runs[rollout] += 1
        (call,) = state["messages"][-1].tool_calls  # type: ignore[union-attr]
        return {"messages": [ToolMessage("nothing", tool_call_id=call["id"])]}

    def runner(self, agent: Any = None, **options: Any) -> GroupRunner:
        settings = {"gate": SURVIVE, "config": ENFORCE, "certified": True, **options}
        return GroupRunner(agent or self.compiled(), **settings)

    async def broken_off(self, runner: GroupRunner, at: tuple[int, int], models: int) -> None:
        """Run a group until a rollout stalls and the others have come to rest; then cancel it."""
        self.stalls, self.stalled = at, asyncio.Event()
        running = asyncio.create_task(runner.ainvoke(PROMPT, THREAD))
        await asyncio.wait_for(self.stalled.wait(), 60)
        await self.stored(models)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        self.stalls = None

    async def stored(self, models: int) -> None:
        """Wait until so many answers of models are in the store: from then on nobody moves."""
        async with asyncio.timeout(60):
            while sum(map(self._answers, list(self.saver.storage))) < models:
                await asyncio.sleep(0.01)

    def _answers(self, thread: str) -> int:
        stored = self.saver.get_tuple({"configurable": {"thread_id": thread}})
        messages = stored.checkpoint["channel_values"].get("messages", ()) if stored is not None else ()
        return sum(message.type == "ai" for message in messages)


class Seeded(FakeListChatModel):
    """A model that is asked with one seed by everybody."""

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"seed": 7}


def raising(rollout: int, run: int, error: str = "broken") -> Tool:
    def tool(index: int, number: int) -> None:
        if (index, number) == (rollout, run):
            raise RuntimeError(error)

    return tool


def ends(result: AgentGroupResult) -> tuple[int | None, int | None, str | None]:
    return result.cut_at, result.survivor, result.answer


class TestWhatStands:
    async def test_an_audit_is_not_drawn_again(self) -> None:
        agents = Agents()
        audited = agents.runner(config=replace(ENFORCE, audit_rate=1.0))
        await agents.broken_off(audited, (LAST, 2), models=1 + 5 * 3)
        result = await agents.runner().aresume("g")
        assert (result.audited, result.cut_at, result.would_cut_at) == (True, None, 2)
        assert agents.models.total() == G * (STEPS + 1)

    async def test_a_member_that_a_check_did_without_stays_out(self) -> None:
        """It would not break a second time; but the check has counted it as absent."""
        agents = Agents()
        agents.tool = raising(FIRST, 1)
        await agents.broken_off(agents.runner(), (SECOND, 4), models=1 + 3 + 2 + 2)
        agents.tool = lambda rollout, run: None
        result = await agents.runner().aresume("g")
        assert ends(result) == (2, SECOND, "desk")
        assert result.rollouts[FIRST].failure is not None
        assert agents.runs == {SECOND: STEPS, THIRD: 1, LAST: 1}

    async def test_a_survivor_that_broke_is_not_chosen_again(self) -> None:
        agents = Agents()
        agents.tool = raising(FIRST, 3)
        await agents.broken_off(agents.runner(), (SECOND, 4), models=3 + 3 + 2 + 2)
        agents.tool = lambda rollout, run: None
        result = await agents.runner().aresume("g")
        assert ends(result) == (2, SECOND, "desk")
        assert agents.runs == {FIRST: 2, SECOND: STEPS, THIRD: 1, LAST: 1}

    async def test_a_member_that_broke_before_any_check_has_another_chance(self) -> None:
        agents = Agents()
        agents.tool = raising(FIRST, 1)
        await agents.broken_off(
            agents.runner(config=replace(ENFORCE, hold="all")), (LAST, 1), models=1 + 2 + 2
        )
        agents.tool = lambda rollout, run: None
        result = await agents.runner().aresume("g")
        assert ends(result) == (2, FIRST, "desk")
        assert agents.runs == {FIRST: STEPS, SECOND: 1, THIRD: 1, LAST: 1}

    async def test_a_hold_that_took_too_long_is_not_begun_again(self) -> None:
        agents = Agents()
        config = replace(ENFORCE, hold="all", hold_timeout_s=0.05)
        await agents.broken_off(agents.runner(config=config), (LAST, 2), models=1 + 5 * 3)
        result = await agents.runner(config=config).aresume("g")
        assert (result.cut_as, [r.status for r in result.rollouts]) == (None, ["finished"] * G)

    async def test_what_the_models_were_asked_with_is_remembered(self) -> None:
        """All with one seed: copies, of which the resumed process asks only one again."""
        agents = Agents()
        agents.model = Seeded(responses=["..."])
        await agents.broken_off(agents.runner(), (LAST, 2), models=1 + 5 + 2 + 2)
        with pytest.warns(IdenticalSamplingWarning, match="with one seed"):
            result = await agents.runner().aresume("g")
        assert (result.cut_as, [r.status for r in result.rollouts]) == (None, ["finished"] * G)

    async def test_a_decided_vote_stays_decided(self) -> None:
        agents = Agents()
        gate = replace(SURVIVE, outcome="vote")
        runner = agents.runner(gate=gate)
        result = await runner.ainvoke(PROMPT, THREAD)
        again = await agents.runner(gate=gate).aresume("g")
        assert (result.answer, again.answer) == ("desk", "desk")
        assert agents.models.total() == 3 * (STEPS + 1)
        assert [r.status for r in again.rollouts] == [r.status for r in result.rollouts]

    @pytest.mark.parametrize("outcome", ["drop", "survivor"])
    async def test_a_loser_takes_no_step_while_the_others_are_still_read(self, outcome: Any) -> None:
        """Nobody is held, and three had run to their ends: their read past cuts the fourth at the check."""
        agents = Agents()
        options = {"gate": replace(SURVIVE, outcome=outcome), "config": replace(ENFORCE, hold="none")}
        await agents.broken_off(agents.runner(**options), (LAST, 2), models=1 + 5 * 3)
        before = agents.models.copy()
        result = await agents.runner(**options).aresume("g")
        assert agents.models == before + Counter([LAST])
        assert (result.cut_as, result.cut_at, result.rollouts[LAST].status) == (outcome, 2, "cut")

    async def test_earlier_rewards_are_those_of_the_opening(self) -> None:
        agents, history = Agents(), PromptHistory()
        history.record("mug", "old", [1.0, 1.0], was_cut=False)
        gate = replace(SURVIVE, history_mixed=2)
        runner = agents.runner(gate=gate, history=history)
        agents.stalls = (LAST, 2)
        running = asyncio.create_task(runner.ainvoke(PROMPT, THREAD, task_id="mug", metadata={"room": 3}))
        await agents.stalled.wait()
        running.cancel()
        await asyncio.wait({running})
        agents.stalls = None
        history.record("mug", "other", [0.0, 1.0], was_cut=False)
        result = await agents.runner(gate=gate, history=history).aresume("g")
        assert (result.group.task_id, result.group.metadata) == ("mug", {"room": 3})
        assert result.decisions[0].facts is not None
        assert result.decisions[0].facts.history == (1.0, 1.0)


class TestWhatIsRefused:
    async def test_other_settings_are_named(self) -> None:
        agents = Agents()
        await agents.broken_off(agents.runner(), (LAST, 2), models=1)
        other = agents.runner(gate=replace(SURVIVE, tau=0.3), config=replace(ENFORCE, mode="observe"))
        with pytest.raises(ConfigError, match="mode 'observe' instead of 'enforce', tau 0.3 instead of 0.12"):
            await other.aresume("g")
        assert ends(await agents.runner().aresume("g")) == (2, FIRST, "desk")

    async def test_a_group_is_not_begun_twice(self, tmp_path: Path) -> None:
        agents = Agents()
        with Recorder(tmp_path / "t.jsonl") as recorder:
            runner = agents.runner(recorder=recorder)
            await runner.ainvoke(PROMPT, THREAD)
            with pytest.raises(ConfigError, match="group 'g' has been opened before"):
                await runner.ainvoke(PROMPT, THREAD)
        assert len(list(read_groups(tmp_path / "t.jsonl"))) == 1

    async def test_a_wave_that_never_began_needs_its_input(self) -> None:
        agents = Agents()
        gate = replace(SURVIVE, outcome="vote")
        agents.tool = lambda rollout, run: (
            raising(rollout, 1)(rollout, run) if rollout in (FIRST, SECOND) else None
        )
        await agents.broken_off(agents.runner(gate=gate), (THIRD, 2), models=1 + 1 + 1)
        with pytest.raises(ConfigError, match=f"nothing is stored of thread 'g/{LAST}'"):
            await agents.runner(gate=gate).aresume("g")
        assert (await agents.runner(gate=gate).aresume("g", PROMPT)).answer == "desk"

    @pytest.mark.parametrize("word", ["exit", "soon"])
    def test_a_durability_that_cannot_be_resumed(self, word: Any) -> None:
        with pytest.raises(ConfigError, match=f"durability must be one of sync, async, not '{word}'"):
            Agents().runner(durability=word)

    async def test_metadata_must_be_plain(self) -> None:
        with pytest.raises(ConfigError, match="metadata of group 'g' must be plain JSON-able data"):
            await Agents().runner().ainvoke(PROMPT, THREAD, metadata={"now": object()})


class TestTrace:
    async def test_attempts_count_up_over_any_number_of_runs(self, tmp_path: Path) -> None:
        agents = Agents()
        for stall in ((LAST, 1), (LAST, 2)):
            with Recorder(tmp_path / "t.jsonl") as recorder:
                runner = agents.runner(recorder=recorder)
                agents.stalls, agents.stalled = stall, asyncio.Event()
                running = asyncio.create_task(
                    runner.ainvoke(PROMPT, THREAD) if stall[1] == 1 else runner.aresume("g")
                )
                await agents.stalled.wait()
                running.cancel()
                await asyncio.wait({running})
        agents.stalls = None
        with Recorder(tmp_path / "t.jsonl") as recorder:
            result = await agents.runner(recorder=recorder).aresume("g")
        (recorded,) = read_groups(tmp_path / "t.jsonl")
        assert (recorded.group.attempt, result.group.attempt) == (3, 3)
        assert [r.actions for r in recorded.group.rollouts] == [r.actions for r in result.rollouts]

    async def test_a_group_that_had_ended_is_not_written_again(self, tmp_path: Path) -> None:
        agents, history = Agents(), PromptHistory()
        with Recorder(tmp_path / "t.jsonl") as recorder:
            runner = agents.runner(recorder=recorder, history=history, reward=lambda state: 1.0)
            result = await runner.ainvoke(PROMPT, THREAD)
            size, past = (tmp_path / "t.jsonl").stat().st_size, history.last("g", 8)
            again = await runner.aresume("g")
        assert (tmp_path / "t.jsonl").stat().st_size == size
        assert history.last("g", 8) == past
        assert ends(again) == ends(result)

    async def test_a_group_that_waits_for_a_reply_stays_open(self, tmp_path: Path) -> None:
        agents = Agents()

        def ask(rollout: int, run: int) -> None:
            if (rollout, run) == (LAST, 1):
                interrupt("may I?")

        agents.tool = ask
        with Recorder(tmp_path / "t.jsonl") as recorder:
            runner = agents.runner(recorder=recorder)
            result = await runner.ainvoke(PROMPT, THREAD)
            assert list(result.interrupts) == [LAST]
            (recorded,) = read_groups(tmp_path / "t.jsonl")
            assert recorded.end is None
            result = await runner.aresume("g", replies={LAST: "yes"})
        assert (result.cut_as, result.answer, dict(result.interrupts)) == (None, "desk", {})
        assert agents.runs == dict.fromkeys(range(G), STEPS)
        (recorded,) = read_groups(tmp_path / "t.jsonl")
        assert recorded.end is not None
        assert recorded.group.attempt == 2

    async def test_a_resume_that_was_refused_leaves_the_group_unfinished(self, tmp_path: Path) -> None:
        agents = Agents()
        with Recorder(tmp_path / "t.jsonl") as recorder:
            await agents.broken_off(agents.runner(recorder=recorder), (LAST, 2), models=1)
            broken = agents.runner(lambda rollout: "no agent", recorder=recorder, checkpointer=agents.saver)
            with pytest.raises(ConfigError, match="made str"):
                await broken.aresume("g")
            result = await agents.runner(recorder=recorder).aresume("g")
        (recorded,) = read_groups(tmp_path / "t.jsonl")
        assert recorded.group.attempt == result.group.attempt == 3


async def test_an_outer_graph_that_is_resumed_goes_on_with_the_group_in_its_node() -> None:
    agents = Agents()
    outer = StateGraph(MessagesState)
    outer.add_node("vote", agents.runner().as_node())
    outer.add_edge(START, "vote")
    graph = outer.compile(checkpointer=InMemorySaver())
    agents.stalls = (LAST, 2)
    running = asyncio.create_task(graph.ainvoke(PROMPT, THREAD))
    await agents.stalled.wait()
    await agents.stored(1 + (STEPS + 1) + 2 + 2)
    running.cancel()
    await asyncio.wait({running})
    agents.stalls = None
    state = await graph.ainvoke(None, THREAD)
    assert state["messages"][-1].text == "desk"
    assert agents.models.total() == G * 2 + STEPS - 1
    assert set(agents.runs.values()) == {1, STEPS}


class TestFactories:
    async def test_a_checkpointer_keeps_what_the_group_had_settled(self) -> None:
        agents = Agents()
        agents.tool = raising(FIRST, 1)
        options = {"agent": agents.compiled, "checkpointer": agents.saver}
        await agents.broken_off(agents.runner(**options), (SECOND, 4), models=1 + 3 + 2 + 2)
        agents.tool = lambda rollout, run: None
        assert ends(await agents.runner(**options).aresume("g")) == (2, SECOND, "desk")

    async def test_without_one_the_threads_alone_are_gone_on_with(self) -> None:
        agents = Agents()
        await agents.broken_off(agents.runner(agents.compiled), (LAST, 2), models=1 + 5 + 2 + 2)
        result = await agents.runner(agents.compiled).aresume("g")
        assert ends(result) == (2, FIRST, "desk")
        assert agents.runs == {FIRST: STEPS, SECOND: 1, THIRD: 1, LAST: 1}
