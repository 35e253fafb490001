"""One rollout of a group: an agent's graph, driven one superstep at a time.

LangGraph's stream is driven by its reader: as long as nobody asks for the next part, no superstep begins. So
a rollout is held simply by not reading on, at a `values` part, where a superstep is complete and the next
one, which would run the tools just asked for, has not begun. (At an `updates` part its siblings still run.)
This holds for the top level of a graph; what a nested graph does in one superstep is seen when that ends.
"""

from __future__ import annotations

import asyncio
import copy
import enum
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphDrained, GraphRecursionError
from langgraph.runtime import RunControl
from langgraph.types import Command, Durability, StreamMode

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.hold import off_the_clock
from selective_rollout.errors import ConfigError
from selective_rollout.integrations.langgraph import threads
from selective_rollout.integrations.langgraph.account import Account
from selective_rollout.integrations.langgraph.agent_result import GroupEvent
from selective_rollout.integrations.langgraph.messages import messages_of
from selective_rollout.integrations.langgraph.record import LOST
from selective_rollout.integrations.langgraph.session import settled
from selective_rollout.integrations.langgraph.threads import Agent, AgentFactory
from selective_rollout.integrations.langgraph.tracing import GroupTracing
from selective_rollout.types import RolloutFailure


@dataclass(frozen=True, slots=True)
class Setup:
    """What all groups of a runner share."""

    agent: Agent | AgentFactory
    config: RunConfig
    messages_key: str
    answer: Callable[[Any], str | None]
    """Reads the answer in a final state, in a form that equal answers share."""
    reward: Callable[[Any], object] | None
    durability: Durability = "sync"
    """When LangGraph stores a superstep, if the agents have a checkpointer."""


class Desk(Protocol):
    """What a drive asks of its group."""

    tracing: GroupTracing

    async def permit(self, rollout: int) -> bool:
        """Wait until the rollout may go on; False: it is stopped for good."""

    def recalled(self, rollout: int) -> None:
        """The rollout has told all that its thread holds."""

    def failure_of(self, rollout: int) -> RolloutFailure | None:
        """Why the rollout was counted out in an earlier run, if it was."""

    def emit(self, event: GroupEvent) -> None:
        """Something happened that a reader of the stream may want to know."""


@dataclass(frozen=True, slots=True)
class Start:
    """What one run begins with."""

    input: Any
    config: RunnableConfig | None
    context: Any = None
    modes: tuple[StreamMode, ...] = ()
    """Parts of the agents' own streams that the caller wants to see."""
    is_resume: bool = False
    replies: Mapping[int, Any] = field(default_factory=dict)
    """Answers to interrupts, by rollout."""


class _End(enum.Enum):
    FINISHED = enum.auto()
    OUT_OF_STEPS = enum.auto()
    INTERRUPTED = enum.auto()
    STOPPED = enum.auto()
    COUNTED_OUT = enum.auto()


_ASK_AGAIN: Final = object()


class Drive:
    """Drives one rollout until it ends, fails or is stopped.

    Args:
        account: the rollout's record.
        group_id: the group.
        setup: what all groups share.
        start: what this run begins with.
        desk: its group.
        slots: bounds the supersteps that run at once.
    """

    def __init__(
        self,
        account: Account,
        group_id: str,
        setup: Setup,
        start: Start,
        desk: Desk,
        slots: asyncio.Semaphore,
    ) -> None:
        self.account = account
        self.state: Any = None
        self.interrupts: tuple[Any, ...] = ()
        self._index = account.index
        self._group_id = group_id
        self._setup = setup
        self._start = start
        self._desk = desk
        self._slots = slots
        self._control = RunControl()
        self._config = threads.rollout_config(start.config, group_id, self._index)
        self._task: asyncio.Task[_End] | None = None
        self._limit: asyncio.Timeout | None = None
        self._is_flying = False
        self._is_overtaken = False
        """The group was cut while this rollout was in flight."""
        self._is_lost = False
        """It was stopped in mid-flight."""

    async def run(self) -> None:
        """Drive to the end. Whatever breaks is data; only a misuse, and a foreign cancellation, pass.

        Raises:
            ConfigError: the agent is none that can be driven, or its thread is in use.
        """
        self._task = task = asyncio.create_task(
            self._drive(), name=threads.thread_of(self._group_id, self._index)
        )
        try:
            await asyncio.wait({task})
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        self._settle(task)

    def stop(self) -> None:
        """The group was cut: interrupt the superstep in flight, as far as the stop policy allows.

        `safe` lets it complete; the rollout then waits, or is closed, before the next one. `drain` asks the
        graph itself to stop there, which also reaches graphs nested in it.
        """
        if not self._is_flying or self._task is None:
            return
        self._is_overtaken = True
        if self._setup.config.stop == "cancel":
            self._is_lost = True
            self._task.cancel()
        elif self._setup.config.stop == "drain":
            self._is_lost = True
            self._control.request_drain("the group was stopped")

    async def _drive(self) -> _End:
        if not self._start.is_resume and not await self._desk.permit(self._index):
            return _End.STOPPED
        tracing, handlers = self._desk.tracing, [self.account.watch]
        with tracing.rollout(self._config, self._index, handlers) as self._config:
            async with threads.opened(self._setup.agent, self._index) as agent:
                async with asyncio.timeout(self._setup.config.rollout_timeout_s) as self._limit:
                    end = await self._run(agent)
                    if end in (_End.FINISHED, _End.OUT_OF_STEPS):
                        await self._finish(end)
        return end

    async def _run(self, agent: Agent) -> _End:
        check_messages_key(agent, self._setup.messages_key)
        has_more = await self._prepare(agent)
        self._desk.recalled(self._index)
        if self._start.is_resume and self._desk.failure_of(self._index) is not None:
            return _End.COUNTED_OUT
        if not has_more:
            return _End.INTERRUPTED if self.interrupts else _End.FINISHED
        stored: dict[str, Any] = {}
        if threads.keeps_threads(agent):
            stored["durability"] = self._setup.durability
        parts = agent.astream(
            self._input(),
            self._config,
            context=self._start.context,
            stream_mode=["values", *(mode for mode in self._start.modes if mode != "values")],
            control=self._control,
            version="v2",
            **stored,
        )
        async with aclosing(cast(AsyncGenerator[Any], parts)) as stream:
            return await self._follow(stream)

    async def _prepare(self, agent: Agent) -> bool:
        """Bring the account to where the thread stands.

        Returns:
            False if the thread has nothing left to do.
        """
        snapshot = await threads.stored(agent, self._config)
        thread = threads.thread_of(self._group_id, self._index)
        if not self._start.is_resume:
            if snapshot is not None:
                raise ConfigError(
                    f"thread {thread!r} is in use: give the group another thread_id, or call aresume to go on"
                )
            return True
        if snapshot is None:
            return True
        key = self._setup.messages_key
        self.account.begin(await threads.opening_messages(agent, self._config, key))
        self.state = snapshot.values
        self.interrupts = () if self._index in self._start.replies else tuple(snapshot.interrupts)
        self.account.take(messages_of(self.state, key), replayed=True)
        return bool(snapshot.next) and not self.interrupts

    def _input(self) -> Any:
        """What the graph is given: the input, or, of a thread that goes on, nothing or its replies."""
        if self._start.is_resume and self.state is not None:
            reply = self._start.replies.get(self._index, _ASK_AGAIN)
            return None if reply is _ASK_AGAIN else Command(resume=reply)
        return copy.deepcopy(self._start.input)

    async def _follow(self, stream: AsyncGenerator[Any]) -> _End:
        at_boundary = True
        while not self.account.out_of_steps:
            if at_boundary and not await self._permitted():
                return _End.STOPPED
            self._require_beginning()
            part = await self._next(stream, at_boundary)
            if part is None:
                return _End.INTERRUPTED if self.interrupts else _End.FINISHED
            if part is not _ASK_AGAIN:
                at_boundary = self._take(part)
        return _End.OUT_OF_STEPS

    def _require_beginning(self) -> None:
        """Refuse to go on with a rollout of which neither a thread nor an input is there."""
        if self._start.is_resume and self.state is None and self._start.input is None:
            raise ConfigError(
                f"nothing is stored of thread {threads.thread_of(self._group_id, self._index)!r}: resuming "
                "needs agents with a checkpointer, the group's thread_id, and its input for rollouts that "
                "had not begun"
            )

    async def _next(self, stream: AsyncGenerator[Any], at_boundary: bool) -> Any:
        self._is_flying = True
        try:
            async with self._slots:
                if at_boundary and self._is_overtaken:
                    return _ASK_AGAIN
                return await anext(stream, None)
        finally:
            self._is_flying = False

    def _take(self, part: Mapping[str, Any]) -> bool:
        """Read a part.

        Returns:
            Whether a superstep is complete and the next one has not begun.
        """
        if part["type"] in self._start.modes:
            self._desk.emit(GroupEvent(type="part", group_id=self._group_id, rollout=self._index, part=part))
        if part["type"] != "values" or part["ns"]:
            return False
        is_first = self.state is None
        self.state = part["data"]
        self.interrupts = tuple(part.get("interrupts") or ())
        messages = messages_of(self.state, self._setup.messages_key)
        if is_first:
            self.account.begin(messages)
        else:
            self.account.take(messages, late=self._is_overtaken)
        return not self.interrupts

    async def _permitted(self) -> bool:
        """Ask for the next superstep.

        A cancellation that was lost in the last one is heeded here: on Python 3.11 `wait_for`, with which
        LangChain's models await the chunks of a stream, drops one that comes together with a chunk.
        """
        if self._task is not None and self._task.cancelling():
            raise asyncio.CancelledError
        self._is_overtaken = False
        return await off_the_clock(self._limit, self._desk.permit(self._index))

    async def _finish(self, end: _End) -> None:
        truncated = end is _End.OUT_OF_STEPS or self.account.is_cut_off
        answer = None if truncated else self._setup.answer(self.state)
        reward = None
        if self._setup.reward is not None:
            reward = await settled(self._setup.reward(self.state))
        self.account.finish(answer, reward, truncated=truncated)

    def _settle(self, task: asyncio.Task[_End]) -> None:
        """Book how the drive ended, unless `_finish` has done so."""
        if task.cancelled():
            if self._is_lost:
                self.account.cut(is_lost=True)
            else:
                self.account.fail("error", "the work was cancelled from within")
            return
        error = task.exception()
        if error is None:
            self._settle_end(task.result())
        elif isinstance(error, ConfigError) or not isinstance(error, Exception):
            raise error
        else:
            self._settle_error(error)

    def _settle_end(self, end: _End) -> None:
        if end is _End.STOPPED:
            self.account.cut()
        elif end is _End.INTERRUPTED:
            asks = "; ".join(str(getattr(entry, "value", entry)) for entry in self.interrupts)
            self.account.interrupt(asks)
        elif end is _End.COUNTED_OUT:
            self._count_out()

    def _count_out(self) -> None:
        """Repeat an end of an earlier run that the group has decided upon."""
        failure = self._desk.failure_of(self._index)
        assert failure is not None
        if failure.kind == LOST:
            self.account.cut(is_lost=True)
        else:
            self.account.fail(failure.kind, failure.message)

    def _settle_error(self, error: Exception) -> None:
        if isinstance(error, GraphDrained) and self._is_lost:
            self.account.cut(is_lost=True)
        elif isinstance(error, GraphRecursionError):
            self.account.finish(None, None, truncated=True)
        elif self._limit is not None and self._limit.expired():
            limit = self._setup.config.rollout_timeout_s
            self.account.fail("timeout", f"the rollout took longer than {limit:g} s")
        else:
            self.account.fail("error", f"{type(error).__name__}: {error}")


def check_messages_key(agent: Agent, key: str) -> None:
    """Refuse an agent whose state has no place for messages.

    Raises:
        ConfigError: names the places it has.
    """
    if key not in agent.channels:
        known = sorted(name for name in agent.channels if not name.startswith(("__", "branch:")))
        raise ConfigError(
            f"the agent's state has no {key!r} to read actions from; messages_key must be one of "
            f"{', '.join(known)}"
        )
