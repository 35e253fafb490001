"""`GroupRunner`: any compiled LangGraph agent as a gated group."""

from __future__ import annotations

import asyncio
import contextvars
import uuid
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.config import get_stream_writer
from langgraph.pregel import Pregel
from langgraph.runtime import get_runtime
from langgraph.types import StreamMode

from selective_rollout.actions import default_answer
from selective_rollout.engine.batch import warn_about
from selective_rollout.engine.config import RunConfig
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.gate.signals import signal
from selective_rollout.integrations.langgraph import threads
from selective_rollout.integrations.langgraph.agent_group import AgentGroup, Aggregate, Identity, Rules
from selective_rollout.integrations.langgraph.agent_result import AgentGroupResult, GroupEvent
from selective_rollout.integrations.langgraph.bridge import LoopThread
from selective_rollout.integrations.langgraph.drive import Setup, Start, check_messages_key
from selective_rollout.integrations.langgraph.messages import field, messages_of, text_of
from selective_rollout.integrations.langgraph.threads import Agent, AgentFactory
from selective_rollout.integrations.langgraph.watch import warn_of_unknown_usage
from selective_rollout.trace.recorder import Recorder

T = TypeVar("T")


class GroupRunner:
    """Runs a group of copies of an agent, and stops the group as the gate says.

        runner = GroupRunner(agent, gate=GateConfig(start_step=3, outcome="survivor"),
                             config=RunConfig(mode="enforce"))
        result = runner.invoke({"messages": [("user", "...")]})
        result.answer, result.messages, result.ledger

    Every copy runs every tool, up to where the group is stopped: tools that change the world need a factory
    that gives each rollout a world of its own.

    No tool beyond the step of a check begins before the gate has decided (unless `hold` is "none"), since the
    gate hears of an action when the model has chosen it. What a graph nested in a node of the agent does
    within one superstep is only seen when that node ends.

    A rollout that ends takes one more action, `final` with its answer; see `Account.finish`.

    Args:
        agent: a compiled graph, which all rollouts share; or a factory, called with each rollout's index,
            that makes a graph, an awaitable of one, or a context manager that yields one.
        gate: the decision rule; the paper's by default. Outcome "drop" gives no answer: ask for "survivor" or
            "vote" at inference.
        config: how to run; observe mode with 8 rollouts by default. `concurrency` bounds the supersteps that
            run at once; no slot is held while a rollout waits. `stop` decides about supersteps in flight:
            "safe" lets them complete, "drain" has the graph itself stop there, "cancel" interrupts them,
            and a tool that was interrupted runs again if its thread is resumed.
        recorder: where to write the trace.
        answer_fn: makes an answer of a closing message's text, in a form that equal answers share.
        answer_key: take the answer from this key of the final state instead of from the last message.
        messages_key: where the agent's state keeps its messages.
        reward: scores a final state (may be a coroutine function); None: unscored.
        aggregate: makes the answer of a group that ran to its end; None: its rollouts vote.
        history: the prompts' earlier rewards, by `task_id`; read by the rule, and added to.
        certified: the rule comes with an accepted certificate; without, enforcing it warns.

    Raises:
        ConfigError: settings that contradict each other, or an agent without messages.
    """

    def __init__(
        self,
        agent: Agent | AgentFactory,
        *,
        gate: GateConfig | None = None,
        config: RunConfig | None = None,
        recorder: Recorder | None = None,
        answer_fn: Callable[[str], str | None] = default_answer,
        answer_key: str | None = None,
        messages_key: str = "messages",
        reward: Callable[[Any], object] | None = None,
        aggregate: Aggregate | None = None,
        history: PromptHistory | None = None,
        certified: bool = False,
    ) -> None:
        self._rules = Rules(gate or GateConfig(), aggregate, recorder, history)
        self._setup = Setup(
            agent, config or RunConfig(), messages_key, _reader(answer_fn, answer_key, messages_key), reward
        )
        self._certified = certified
        self._loop = LoopThread()
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self._has_warned_of_usage = False
        _check_rules(self._rules, self._setup.config)
        if isinstance(agent, Pregel):
            check_messages_key(agent, messages_key)
        elif not callable(agent):
            raise ConfigError(
                f"the agent must be a compiled graph or a factory of one, not {type(agent).__name__}: "
                "call compile() on a StateGraph"
            )

    async def ainvoke(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        context: Any = None,
        task_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> AgentGroupResult:
        """Run one group.

        Args:
            input: what each agent is given, as a deep copy of its own.
            config: LangGraph's. Its thread id is the group's id (random without one), and rollout i runs on
                thread `{group_id}/{i}`.
            context: handed to the agents as it is.
            task_id: the independent unit of statistics; the group id by default.
            metadata: facts about the task, for the trace.

        Raises:
            ConfigError: the agents cannot be driven, or their threads are in use.
        """
        start = Start(input, config, context)
        return await self._run(self._identity(config, task_id, metadata), start, _ignore)

    async def astream(
        self,
        input: Any,
        config: RunnableConfig | None = None,
        *,
        context: Any = None,
        task_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        stream_mode: StreamMode | Sequence[StreamMode] = (),
    ) -> AsyncGenerator[GroupEvent]:
        """Run one group and yield what happens; the last event holds the result.

        The group runs at its own pace: a reader that stops reading does not hold it, one that closes the
        stream cancels it.

        Args:
            input: as in `ainvoke`, like the others.
            config: LangGraph's.
            context: handed to the agents.
            task_id: the independent unit of statistics.
            metadata: facts about the task.
            stream_mode: parts of the agents' own streams to pass on. "messages" makes chat models stream
                tokens, whose usage some servers do not report.
        """
        modes = (stream_mode,) if isinstance(stream_mode, str) else tuple(stream_mode)
        start = Start(input, config, context, modes)
        identity = self._identity(config, task_id, metadata)
        events: asyncio.Queue[GroupEvent | None] = asyncio.Queue()
        running = asyncio.create_task(self._run(identity, start, events.put_nowait))
        running.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            result = await running
            yield GroupEvent(type="result", group_id=result.group.id, result=result)
        finally:
            running.cancel()
            await asyncio.wait({running})

    async def aresume(
        self,
        group_id: str,
        input: Any = None,
        config: RunnableConfig | None = None,
        *,
        replies: Mapping[int, Any] | None = None,
        context: Any = None,
        task_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        attempt: int = 2,
    ) -> AgentGroupResult:
        """Go on with a group whose process died, that was cancelled, or that waits for replies.

        Each rollout goes on from its thread; its earlier actions are told to the gate again, whose decisions
        depend on positions only. Nothing that is stored is repeated.

        Args:
            group_id: the thread id that the group was started with.
            input: the group's input, for rollouts that had not begun; without, they are refused.
            config: LangGraph's; its thread id is not read.
            replies: answers to interrupts, by rollout.
            context: handed to the agents.
            task_id: the independent unit of statistics; the group id by default.
            metadata: facts about the task, for the trace.
            attempt: counts the runs of this group, for the trace.

        Raises:
            ConfigError: nothing is stored of a rollout, or the agents have no checkpointer.
        """
        start = Start(input, config, context, is_resume=True, replies=replies or {})
        identity = Identity(group_id, task_id or group_id, dict(metadata or {}), attempt)
        return await self._run(identity, start, _ignore)

    async def aclose_threads(self, group_id: str, config: RunnableConfig | None = None) -> int:
        """Answer the tool calls that stopped rollouts left open in their threads.

        A model refuses a conversation in which a tool call has no reply, so a thread of a stopped rollout
        must be closed before it is given a new message. It cannot be resumed afterwards.

        Returns:
            Number of calls that were answered, each with an error.
        """
        mended = 0
        for rollout in range(self._setup.config.group_size):
            thread = threads.rollout_config(config, group_id, rollout)
            async with threads.opened(self._setup.agent, rollout) as agent:
                mended += await threads.mend(agent, thread, self._setup.messages_key)
        return mended

    def invoke(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> AgentGroupResult:
        """`ainvoke` for callers without an event loop; all runs of a runner share a loop in a thread."""
        return self._wait_for(self.ainvoke(input, config, **options))

    def resume(self, group_id: str, input: Any = None, **options: Any) -> AgentGroupResult:
        """`aresume` for callers without an event loop."""
        return self._wait_for(self.aresume(group_id, input, **options))

    def stream(
        self, input: Any, config: RunnableConfig | None = None, **options: Any
    ) -> Generator[GroupEvent]:
        """`astream` for callers without an event loop."""
        events = self.astream(input, config, **options)
        try:
            while (event := self._wait_for(_next(events))) is not None:
                yield event
        finally:
            self._wait_for(events.aclose())

    def as_node(
        self,
        *,
        input: Callable[[Any], Any] | None = None,
        output: Callable[[AgentGroupResult], Any] | None = None,
    ) -> RunnableLambda[Any, Any]:
        """A node that runs a group, for a graph around it.

        The group is a run of its own: the outer graph's tracers and token streams do not see its agents. What
        happens in it is written to the outer graph's `custom` stream, as `GroupEvent`.

        Args:
            input: makes the agents' input of the outer state; by default its messages.
            output: makes the node's update of the result; by default the speaker's new messages.

        Returns:
            A node for both kinds of run. It raises `SelectiveRolloutError` if every rollout failed.
        """
        key = self._setup.messages_key
        read = input or (lambda state: {key: list(messages_of(state, key))})
        write = output or (lambda result: {key: list(result.messages)})

        async def run(state: Any) -> Any:
            write_part, here = get_stream_writer(), contextvars.copy_context()

            def emit(event: GroupEvent) -> None:
                here.run(write_part, event)  # the writer looks up its node in the context

            identity = self._identity({"configurable": {"thread_id": _node_id()}}, None, None)
            result = await self._run(identity, Start(read(state), None), emit)
            result.raise_for_failure()
            return write(result)

        return RunnableLambda(lambda state: self._wait_for(run(state)), afunc=run, name="group")

    def _identity(
        self, config: RunnableConfig | None, task_id: str | None, metadata: Mapping[str, Any] | None
    ) -> Identity:
        group_id = threads.group_of(config) or uuid.uuid4().hex
        return Identity(group_id, task_id or group_id, dict(metadata or {}))

    async def _run(
        self, identity: Identity, start: Start, emit: Callable[[GroupEvent], None]
    ) -> AgentGroupResult:
        warn_about(self._rules.gate, self._setup.config, self._certified)
        loop = asyncio.get_running_loop()
        slots = self._slots.setdefault(loop, asyncio.Semaphore(self._setup.config.concurrency))
        result = await AgentGroup(identity, self._rules, self._setup, start, slots, emit).run()
        if result.ledger.unknown_requests and not self._has_warned_of_usage:
            self._has_warned_of_usage = True
            warn_of_unknown_usage(result.ledger)
        return result

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._loop.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _reader(
    answer_fn: Callable[[str], str | None], answer_key: str | None, messages_key: str
) -> Callable[[Any], str | None]:
    def read(state: Any) -> str | None:
        if answer_key is not None:
            value = field(state, answer_key)
            return None if value is None else answer_fn(value if isinstance(value, str) else str(value))
        messages = messages_of(state, messages_key)
        return answer_fn(text_of(messages[-1])) if messages else None

    return read


def _check_rules(rules: Rules, config: RunConfig) -> None:
    gate = rules.gate
    if rules.aggregate is not None and gate.outcome == "vote" and config.mode == "enforce":
        raise ConfigError(
            'gate.outcome "vote" stops once a majority is decided, and an aggregate of your own needs every '
            'answer: use outcome "survivor", or mode "observe"'
        )
    for name in gate.score.features if gate.score is not None else ():
        late = sorted(signal(name).needs & {"observations", "errors"})
        if late:
            raise ConfigError(
                f"gate.score reads {' and '.join(late)} ({name}), which are not known yet where this runner "
                "decides, before the tools of a step run: fit a score without it"
            )
    if gate.history_mixed and rules.history is None:
        warnings.warn(
            "gate.history_mixed needs a PromptHistory: without one this gate can never fire", stacklevel=3
        )


def _node_id() -> str | None:
    """An id that stays the same when the outer graph is resumed; None outside a thread."""
    info = get_runtime().execution_info
    return None if info is None or info.thread_id is None else f"{info.thread_id}/{info.checkpoint_ns}"


def _ignore(event: GroupEvent) -> None:
    """Nobody listens."""


async def _next(events: AsyncGenerator[GroupEvent]) -> GroupEvent | None:
    return await anext(events, None)
