"""`GroupGateMiddleware`: where an agent made by `create_agent` waits for its group, and is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from langchain.agents.middleware import AgentMiddleware, AgentState, hook_config
from langchain_core.messages import AnyMessage
from langgraph.runtime import Runtime

from selective_rollout.integrations.langchain.desk import SEAT
from selective_rollout.integrations.langchain.messages import refusals


class GroupGateMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Reports an agent's actions to the group that its run belongs to, and carries out the gate's word.

    The group is the one whose `run` or `call` the agent runs in; in none, the middleware does nothing. So one
    instance serves all runs, also of several agents. It also works in an agent that is a node or a tool of
    another graph. Where several agents of one rollout carry it, their actions count in the order made.

    After a message with tool calls a rollout is held before the tools run. A stopped rollout gets one error
    `ToolMessage` per call without an answer, so that its history stays valid, and jumps to "end"; never
    anywhere else. Put it last in the list of middleware: hooks after the model run from last to first, so the
    others, a human who has to approve calls for one, are not asked about a rollout that is stopped.
    """

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Park a rollout whose group was cut while its tools ran, before it asks for another message."""
        seat, messages = SEAT.get(), state["messages"]
        return _carried_out(messages, _answer(seat.permit(messages)) if seat is not None else True)

    @hook_config(can_jump_to=["end"])
    async def abefore_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """See `before_model`."""
        seat, messages = SEAT.get(), state["messages"]
        return _carried_out(messages, await _aanswer(seat.permit(messages)) if seat is not None else True)

    @hook_config(can_jump_to=["end"])
    def after_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Report the action, wait for the group, and stop the rollout if it was cut."""
        seat, messages = SEAT.get(), state["messages"]
        return _carried_out(messages, _answer(seat.hear(messages)) if seat is not None else True)

    @hook_config(can_jump_to=["end"])
    async def aafter_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """See `after_model`."""
        seat, messages = SEAT.get(), state["messages"]
        return _carried_out(messages, await _aanswer(seat.hear(messages)) if seat is not None else True)


def _answer(asked: Future[bool] | None) -> bool:
    return asked is None or asked.result()


async def _aanswer(asked: Future[bool] | None) -> bool:
    return asked is None or await asyncio.wrap_future(asked)


def _carried_out(messages: Sequence[AnyMessage], allowed: bool) -> dict[str, Any] | None:
    return None if allowed else {"jump_to": "end", "messages": refusals(messages)}
