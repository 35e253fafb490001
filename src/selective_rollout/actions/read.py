"""Reading an assistant message of any make: OpenAI dicts and SDK objects, LangChain messages, plain text.

Nothing is imported from those libraries: fields are looked up by name. A message must be complete; while it
streams, arguments that are still incomplete look like broken ones. That holds for LangChain's chunks, too:
their `tool_calls` are a guess at unfinished JSON, in which a call cut off halfway looks like one with fewer
arguments, so their `tool_call_chunks` are read, which hold what was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from selective_rollout.actions.options import DEFAULT_OPTIONS, ActionOptions
from selective_rollout.actions.raw import RawAction, RawCall
from selective_rollout.actions.text import read_text
from selective_rollout.actions.values import DEEPEST, is_deep, loads

_MESSAGE_FIELDS: Final = ("content", "tool_calls", "function_call", "refusal")
# Tuples: what a model wrote as a type may be unhashable.
_CLIENT_BLOCKS: Final = ("tool_use", "tool_call", "function_call", "invalid_tool_call")
_STANDARD_SERVER_BLOCK: Final = "server_tool_call"
_SERVER_BLOCKS: Final = ("server_tool_use", _STANDARD_SERVER_BLOCK)
_SERVER_SUFFIX: Final = "_call"
_NOT_ARGUMENTS: Final = frozenset({"id", "type", "status", "index", "results", "output", "outputs", "result"})
_ASSISTANT_TYPES: Final = ("ai", "AIMessageChunk")


def read_action(message: Any, options: ActionOptions = DEFAULT_OPTIONS) -> RawAction:
    """Read what an assistant message does: its tool calls, or else the action in its text.

    Calls come from `tool_calls`, `invalid_tool_calls`, the legacy `function_call` and content blocks. Tools
    that ran on the provider's server count as well; of a LangChain message they are read from
    `content_blocks`, the one spelling that all providers share. Reasoning is ignored; a refusal is text.

    Args:
        message: a chat message as a dict or an object, or the text of a completion.
        options: says how to find an action in text.

    Raises:
        TypeError: the object is no message.
    """
    if isinstance(message, str):
        return read_text(message, options)
    if not _is_message(message):
        hint = ": pass response.choices[0].message" if _get(message, "choices") else ""
        raise TypeError(f"cannot read an action from {type(message).__name__}{hint or ': no chat message'}")
    calls = (*_client_calls(message), *_server_calls(message))
    return RawAction(calls=calls) if calls else read_text(_text(message), options)


def is_assistant(message: Any) -> bool:
    """Tell whether a message was written by the model; plain text counts as a completion."""
    if isinstance(message, str):
        return True
    role = _get(message, "role")
    return role == "assistant" if role is not None else _get(message, "type") in _ASSISTANT_TYPES


def _get(source: Any, name: str) -> Any:
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)


def _is_message(source: Any) -> bool:
    if isinstance(source, Mapping):
        return "role" in source or any(name in source for name in _MESSAGE_FIELDS)
    return any(hasattr(source, name) for name in _MESSAGE_FIELDS)


def _blocks(message: Any) -> list[Any]:
    content = _get(message, "content")
    return list(content) if isinstance(content, list | tuple) else []


def _client_calls(message: Any) -> Iterator[RawCall]:
    extra = _get(message, "additional_kwargs")
    declared = list(_get(message, "tool_call_chunks") or ())
    if not declared:
        declared = [*(_get(message, "tool_calls") or ()), *(_get(message, "invalid_tool_calls") or ())]
    declared = declared or list(_get(extra, "tool_calls") or ())
    legacy = _get(message, "function_call") or _get(extra, "function_call")
    if not declared and legacy:
        declared = [legacy]
    if not declared:
        declared = [block for block in _blocks(message) if _get(block, "type") in _CLIENT_BLOCKS]
    return map(_call, declared)


def _call(entry: Any) -> RawCall:
    call_id = _id(entry)
    custom = _get(entry, "custom")
    if custom is not None:  # a tool that takes free text instead of arguments
        return RawCall(_name(custom), {"input": _get(custom, "input")}, id=call_id)
    source = _get(entry, "function") or entry
    written = (_get(source, key) for key in ("arguments", "args", "input"))
    args, raw = _arguments(next((value for value in written if value is not None), None))
    return RawCall(_name(source), args, raw, call_id)


def _id(source: Any) -> str | None:
    """Return a call's id; some servers send an empty one, which identifies nothing."""
    return str(_get(source, "call_id") or _get(source, "id") or "") or None


def _name(source: Any) -> str:
    return str(_get(source, "name") or "")


def _arguments(value: Any) -> tuple[Mapping[str, Any] | None, str | None]:
    """Return the arguments as an object (None if they are none) and as written (None if not text)."""
    if isinstance(value, Mapping):
        args = dict(value)
        return (None, f"more than {DEEPEST} levels") if is_deep(args) else (args, None)
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}, None
    if not isinstance(value, str):
        return None, json.dumps(value, default=str)
    try:
        args = loads(value)
    except ValueError:
        return None, value
    if args is None:
        return {}, value
    return (args, value) if isinstance(args, dict) else (None, value)


def _server_calls(message: Any) -> Iterator[RawCall]:
    standard = _get(message, "content_blocks") or ()
    shared = [block for block in standard if _get(block, "type") == _STANDARD_SERVER_BLOCK]
    for block in shared or _blocks(message):
        kind = _get(block, "type")
        if kind in _SERVER_BLOCKS:
            yield _call(block)
        elif isinstance(kind, str) and kind.endswith(_SERVER_SUFFIX) and kind not in _CLIENT_BLOCKS:
            yield _server_call(kind, block)


def _server_call(kind: str, block: Any) -> RawCall:
    """Read a block like `web_search_call`, whose fields beside its id and outcome are the arguments."""
    values = block if isinstance(block, Mapping) else getattr(block, "__dict__", {})
    args = {key: value for key, value in values.items() if key not in _NOT_ARGUMENTS and value is not None}
    return RawCall(kind.removesuffix(_SERVER_SUFFIX), args, id=_id(block))


def _text(message: Any) -> str:
    content = _get(message, "content")
    text = content if isinstance(content, str) else "".join(map(_block_text, _blocks(message)))
    if text:
        return text
    refusals = [
        _get(source, "refusal") for source in (message, _get(message, "additional_kwargs"), *_blocks(message))
    ]
    return next((refusal for refusal in refusals if isinstance(refusal, str)), "")


def _block_text(block: Any) -> str:
    if isinstance(block, str):
        return block
    text = _get(block, "text") if _get(block, "type") in ("text", "output_text") else None
    return text if isinstance(text, str) else ""
