"""`GroupRunner`: any compiled LangGraph agent as a gated group."""

from __future__ import annotations

import asyncio
import contextvars
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast, get_args
from weakref import WeakKeyDictionary

from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.config import get_stream_writer
from langgraph.pregel import Pregel
from langgraph.types import StreamMode

from selective_rollout.actions import default_answer
from selective_rollout.draws import is_audited
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.loop import shared_loop
from selective_rollout.engine.rule import GateFile, accepted_rule, warn_about
from selective_rollout.engine.sampling import warn_of_unknown_usage
from selective_rollout.engine.watch import AuditWatch, observing
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.integrations.langgraph import threads
from selective_rollout.integrations.langgraph.agent_group import AgentGroup
from selective_rollout.integrations.langgraph.agent_result import AgentGroupResult, GroupEvent
from selective_rollout.integrations.langgraph.drive import Setup, Start, check_messages_key
from selective_rollout.integrations.langgraph.messages import answer_reader, messages_of
from selective_rollout.integrations.langgraph.record import GroupRecord, Identity, Saver
from selective_rollout.integrations.langgraph.rules import Aggregate, Rules
from selective_rollout.integrations.langgraph.threads import Agent, AgentFactory
from selective_rollout.integrations.langgraph.tracing import GroupTracing, Trace
from selective_rollout.trace.recorder import Recorder


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
        gate: the decision rule, or a gate file that holds one; the paper's by default. Outcome "drop" gives
            no answer: ask for "survivor" or "vote" at inference.
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
        certified: True vouches for the rule; the path of a gate file certifies it, unless the rule may cut
            groups that the certified one keeps. A `gate` file that holds its certificate needs neither.
            Enforcing a rule that nothing certifies warns.
        checkpointer: keeps the group's own record; the agent's own by default. Agents of a factory need it
            to be resumed with all that their group had settled.
        durability: when LangGraph stores a superstep, if the agents have a checkpointer. "sync": before the
            next one begins, so that a process that was killed repeats only what was in flight. "async" is
            faster, and may lose the superstep before it too.
        trace: which rollouts LangSmith and the callbacks of `config` hear of: "all", "survivor" (the one that
            is first in line) or "off".

    Raises:
        ConfigError: settings that contradict each other, a rule that its certificate does not cover, or an
            agent without messages.
    """

    def __init__(
        self,
        agent: Agent | AgentFactory,
        *,
        gate: GateConfig | GateFile | None = None,
        config: RunConfig | None = None,
        recorder: Recorder | None = None,
        answer_fn: Callable[[str], str | None] = default_answer,
        answer_key: str | None = None,
        messages_key: str = "messages",
        reward: Callable[[Any], object] | None = None,
        aggregate: Aggregate | None = None,
        history: PromptHistory | None = None,
        certified: bool | GateFile = False,
        checkpointer: Saver | None = None,
        durability: Literal["sync", "async"] = "sync",
        trace: Trace = "all",
    ) -> None:
        config = config or RunConfig()
        accepted = accepted_rule(GateConfig() if gate is None else gate, config, certified=certified)
        self._rules = Rules(accepted, aggregate, recorder, history)
        reads_answer = answer_reader(answer_fn, answer_key, messages_key)
        self._setup = Setup(agent, config, messages_key, reads_answer, reward, durability)
        self._saver = checkpointer
        self._trace = trace
        self._attempts: dict[str, int] = {}
        """The latest attempt at groups that have not ended."""
        self._watch = AuditWatch(accepted, config)
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self._has_warned_of_usage = False
        self._rules.check(config)
        _require_choice("durability", durability, ("sync", "async"))
        _require_choice("trace", trace, get_args(Trace))
        if isinstance(agent, Pregel):
            check_messages_key(agent, messages_key)
            if self._saver is None and threads.keeps_threads(agent):
                self._saver = cast(Saver, agent.checkpointer)
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
        return await self._run(_wish(config, task_id, metadata), start, _ignore)

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
        wish = _wish(config, task_id, metadata)
        events: asyncio.Queue[GroupEvent | None] = asyncio.Queue()
        running = asyncio.create_task(self._run(wish, start, events.put_nowait))
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
        attempt: int | None = None,
    ) -> AgentGroupResult:
        """Go on with a group whose process died, that was cancelled, or that waits for replies.

        Each rollout goes on from its thread; its earlier actions are told to the gate again, whose decisions
        depend on positions only. Nothing that is stored is repeated, and what the group had settled stands:
        its cut, its survivor, its audit, and the members that it had done without. Others that had failed are
        given another chance. A group that had ended gives its result again, and writes no trace.

        Args:
            group_id: the thread id that the group was started with.
            input: the group's input, for rollouts that had not begun; without, they are refused.
            config: LangGraph's; its thread id is not read.
            replies: answers to interrupts, by rollout.
            context: handed to the agents.
            task_id: as it was; read only where no checkpointer keeps it.
            metadata: as it was; read only where no checkpointer keeps it.
            attempt: counts the runs of this group, for the trace; needed only where no checkpointer keeps it.

        Raises:
            ConfigError: nothing is stored of a rollout, the agents have no checkpointer, or the group was
                opened under other settings.
        """
        start = Start(input, config, context, is_resume=True, replies=replies or {})
        wish = Identity(group_id, task_id or group_id, dict(metadata or {}), attempt or 0)
        return await self._run(wish, start, _ignore)

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
        """`ainvoke` for callers without an event loop; all such runs of a process share one in a thread."""
        return shared_loop().wait(self.ainvoke(input, config, **options))

    def resume(self, group_id: str, input: Any = None, **options: Any) -> AgentGroupResult:
        """`aresume` for callers without an event loop."""
        return shared_loop().wait(self.aresume(group_id, input, **options))

    def stream(
        self, input: Any, config: RunnableConfig | None = None, **options: Any
    ) -> Generator[GroupEvent]:
        """`astream` for callers without an event loop."""
        events = self.astream(input, config, **options)
        try:
            while (event := shared_loop().wait(_next(events))) is not None:
                yield event
        finally:
            shared_loop().wait(events.aclose())

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

        With a checkpointer on both sides, an outer graph that is resumed in this node goes on with its group.

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

            wish = _wish({"configurable": {"thread_id": threads.node_id()}}, None, None)
            result = await self._run(wish, Start(read(state), None), emit, goes_on=True)
            result.raise_for_failure()
            return write(result)

        return RunnableLambda(lambda state: shared_loop().wait(run(state)), afunc=run, name="group")

    async def _run(
        self,
        wish: Identity,
        start: Start,
        emit: Callable[[GroupEvent], None],
        *,
        goes_on: bool = False,
    ) -> AgentGroupResult:
        """Run a group; with `goes_on`, one that has been opened is resumed instead of refused."""
        config = self._setup.config
        warn_about(self._rules.gate, config, self._rules.accepted.certified)
        loop = asyncio.get_running_loop()
        slots = self._slots.setdefault(loop, asyncio.Semaphore(config.concurrency))
        tracing = GroupTracing(self._trace, wish.group_id, config.group_size, start.config)
        async with tracing.group(start.input) as output:
            record = GroupRecord(self._saver, wish.group_id)
            await record.load()
            if goes_on and record.is_known:
                start = replace(start, is_resume=True)
            is_new = not record.is_known
            identity = await self._opened(record, wish, start)
            setup = replace(self._setup, config=observing(config)) if identity.observed else self._setup
            group = AgentGroup(identity, record, self._rules, setup, start, tracing, slots, emit)
            result = await self._watched(group, self._watch.begin(setup.config) if is_new else None)
            output |= {"answer": result.answer, "status": result.status, "cut_at": result.cut_at}
        if not result.interrupts:
            self._attempts.pop(wish.group_id, None)
        if result.ledger.unknown_requests and not self._has_warned_of_usage:
            self._has_warned_of_usage = True
            warn_of_unknown_usage(result.ledger)
        return result

    async def _watched(self, group: AgentGroup, place: int | None) -> AgentGroupResult:
        """Run a group, and tell the audits' alarm what came of it."""
        seen = None
        try:
            result = await group.run()
            seen = None if result.interrupts else result
        finally:
            self._watch.end(place, seen)
        return result

    async def _opened(self, record: GroupRecord, wish: Identity, start: Start) -> Identity:
        """Who the group is: as it was opened, or as it is opened now.

        Raises:
            ConfigError: there is nothing to resume, or it was opened under other settings; or a group that
                is no resume has been opened before.
        """
        config, gate, group_id = self._setup.config, self._rules.gate, wish.group_id
        if record.is_known and not start.is_resume:
            raise ConfigError(
                f"group {group_id!r} has been opened before, and its threads are in use: give the group "
                "another thread_id, or call aresume to go on"
            )
        if start.is_resume and start.input is None and self._saver is not None and not record.is_known:
            raise ConfigError(
                f"nothing is stored of group {group_id!r}: resuming needs the thread_id that it was started "
                "with, or its input to begin it"
            )
        if record.is_known:
            record.check(gate, config)
            identity = record.identity()
        else:
            is_off, rate = self._watch.rung, config.audit_rate
            identity = replace(
                wish,
                attempt=self._attempts.get(group_id, int(start.is_resume)) + 1,
                observed=is_off,
                audited=config.mode == "enforce" and not is_off and is_audited(config.seed, group_id, rate),
                **self._rules.facts_about(wish.task_id, wish.metadata, config.group_size),
            )
        identity = replace(identity, attempt=wish.attempt or identity.attempt)
        self._attempts[group_id] = identity.attempt
        await record.open(identity, gate, config)
        return identity


def _wish(config: RunnableConfig | None, task_id: str | None, metadata: Mapping[str, Any] | None) -> Identity:
    """Who the caller wants the group to be."""
    group_id = threads.group_of(config) or uuid.uuid4().hex
    return Identity(group_id, task_id or group_id, dict(metadata or {}), attempt=0)


def _require_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")


def _ignore(event: GroupEvent) -> None:
    """Nobody listens."""


async def _next(events: AsyncGenerator[GroupEvent]) -> GroupEvent | None:
    return await anext(events, None)
