"""The threads of a group: one per rollout, named `{group_id}/{i}`; reading them back, and mending them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final, TypeAlias, cast

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.pregel import Pregel
from langgraph.runtime import get_runtime
from langgraph.types import StateSnapshot

from selective_rollout.errors import ConfigError
from selective_rollout.integrations.langgraph.messages import messages_of, unanswered_calls
from selective_rollout.integrations.langgraph.session import settled

Agent: TypeAlias = Pregel[Any, Any, Any, Any]
"""Any compiled graph."""

AgentFactory: TypeAlias = Callable[[int], Any]
"""Makes the agent of one rollout, given its index: a graph, an awaitable of one, or a context manager (plain
or asynchronous) that yields one and is left when the rollout has ended."""

_OF_ANOTHER_RUN: Final = ("thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map")
_INTERNAL: Final = "__pregel"

STOPPED: Final = "Stopped before a result was recorded; whether the tool had an effect is not known."
"""What a tool call that was never answered is answered with."""


def thread_of(group_id: str, rollout: int) -> str:
    """The thread of one rollout."""
    return f"{group_id}/{rollout}"


def group_of(config: RunnableConfig | None) -> str | None:
    """The group id that a caller's config asks for: its thread id."""
    thread_id = ((config or {}).get("configurable") or {}).get("thread_id")
    return None if thread_id is None else str(thread_id)


def rollout_config(config: RunnableConfig | None, group_id: str, rollout: int) -> RunnableConfig:
    """The config of one rollout: the caller's, on its own thread, with tags and metadata to tell it by."""
    base = cast(RunnableConfig, {name: value for name, value in (config or {}).items() if name != "run_id"})
    base["configurable"] = {
        name: value
        for name, value in (base.get("configurable") or {}).items()
        if name not in _OF_ANOTHER_RUN and not name.startswith(_INTERNAL)
    }
    own = RunnableConfig(
        tags=["selective-rollout", f"rollout:{rollout}"],
        metadata={"sr_group": group_id, "sr_rollout": rollout},
        configurable={"thread_id": thread_of(group_id, rollout)},
    )
    return merge_configs(base, own)


@asynccontextmanager
async def opened(agent: Agent | AgentFactory, rollout: int) -> AsyncIterator[Agent]:
    """The agent of one rollout, for as long as it runs; trouble in closing must not mask how it ended.

    Raises:
        ConfigError: the factory made something else.
    """
    if isinstance(agent, Pregel):
        yield agent
        return
    stack = AsyncExitStack()
    try:
        made = agent(rollout)
        if hasattr(made, "__aenter__"):
            made = await stack.enter_async_context(made)
        elif hasattr(made, "__enter__"):
            made = stack.enter_context(made)
        else:
            made = await settled(made)
        if not isinstance(made, Pregel):
            raise ConfigError(
                f"the agent factory made {type(made).__name__} for rollout {rollout}, not a compiled graph"
            )
        yield made
    finally:
        with suppress(Exception):
            await stack.aclose()


async def stored(agent: Agent, config: RunnableConfig) -> StateSnapshot | None:
    """What the agent's checkpointer holds of a thread; None if there is neither."""
    if not keeps_threads(agent):
        return None
    snapshot = await agent.aget_state(config)
    return snapshot if snapshot.metadata is not None else None


async def opening_messages(agent: Agent, config: RunnableConfig, key: str) -> Sequence[Any]:
    """The messages that a thread began with, before its first superstep."""
    async for snapshot in agent.aget_state_history(config):
        if snapshot.metadata is not None and snapshot.metadata.get("step") == 0:
            return messages_of(snapshot.values, key)
    return ()


async def mend(agent: Agent, config: RunnableConfig, key: str) -> int:
    """Answer the tool calls that a stopped thread left open, so that a model may read its history again.

    Returns:
        Number of calls that were answered.
    """
    snapshot = await stored(agent, config)
    calls: Sequence[Mapping[str, Any]] = ()
    if snapshot is not None:
        calls = unanswered_calls(messages_of(snapshot.values, key))
    if snapshot is None or not calls:
        return 0
    replies = [
        ToolMessage(STOPPED, tool_call_id=call["id"], name=call.get("name"), status="error") for call in calls
    ]
    waiting = snapshot.next[0] if snapshot.next else None
    await agent.aupdate_state(config, {key: replies}, as_node=waiting)
    return len(replies)


def keeps_threads(agent: Agent) -> bool:
    """Whether the agent was compiled with a checkpointer of its own."""
    return agent.checkpointer is not None and not isinstance(agent.checkpointer, bool)


def node_id() -> str | None:
    """An id that stays the same when the outer graph is resumed; None outside a thread."""
    info = get_runtime().execution_info
    return None if info is None or info.thread_id is None else f"{info.thread_id}/{info.checkpoint_ns}"
