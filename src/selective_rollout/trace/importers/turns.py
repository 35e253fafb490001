"""The turns of one recorded rollout: what the agent emitted, and what came back.

Only what the agent did is a turn, however the log numbers or interleaves its lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from selective_rollout.actions import ActionOptions, RawAction, read_action
from selective_rollout.actions.fields import get
from selective_rollout.actions.items import join_items
from selective_rollout.actions.read import is_assistant
from selective_rollout.errors import TraceError
from selective_rollout.trace.importers.tokens import read_usage
from selective_rollout.types import Usage

_MESSAGE_TYPES: Final = ("ai", "AIMessageChunk", "human", "system", "tool")
_SHARED_ROLES: Final = {"gpt": "assistant", "function_call": "assistant", "human": "user"}
"""Roles of conversations in the format that ShareGPT began: `from` and `value`."""
_REPLY_ITEM: Final = "_call_output"
_REPLY_FIELDS: Final = ("observation", "result", "output")
_REPLY_ONLY: Final = ("observation", "obs")
_ERROR_STATUS: Final = "error"
_STOP_REASONS: Final = ("finish_reason", "stop_reason")


@dataclass(slots=True)
class Turn:
    """One completion of the agent and the environment's reply; None where the log does not say."""

    action: RawAction
    completion: str | None = None
    observation: str | None = None
    is_error: bool | None = None
    finish_reason: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """How actions are read.

    Attributes:
        options: how to find an action in a text.
        separator: what separates actions where they are one text.
        completions: a text is a raw completion, not an action already taken out of one.
        error_prefix: replies of tools that start so are errors; None if the source has no such habit.
    """

    options: ActionOptions
    separator: str | None = None
    completions: bool = False
    error_prefix: str | None = None


def read_turns(value: Any, reading: Reading, where: str) -> list[Turn]:
    """Read a list of actions, steps or chat messages, or one text.

    Raises:
        TraceError: the value is something else.
    """
    if value is None:
        return []
    if isinstance(value, str):
        value = _from_text(value, reading, where)
    if not isinstance(value, list):
        raise TraceError(f"{where}: actions must be a list, not {type(value).__name__}")
    if is_conversation(value):
        return list(_conversation(value, reading, where))
    return _steps(value, reading, where)


def is_conversation(value: Any) -> bool:
    """Tell whether a value is a list of chat messages, and not of steps that name their action."""
    if not isinstance(value, list):
        return False
    items = [item for item in value if isinstance(item, dict)]
    return not any("action" in item for item in items) and any(map(_is_message, items))


def opening_text(messages: list[Any]) -> str:
    """What a conversation opens with, before the agent's first message."""
    opening = []
    for message in map(_chat, messages):
        if not isinstance(message, dict) or is_assistant(message):
            break
        opening.append(text_of(message.get("content")))
    return "\n".join(opening)


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or blocks that hold text."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(map(text_of, content))
    if isinstance(content, dict):
        return text_of(content.get("text", content.get("content")))
    return ""


def _is_message(item: dict[str, Any]) -> bool:
    kind = item.get("type")
    is_reply = isinstance(kind, str) and kind.endswith(_REPLY_ITEM)
    return "role" in item or kind in _MESSAGE_TYPES or is_reply or item.keys() >= {"from", "value"}


def _chat(message: Any) -> Any:
    """A message with `role` and `content`, whatever its format calls them."""
    if not isinstance(message, dict) or not message.keys() >= {"from", "value"}:
        return message
    role = message["from"]
    shared = _SHARED_ROLES.get(role, role) if isinstance(role, str) else None
    return {**message, "role": shared, "content": message["value"]}


def _from_text(text: str, reading: Reading, where: str) -> Any:
    """Make a list of one text; tables store lists as JSON text."""
    if reading.separator is not None:
        return [part.strip() for part in text.split(reading.separator) if part.strip()]
    if text.lstrip().startswith("["):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, list) and (not reading.completions or is_conversation(value)):
            return value
    if reading.completions:
        return [text]
    raise TraceError(f"{where}: the actions are one text: say what separates them (separator)")


def _steps(items: list[Any], reading: Reading, where: str) -> list[Turn]:
    """Read actions, or steps that hold one; the environment may have entries of its own between them."""
    turns: list[Turn] = []
    for number, item in enumerate(items, start=1):
        if not _is_reply(item):
            turns.append(_turn(item, reading, f"{where}: action {number}"))
        elif turns and turns[-1].observation is None:
            turns[-1].observation = _reply(item)
    return turns


def _is_reply(item: Any) -> bool:
    return isinstance(item, dict) and "action" not in item and any(name in item for name in _REPLY_ONLY)


def _reply(item: dict[str, Any]) -> str | None:
    found = next((item[name] for name in _REPLY_FIELDS if item.get(name) is not None), None)
    return None if found is None else text_of(found) or json.dumps(found)


def _turn(item: Any, reading: Reading, where: str) -> Turn:
    if isinstance(item, dict) and "action" in item:
        return Turn(
            _raw_action(item["action"], reading),
            observation=_reply(item),
            is_error=item["is_error"] if isinstance(item.get("is_error"), bool) else None,
            finish_reason=_word(item.get("finish_reason")),
            usage=read_usage(item.get("usage"), where),
        )
    completion = item if reading.completions and isinstance(item, str) else None
    return Turn(_raw_action(item, reading), completion)


def _raw_action(value: Any, reading: Reading) -> RawAction:
    if value is None:
        return RawAction()
    if not isinstance(value, str):
        return RawAction(text=json.dumps(value))
    options = reading.options
    if reading.completions or options.pattern is not None or options.extract is not None:
        return read_action(value, options)
    return RawAction(text=value)


def _conversation(messages: list[Any], reading: Reading, where: str) -> Iterator[Turn]:
    turn: Turn | None = None
    for number, message in enumerate(join_items(map(_chat, messages)), start=1):
        place = f"{where}: message {number}"
        if not isinstance(message, dict):
            raise TraceError(f"{place} must be an object, not {type(message).__name__}")
        if is_assistant(message):
            if turn is not None:
                yield turn
            turn = _agent_turn(message, reading, place)
        elif turn is not None:
            _take_reply(turn, message, reading)
    if turn is not None:
        yield turn


def _agent_turn(message: dict[str, Any], reading: Reading, where: str) -> Turn:
    sources = (message, message.get("response_metadata"))
    reasons = (get(source, name) for source in sources for name in _STOP_REASONS)
    try:
        action = read_action(message, reading.options)
    except (TypeError, AttributeError, ValueError) as error:
        raise TraceError(f"{where} cannot be read: {error}") from None
    return Turn(
        action,
        completion=None if message.get("content") is None else text_of(message["content"]),
        finish_reason=next(filter(None, map(_word, reasons)), None),
        usage=read_usage(message.get("usage") or message.get("usage_metadata"), where),
    )


def _take_reply(turn: Turn, message: dict[str, Any], reading: Reading) -> None:
    text = text_of(message.get("content", message.get("output")))
    turn.observation = text if turn.observation is None else f"{turn.observation}\n{text}"
    said = _says_error(message, text, reading)
    if said is not None:
        turn.is_error = bool(turn.is_error) or said


def _says_error(message: dict[str, Any], text: str, reading: Reading) -> bool | None:
    """Whether a reply says of itself that it is an error; None if it does not say."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    flags = [b["is_error"] for b in blocks if isinstance(b, dict) and isinstance(b.get("is_error"), bool)]
    if isinstance(message.get("is_error"), bool):
        flags.append(message["is_error"])
    if message.get("status") in ("success", _ERROR_STATUS):
        flags.append(message["status"] == _ERROR_STATUS)
    if reading.error_prefix is not None and message.get("role") == "tool":
        flags.append(text.startswith(reading.error_prefix))
    return any(flags) if flags else None


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def each_of(value: Any, turns: list[Turn], where: str) -> Iterable[tuple[Turn, Any]]:
    """Pair the turns with a column that holds one value per turn.

    Raises:
        TraceError: the column is no list of that length.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, list) or len(value) != len(turns):
        found = f"{len(value)} values" if isinstance(value, list) else type(value).__name__
        raise TraceError(f"{where} needs a list with one value for each of {len(turns)} actions, not {found}")
    return zip(turns, value, strict=True)
