"""`build_graph`: a group of rollouts and its gate as a LangGraph graph."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final, cast

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Checkpointer, Command, RetryPolicy

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.conversation import Opening, default_opening, prompt_opening
from selective_rollout.engine.rule import GateFile, accepted_rule
from selective_rollout.engine.watch import AuditWatch
from selective_rollout.env.base import EnvironmentFactory
from selective_rollout.env.prompt import PromptEnvironment
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.integrations.langgraph import nodes
from selective_rollout.integrations.langgraph.session import Parts, PolicyFactory, Session
from selective_rollout.integrations.langgraph.settings import GroupContext
from selective_rollout.integrations.langgraph.state import GroupInput, GroupState, StepInput, plain_copy
from selective_rollout.policy.base import Policy
from selective_rollout.trace.recorder import Recorder

_INPUTS: Final = ("prompt", "task_id", "group_id", "metadata")
_OFTEN_MISPLACED: Final = ("group_size", "tau", "max_steps")


class GroupGraph(CompiledStateGraph[GroupState, GroupContext, GroupInput, GroupState]):
    """The compiled graph; to LangGraph's it adds that what a run holds is released however the run ends."""

    def __init__(self, *, parts: Parts, **compiled: Any) -> None:
        super().__init__(**compiled)
        self.parts = parts

    def stream(
        self, input: Any, config: RunnableConfig | None = None, *, context: Any = None, **options: Any
    ) -> Iterator[Any]:
        """See `CompiledStateGraph.stream`; `invoke` comes here too."""
        session: Any = Session(self.parts, GroupContext.read(context))
        config = self._with_threads(config, session.config.group_size)
        chunks = cast(
            Generator[Any], super().stream(checked_input(input), config, context=session, **options)
        )
        try:
            for chunk in chunks:  # noqa: UP028 - "yield from" would wait for requests in flight before the abort
                yield chunk
        finally:
            session.abort()
            chunks.close()
            session.close()

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, *, context: Any = None, **options: Any
    ) -> AsyncIterator[Any]:
        """See `CompiledStateGraph.astream`; `ainvoke` comes here too."""
        session: Any = Session(self.parts, GroupContext.read(context))
        input = checked_input(input)
        chunks = cast(AsyncGenerator[Any], super().astream(input, config, context=session, **options))
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
        finally:
            await session.aclose()

    def _with_threads(self, config: RunnableConfig | None, group_size: int) -> RunnableConfig:
        """Give each rollout a thread, and the stream one; LangGraph's default is the number of cores + 4."""
        config = config or {}
        if config.get("max_concurrency") or (self.config or {}).get("max_concurrency"):
            return config
        return {**config, "max_concurrency": group_size + 1}


def checked_input(input: Any) -> Any:
    """What a run starts from, as a copy that shares nothing with the caller's.

    Returns:
        All inputs, with None for those not given, so that nothing of a thread's earlier group is taken for
        one. None and commands, which resume a run, pass as they are.

    Raises:
        ConfigError: it is no dict, has no prompt, or holds settings.
    """
    if input is None or isinstance(input, Command):
        return input
    if not isinstance(input, Mapping):
        raise ConfigError(f'input must be a dict such as {{"prompt": "..."}}, not {type(input).__name__}')
    misplaced = [name for name in _OFTEN_MISPLACED if name in input]
    if misplaced:
        raise ConfigError(
            f"input: {', '.join(misplaced)} is a setting; pass it as context, such as "
            f"graph.invoke({{'prompt': ...}}, context={{{misplaced[0]!r}: {input[misplaced[0]]!r}}})"
        )
    prompt = input.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise ConfigError(f"input: prompt must be a text that is not empty, not {prompt!r}")
    for name in ("task_id", "group_id"):
        if not isinstance(input.get(name), str | None):
            raise ConfigError(f"input: {name} must be a text, not {input[name]!r}")
    try:
        return {name: plain_copy(input.get(name), name) for name in _INPUTS}
    except TypeError as error:
        raise ConfigError(f"input: {error}") from None


def build_graph(
    policy: Policy | PolicyFactory | None = None,
    environment: EnvironmentFactory | None = None,
    *,
    gate: GateConfig | GateFile | None = None,
    config: RunConfig | None = None,
    recorder: Recorder | None = None,
    opening: Opening | None = None,
    checkpointer: Checkpointer = None,
    certified: bool | GateFile = False,
    retry: RetryPolicy | None = None,
    history: PromptHistory | None = None,
    name: str = "selective_rollout",
) -> GroupGraph:
    """Build a graph that runs one prompt through a group of rollouts and stops the group as the gate says.

    `graph.invoke({"prompt": "..."})` runs a group; `GroupResult.from_state` reads what it returns. Supersteps
    are barriers, so every rollout waits at every step for the slowest (the engine's hold `all`).

    Args:
        policy: turns a conversation into the next message; or a function without arguments that makes one for
            each run, which is then closed with the run. None: an `OpenAIPolicy` for each run, on the endpoint
            and model that SELECTIVE_ROLLOUT_*, VLLM_* or OPENAI_* variables name when the run starts. A
            policy given as such belongs to one event loop: `invoke` uses one loop for all its runs.
        environment: makes the world of one rollout. None: `PromptEnvironment`, which is none.
        gate: the decision rule, or a gate file that holds one; the paper's by default.
        config: how to run; observe mode with 8 rollouts by default. `stop`, `hold_timeout_s` and, with a
            policy of your own, `concurrency` have no effect here: nothing is in flight at a check, and
            LangGraph's own `max_concurrency` bounds the requests.
        recorder: where to write the trace.
        opening: makes the first messages of a conversation. None: `default_opening`, or, without an
            environment, `prompt_opening`.
        checkpointer: keeps the state of each thread. A run that goes on from it re-steps recorded actions in
            environments that are replayable; rollouts in others fail.
        certified: True vouches for the rule; the path of a gate file certifies it, unless the rule may cut
            groups that the certified one keeps. A `gate` file that holds its certificate needs neither.
            Enforcing a rule that nothing certifies warns.
        retry: when a step that broke is tried again, by each rollout for itself; the step counts once. Its
            completion is not asked for again, and an environment that broke in it is rebuilt, if it is
            replayable. With the default `retry_on`, also failures of endpoint and environment that may pass.
        history: the prompts' earlier rewards, by `task_id`; read by the rule, and added to.
        name: of the graph.

    Returns:
        A compiled `StateGraph`; its context is a `GroupContext`.

    Raises:
        ConfigError: `config.hold` is something that supersteps cannot do, or a rule that its certificate
            does not cover.
    """
    config = config or RunConfig()
    if config.hold not in (None, "all"):
        raise ConfigError(
            f"run.hold must be all in a graph, whose supersteps are barriers, not {config.hold}"
        )
    usual_opening = prompt_opening if environment is None else default_opening
    accepted = accepted_rule(GateConfig() if gate is None else gate, config, certified=certified)
    parts = Parts(
        policy=policy,
        environment=environment or PromptEnvironment,
        opening=opening or usual_opening,
        config=config,
        recorder=recorder,
        accepted=accepted,
        watch=AuditWatch(accepted, config),
        retry=retry,
        history=history,
    )
    builder = StateGraph(GroupState, context_schema=GroupContext, input_schema=GroupInput)
    builder.add_node("open", nodes.plain_node(nodes.open_group, "open"))
    builder.add_node("rollout_step", nodes.step_node(), input_schema=StepInput)
    builder.add_node("gate", nodes.plain_node(nodes.gate, "gate"))
    builder.add_node("finish", nodes.plain_node(nodes.finish, "finish"))
    builder.add_edge(START, "open")
    builder.add_conditional_edges("open", nodes.send_on, ["rollout_step"])
    builder.add_edge("rollout_step", "gate")
    builder.add_conditional_edges("gate", nodes.send_on, ["rollout_step", "finish"])
    builder.add_edge("finish", END)
    compiled = builder.compile(checkpointer=checkpointer, name=name)
    return GroupGraph(
        parts=parts, **{key: value for key, value in vars(compiled).items() if not key.startswith("_")}
    )
