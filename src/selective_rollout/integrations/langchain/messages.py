"""What LangChain messages say of a turn: calls still out, and the reply to a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

_STOPPED: Final = "Not run: the gate stopped this rollout's group."


@dataclass(frozen=True, slots=True)
class Reply:
    """What the tools of one step answered."""

    text: str | None = None
    """None: no tool answered."""
    is_error: bool | None = None


def last_turn(messages: Sequence[AnyMessage]) -> tuple[AIMessage, Reply, list[str]] | None:
    """Return the model's last message, the reply to the step before it, and its calls still out, by id."""
    place = next((p for p in reversed(range(len(messages))) if isinstance(messages[p], AIMessage)), None)
    if place is None:
        return None
    message = messages[place]
    assert isinstance(message, AIMessage)
    answered = {later.tool_call_id for later in messages[place:] if isinstance(later, ToolMessage)}
    waiting = [call["id"] or "" for call in message.tool_calls if call["id"] not in answered]
    return message, reply_before(messages, place), waiting


def reply_before(messages: Sequence[AnyMessage], place: int) -> Reply:
    """Return the tool messages that stand right before a place, as one reply."""
    start = place
    while start > 0 and isinstance(messages[start - 1], ToolMessage):
        start -= 1
    told = [message for message in messages[start:place] if isinstance(message, ToolMessage)]
    if not told:
        return Reply()
    return Reply(
        "\n".join(str(message.text) for message in told), any(message.status == "error" for message in told)
    )


def refusals(messages: Sequence[AnyMessage]) -> list[ToolMessage]:
    """Return one error message for each call of the last turn that has no answer.

    Calls with broken arguments are answered too: a history that is sent on shows them as calls.
    """
    turn = last_turn(messages)
    if turn is None:
        return []
    answered = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    calls = [*turn[0].tool_calls, *turn[0].invalid_tool_calls]
    return [
        ToolMessage(_STOPPED, tool_call_id=call["id"] or "", name=call["name"], status="error")
        for call in calls
        if call["id"] not in answered
    ]


def messages_in(result: object) -> Sequence[AnyMessage]:
    """Return the messages of an agent's final state; empty if it is something else."""
    state = getattr(result, "value", result)
    messages = state.get("messages") if isinstance(state, Mapping) else None
    return messages if isinstance(messages, Sequence) else ()


def is_interrupted(result: object) -> bool:
    """Tell whether a run returned because it waits for a human."""
    waiting = result.get("__interrupt__") if isinstance(result, Mapping) else None
    return bool(waiting or getattr(result, "interrupts", None))
