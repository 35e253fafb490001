"""What tracers see of a group of agents: one run with its rollouts below it, and no more than asked for."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph
from langsmith.run_helpers import get_tracing_context, tracing_context

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.survivor import survivor_order
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.langgraph import GroupRunner, UnknownUsageWarning

G = 3
PROMPT = {"messages": [("user", "Where is the mug?")]}
THREAD: RunnableConfig = {"configurable": {"thread_id": "g"}}
FIRST = survivor_order("g", G)[0]

pytestmark = pytest.mark.filterwarnings(f"ignore::{UnknownUsageWarning.__module__}.UnknownUsageWarning")


@dataclass
class Seen(BaseCallbackHandler):
    """A tracer: keeps the tree of runs."""

    run_inline = True
    parents: dict[uuid.UUID, uuid.UUID | None] = field(default_factory=dict)
    names: dict[uuid.UUID, str] = field(default_factory=dict)
    facts: dict[uuid.UUID, dict[str, Any]] = field(default_factory=dict)
    tags: dict[uuid.UUID, list[str]] = field(default_factory=dict)
    outputs: dict[uuid.UUID, Any] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)

    def on_chain_start(
        self,
        serialized: Any,
        inputs: Any,
        *,
        run_id: uuid.UUID,
        parent_run_id: uuid.UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        **rest: Any,
    ) -> None:
        self.parents[run_id], self.names[run_id] = parent_run_id, name or ""
        self.facts[run_id], self.tags[run_id] = metadata or {}, tags or []

    def on_chat_model_start(self, *told: Any, run_id: uuid.UUID, parent_run_id: Any, **rest: Any) -> None:
        self.parents[run_id], self.names[run_id] = parent_run_id, "model call"

    def on_chain_end(self, outputs: Any, *, run_id: uuid.UUID, **rest: Any) -> None:
        self.outputs[run_id] = outputs

    def on_chain_error(self, error: BaseException, **rest: Any) -> None:
        self.errors.append(error)

    def named(self, name: str) -> list[uuid.UUID]:
        return [run for run, given in self.names.items() if given == name]

    def rollouts(self) -> list[str]:
        return sorted(
            name for name in self.names.values() if name[:8] == "rollout " and name != "rollout group"
        )


def agent_of(model: Any = None) -> Any:
    model = model or FakeListChatModel(responses=["desk"])

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", END)
    return builder.compile()


def runner_of(agent: Any = None, **options: Any) -> GroupRunner:
    gate, config = GateConfig(outcome="survivor"), RunConfig(group_size=G)
    return GroupRunner(agent or agent_of(), gate=gate, config=config, **options)


async def test_a_group_is_one_tree() -> None:
    seen = Seen()
    mine: RunnableConfig = {**THREAD, "callbacks": [seen], "tags": ["mine"], "metadata": {"who": "me"}}
    await runner_of().ainvoke(PROMPT, mine)
    (group,) = seen.named("rollout group")
    assert seen.parents[group] is None
    assert seen.outputs[group] == {"answer": "desk", "status": "finished", "cut_at": None}
    assert seen.facts[group].items() >= {"who": "me", "sr_group": "g"}.items()
    for index in range(G):
        (run,) = seen.named(f"rollout {index}")
        assert seen.parents[run] == group
        assert seen.facts[run].items() >= {"who": "me", "sr_group": "g", "sr_rollout": index}.items()
        assert {"mine", "selective-rollout", f"rollout:{index}"} <= set(seen.tags[run])
    assert len(seen.named("model call")) == G
    assert seen.errors == []


async def test_the_group_takes_the_name_and_the_id_that_were_given() -> None:
    seen, run_id = Seen(), uuid.uuid4()
    await runner_of().ainvoke(PROMPT, {"callbacks": [seen], "run_name": "vote", "run_id": run_id})
    assert seen.names[run_id] == "vote"
    assert len(seen.rollouts()) == G


@pytest.mark.parametrize(
    ("trace", "heard"),
    [("all", [f"rollout {i}" for i in range(G)]), ("survivor", [f"rollout {FIRST}"]), ("off", [])],
)
async def test_as_much_is_heard_as_was_asked_for(trace: Any, heard: list[str]) -> None:
    seen = Seen()
    await runner_of(trace=trace).ainvoke(PROMPT, {**THREAD, "callbacks": [seen]})
    assert seen.rollouts() == heard
    assert len(seen.named("model call")) == len(heard)
    assert len(seen.named("rollout group")) == (trace != "off")


@pytest.mark.parametrize(("trace", "enabled"), [("all", G), ("survivor", 1), ("off", 0)])
async def test_langsmith_is_told_as_much(trace: Any, enabled: int) -> None:
    """Tracing is on around the run, as by LANGSMITH_TRACING; without a key no tracer reaches a network."""
    states: list[Any] = []

    async def ask(state: MessagesState) -> dict[str, Any]:
        states.append(get_tracing_context()["enabled"])
        return {"messages": [("ai", "desk")]}

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    with tracing_context(enabled=True):
        await runner_of(builder.compile(), trace=trace).ainvoke(PROMPT, THREAD)
    assert sorted(states) == [False] * (G - enabled) + [True] * enabled


async def test_a_group_that_breaks_is_an_error_in_the_tree() -> None:
    seen = Seen()
    with pytest.raises(ConfigError):
        await runner_of(lambda rollout: "no agent").ainvoke(PROMPT, {"callbacks": [seen]})
    assert [type(error) for error in seen.errors] == [ConfigError]


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="trace must be one of all, survivor, off, not 'none'"):
        runner_of(trace="none")


async def test_the_callbacks_of_an_outer_graph_end_at_its_node() -> None:
    seen = Seen()
    outer = StateGraph(MessagesState)
    outer.add_node("vote", runner_of().as_node())
    outer.add_edge(START, "vote")
    await outer.compile().ainvoke(PROMPT, {"callbacks": [seen]})
    assert seen.rollouts() == []
    assert seen.named("model call") == []


async def test_a_rollout_that_was_stopped_has_no_output() -> None:
    async def model(state: MessagesState) -> dict[str, Any]:
        step = len(state["messages"])
        call = {"name": "look", "args": {"n": step}, "id": f"c{step}"}
        return {"messages": [AIMessage("" if step < 5 else "desk", tool_calls=[call] if step < 5 else [])]}

    async def tools(state: MessagesState) -> dict[str, Any]:
        (call,) = state["messages"][-1].tool_calls  # type: ignore[union-attr]
        return {"messages": [ToolMessage("nothing", tool_call_id=call["id"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", tools)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    builder.add_edge("tools", "model")
    seen, gate = Seen(), GateConfig(start_step=2, outcome="survivor")
    config = RunConfig(group_size=G, mode="enforce")
    runner = GroupRunner(builder.compile(), gate=gate, config=config, certified=True)
    result = await runner.ainvoke(PROMPT, {**THREAD, "callbacks": [seen]})
    assert (result.cut_at, result.survivor) == (2, FIRST)
    ended = {name for run in seen.outputs if (name := seen.names[run]).startswith("rollout")}
    assert ended == {"rollout group", f"rollout {FIRST}"}
    assert [type(error) for error in seen.errors] == [GeneratorExit] * (G - 1)
