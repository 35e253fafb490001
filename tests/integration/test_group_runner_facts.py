"""What a group of agents leaves behind and finds out: threads, traces, samples that are copies, its price."""

from __future__ import annotations

import asyncio
import contextlib
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState
from tests.integration.walking_agents import (
    DROP,
    ENFORCE,
    ORDER,
    PROMPT,
    SURVIVE,
    G,
    World,
    compiled,
    number_of,
    runner_of,
    same_way,
    saver_of,
    scripted,
    statuses,
)

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.rule import UncertifiedGateWarning
from selective_rollout.errors import ConfigError
from selective_rollout.gate.history import PromptHistory
from selective_rollout.integrations.langgraph import (
    AgentGroupResult,
    GroupRunner,
    IdenticalSamplingWarning,
    UnknownUsageWarning,
)
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Usage

THREAD: RunnableConfig = {"configurable": {"thread_id": "g"}}


class TestThreads:
    async def test_a_closed_thread_takes_a_new_message(self) -> None:
        agent = scripted(same_way, World(), checkpointer=InMemorySaver())
        runner = runner_of(agent, DROP)
        result = await runner.ainvoke(PROMPT, THREAD)
        assert await runner.aclose_threads("g") == G
        assert await runner.aclose_threads("g") == 0
        thread: RunnableConfig = {
            "configurable": {"thread_id": result.thread_ids[0]},
            "metadata": {"sr_rollout": 0},
        }
        state = await agent.aget_state(thread)
        assert (state.next, state.values["messages"][-1].status) == (("model",), "error")
        after = await agent.ainvoke({"messages": [("user", "And the cup?")]}, thread)
        kinds = [message.type for message in after["messages"][:9]]
        assert kinds == ["human", "ai", "tool", "ai", "tool", "ai", "tool", "human", "ai"]

    async def test_a_thread_in_use_is_refused(self) -> None:
        runner = runner_of(scripted(same_way, World(), checkpointer=InMemorySaver()), DROP)
        await runner.ainvoke(PROMPT, THREAD)
        with pytest.raises(ConfigError, match="group .g. has been opened before, .* aresume"):
            await runner.ainvoke(PROMPT, THREAD)

    @pytest.mark.parametrize("saver", ["memory", "sqlite"])
    async def test_a_cancelled_group_goes_on_where_it_was(self, saver: str, tmp_path: Path) -> None:
        """Every tool runs exactly as often as in a group that nobody disturbed."""
        world, stuck = World(), asyncio.Event()

        async def pause(rollout: int, step: int) -> None:
            if (rollout, step) == (ORDER[3], 2) and not stuck.is_set():
                stuck.set()
                await asyncio.sleep(30)

        async with saver_of(saver, tmp_path) as checkpointer:
            runner = runner_of(scripted(same_way, world, pause, checkpointer=checkpointer))
            waited_for = {(ORDER[0], None), *((rollout, 3) for rollout in ORDER if rollout != ORDER[3])}
            async with contextlib.aclosing(runner.astream(PROMPT, THREAD)) as events:
                async for event in events:
                    waited_for.discard((event.rollout or 0, event.step))
                    if not waited_for and stuck.is_set():
                        for _ in range(20):  # for what is being stored
                            await asyncio.sleep(0.001)
                        break
            result = await runner.aresume("g")
            again = await runner.aresume("g", attempt=3)
        assert (result.cut_at, result.survivor, result.answer) == (3, ORDER[0], "desk")
        assert world.begun == 2 * G + 4
        assert again.rollouts == result.rollouts
        assert (again.group.attempt, again.answer) == (3, "desk")

    async def test_resuming_what_never_was_is_refused(self) -> None:
        runner = runner_of(scripted(same_way, World(), checkpointer=InMemorySaver()))
        with pytest.raises(ConfigError, match="nothing is stored of group .g."):
            await runner.aresume("g")
        assert (await runner.aresume("g", PROMPT)).answer == "desk"

    async def test_each_rollout_can_be_told_by_thread_tags_and_metadata(self) -> None:
        seen: dict[int, RunnableConfig] = {}

        async def model(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
            seen[number_of(config)] = config
            usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
            return {"messages": [AIMessage("desk", usage_metadata=usage)]}

        mine: RunnableConfig = {
            "tags": ["mine"],
            "metadata": {"who": "me"},
            "configurable": {"thread_id": "t", "checkpoint_id": "x", "user": "u"},
        }
        await runner_of(compiled(model, World()), config=RunConfig(group_size=2)).ainvoke(PROMPT, mine)
        config = seen[1]
        assert set(config["tags"]) >= {"mine", "selective-rollout", "rollout:1"}
        assert config["metadata"].items() >= {"who": "me", "sr_group": "t", "sr_rollout": 1}.items()
        assert (config["configurable"]["thread_id"], config["configurable"]["user"]) == ("t/1", "u")
        assert "checkpoint_id" not in mine["configurable"] or mine["configurable"]["checkpoint_id"] == "x"


class TestRecord:
    async def test_the_trace_holds_what_happened(self, tmp_path: Path) -> None:
        trace = tmp_path / "trace.jsonl"
        with Recorder(trace) as recorder:
            runner = runner_of(scripted(same_way, World()), recorder=recorder)
            result = await runner.ainvoke(PROMPT, THREAD, task_id="mug", metadata={"room": "hall"})
        (recorded,) = read_groups(trace)
        group = recorded.group
        assert (group.id, group.task_id, dict(group.metadata)) == ("g", "mug", {"room": "hall"})
        assert [rollout.actions for rollout in group.rollouts] == [r.actions for r in result.rollouts]
        assert [rollout.status for rollout in group.rollouts] == [r.status for r in result.rollouts]
        step = group.rollouts[ORDER[0]].steps[0]
        assert (step.usage, step.is_error) == (Usage(prompt=10, completion=2, source="server"), False)
        assert step.observation_hash is not None
        assert group.rollouts[ORDER[1]].steps[2].observation_hash is None

    async def test_rewards_enter_the_decision_and_the_history(self) -> None:
        history = PromptHistory()
        runner = runner_of(
            scripted(lambda rollout, step: "desk" if step > rollout % 2 else "call:look", World()),
            replace(DROP, start_step=1),
            RunConfig(group_size=4),
            reward=lambda state: len(state["messages"]) < 3,
            history=history,
        )
        result = await runner.ainvoke(PROMPT, task_id="mug")
        assert [rollout.reward for rollout in result.rollouts] == [1.0, 0.0, 1.0, 0.0]
        assert history.last("mug", 4) == (1.0, 0.0, 1.0, 0.0)

    async def test_enforcing_without_a_certificate_warns(self) -> None:
        runner = GroupRunner(scripted(same_way, World()), gate=SURVIVE, config=ENFORCE)
        with pytest.warns(UncertifiedGateWarning):
            await runner.ainvoke(PROMPT)


class Fixed(BaseChatModel):
    """A chat model that looks around twice, and says what it was told to say about its usage."""

    temperature: float | None = None
    seed: int | None = None
    n: int = 1
    usage: dict[str, int] | None = {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8}  # noqa: RUF012

    @property
    def _llm_type(self) -> str:
        return "fixed"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "seed": self.seed, "n": self.n}

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        step = sum(message.type == "ai" for message in messages) + 1
        calls = [{"name": "look", "args": {"n": step}, "id": f"c{step}"}] if step < 3 else []
        said = AIMessage("" if calls else "desk", tool_calls=calls, usage_metadata=self.usage)
        return ChatResult(generations=[ChatGeneration(message=said)])


def agent_with(model: BaseChatModel) -> Any:
    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return compiled(ask, World())


class TestSampling:
    GATE = replace(SURVIVE, start_step=2)

    async def run(self, model: Any, config: RunConfig = ENFORCE) -> AgentGroupResult:
        agent = agent_with(model) if isinstance(model, BaseChatModel) else model
        return await runner_of(agent, self.GATE, config).ainvoke(PROMPT, THREAD)

    async def test_an_ordinary_model_is_cut_without_a_word(self) -> None:
        result = await self.run(Fixed(temperature=0.8))
        assert (result.cut_at, result.ledger.completion, result.ledger.requests) == (2, 3 * 17, 17)

    @pytest.mark.parametrize(
        ("settings", "words"), [({"seed": 7}, "with one seed"), ({"temperature": 0}, "at temperature 0")]
    )
    async def test_copies_are_never_cut(self, settings: Any, words: str) -> None:
        with pytest.warns(IdenticalSamplingWarning, match=words):
            result = await self.run(Fixed(**settings))
        assert (result.cut_as, statuses(result)) == (None, {"finished": G})

    async def test_seeds_of_their_own_are_no_copies(self) -> None:
        result = await self.run(lambda rollout: agent_with(Fixed(seed=rollout)))
        assert result.cut_at == 2

    async def test_a_cache_is_noticed(self) -> None:
        set_llm_cache(InMemoryCache())
        try:
            with pytest.warns(IdenticalSamplingWarning, match="set_llm_cache"):
                result = await self.run(Fixed())
        finally:
            set_llm_cache(None)
        assert result.cut_as is None

    async def test_one_response_given_to_two_rollouts_is_noticed(self) -> None:
        async def model(state: MessagesState) -> dict[str, Any]:
            step = sum(message.type == "ai" for message in state["messages"]) + 1
            usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
            calls = [{"name": f"look{step}", "args": {}, "id": f"c{step}"}] if step < 4 else []
            told = {"id": f"response-{step}"}
            return {
                "messages": [AIMessage("", tool_calls=calls, usage_metadata=usage, response_metadata=told)]
            }

        with pytest.warns(IdenticalSamplingWarning, match="one and the same response"):
            result = await self.run(compiled(model, World()))
        assert result.cut_as is None

    async def test_several_choices_are_named(self) -> None:
        with pytest.warns(UnknownUsageWarning, match="n=3 choices"):
            await self.run(Fixed(n=3))

    async def test_usage_that_nobody_counted_is_unknown_and_said_once(self) -> None:
        runner = runner_of(agent_with(Fixed(usage=None)), self.GATE)
        with pytest.warns(UnknownUsageWarning, match="17 of 17 model replies .* stream_usage=True"):
            result = await runner.ainvoke(PROMPT)
        assert (result.ledger.unknown_requests, result.ledger.completion) == (17, 0)
        assert result.rollouts[0].steps[0].usage == Usage()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await runner.ainvoke(PROMPT)


def test_sixty_four_rollouts_of_twenty_steps_cost_little() -> None:
    """The budget is 10 ms a rollout-step on a quiet machine; here five times that, against a noisy one."""
    agent = scripted(lambda rollout, step: f"call:look{step}_{rollout}" if step < 20 else "desk", World())
    config = replace(ENFORCE, group_size=64, concurrency=64)
    began = time.process_time()
    result = runner_of(agent, replace(SURVIVE, start_step=10), config).invoke(PROMPT)
    spent = time.process_time() - began
    assert statuses(result) == {"finished": 64}
    assert spent / (64 * 20) < 0.050
    print(f"{spent / (64 * 20) * 1000:.2f} ms of processor time a rollout-step")
