"""Reading an assistant message of any make: OpenAI, LangChain, Anthropic, Google, or plain text.

Nothing is imported from those libraries: fields are looked up by name. A message must be complete; while it
streams, arguments that are still incomplete look like broken ones. That holds for LangChain's chunks, too:
their `tool_calls` are a guess at unfinished JSON, in which a call cut off halfway looks like one with fewer
arguments, so their `tool_call_chunks` are read, which hold what was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from selective_rollout.actions.fields import blocks, first, get, listed
from selective_rollout.actions.items import CALL_SUFFIX, is_item, message_of
from selective_rollout.actions.options import DEFAULT_OPTIONS, ActionOptions
from selective_rollout.actions.raw import RawAction, RawCall
from selective_rollout.actions.text import read_text
from selective_rollout.actions.values import DEEPEST, is_deep, loads

_MESSAGE_FIELDS: Final = ("content", "tool_calls", "function_call", "refusal", "parts")
_NAMES: Final = ("name", "tool", "tool_name")
_ARGUMENTS: Final = ("arguments", "args", "input", "parameters", "tool_input", "action_input")
_GOOGLE_CALLS: Final = ("functionCall", "function_call")
# Tuples: what a model wrote as a type may be unhashable.
_FREE_TEXT_CALL: Final = "custom_tool_call"
_CLIENT_BLOCKS: Final = ("tool_use", "tool_call", "function_call", "invalid_tool_call", _FREE_TEXT_CALL)
_STANDARD_SERVER_BLOCK: Final = "server_tool_call"
_SERVER_BLOCKS: Final = ("server_tool_use", _STANDARD_SERVER_BLOCK, "mcp_call", "mcp_tool_use")
_NOT_ARGUMENTS: Final = frozenset(
    {"id", "call_id", "container_id", "type", "status", "index", "results", "output", "outputs", "result"}
)
_ASSISTANT_ROLES: Final = ("assistant", "model", "agent", "ai")
_ASSISTANT_TYPES: Final = ("ai", "AIMessageChunk")
_CUT_OFF: Final = (
    "length",
    "max_tokens",
    "max_output_tokens",
    "model_length",
    "model_context_window_exceeded",
)


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
    if is_item(message):
        message = message_of([message])
    if not _is_message(message):
        hint = ": pass response.choices[0].message" if get(message, "choices") else ""
        raise TypeError(f"cannot read an action from {type(message).__name__}{hint or ': no chat message'}")
    calls = (*_client_calls(message), *_server_calls(message))
    return RawAction(calls=calls) if calls else read_text(_text(message), options)


def is_assistant(message: Any) -> bool:
    """Tell whether a message was written by the model; plain text counts as a completion."""
    if isinstance(message, str):
        return True
    role = get(message, "role")
    if role is not None:
        return role in _ASSISTANT_ROLES
    return get(message, "type") in _ASSISTANT_TYPES or is_item(message)


def is_cut_off(finish_reason: str | None) -> bool:
    """Tell whether a completion ran into its token limit, in any provider's words; it holds no action."""
    return finish_reason is not None and finish_reason.casefold() in _CUT_OFF


def _is_message(source: Any) -> bool:
    if isinstance(source, Mapping):
        return "role" in source or any(name in source for name in _MESSAGE_FIELDS)
    return any(hasattr(source, name) for name in _MESSAGE_FIELDS)


def _client_calls(message: Any) -> Iterator[RawCall]:
    extra = get(message, "additional_kwargs")
    declared = _entries(get(message, "tool_call_chunks"))
    if not declared:
        declared = _entries(get(message, "tool_calls")) + _entries(get(message, "invalid_tool_calls"))
    declared = declared or _entries(get(extra, "tool_calls"))
    legacy = get(message, "function_call") or get(extra, "function_call")
    if not declared and legacy:
        declared = [legacy]
    if not declared:
        declared = [call for block in blocks(message) for call in _called_in(block)]
    return map(_call, declared)


def _entries(value: Any) -> list[Any]:
    """The entries of a list of calls; tables store the list, or each entry, as JSON text."""
    value = _unwritten(value)
    entries = [value] if isinstance(value, str) and value.strip() else listed(value)
    return list(map(_unwritten, entries))


def _unwritten(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        read = loads(value)
    except ValueError:
        return value
    return read if read is None or isinstance(read, list | dict) else value


def _called_in(block: Any) -> Iterator[Any]:
    if get(block, "type") in _CLIENT_BLOCKS:
        yield block
    elif get(block, "type") is None:
        yield from (call for name in _GOOGLE_CALLS if (call := get(block, name)))


def _call(entry: Any) -> RawCall:
    call_id = _id(entry)
    custom = entry if get(entry, "type") == _FREE_TEXT_CALL else get(entry, "custom")
    if custom is not None:  # a tool that takes free text instead of arguments
        return RawCall(_name(custom), {"input": get(custom, "input")}, id=call_id)
    function = get(entry, "function")
    source = entry if isinstance(function, str) else function or entry
    name = function if isinstance(function, str) else _name(source)
    if not isinstance(entry, Mapping) and not name:  # no call of any make, and nothing that equals another
        return RawCall("", None, raw=str(entry))
    args, raw = _arguments(first(source, _ARGUMENTS))
    return RawCall(name, args, raw, call_id)


def _id(source: Any) -> str | None:
    """Return a call's id; some servers send an empty one, which identifies nothing."""
    return str(get(source, "call_id") or get(source, "id") or "") or None


def _name(source: Any) -> str:
    return str(first(source, _NAMES) or "")


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
    standard = get(message, "content_blocks") or ()
    shared = [block for block in standard if get(block, "type") == _STANDARD_SERVER_BLOCK]
    for block in shared or blocks(message):
        kind = get(block, "type")
        if kind in _SERVER_BLOCKS:
            yield _call(block)
        elif isinstance(kind, str) and kind.endswith(CALL_SUFFIX) and kind not in _CLIENT_BLOCKS:
            yield _server_call(kind, block)


def _server_call(kind: str, block: Any) -> RawCall:
    """Read a block like `web_search_call`, whose fields beside its id and outcome are the arguments."""
    values = block if isinstance(block, Mapping) else getattr(block, "__dict__", {})
    args = {key: value for key, value in values.items() if key not in _NOT_ARGUMENTS and value is not None}
    return RawCall(kind.removesuffix(CALL_SUFFIX), args, id=_id(block))


def _text(message: Any) -> str:
    content = get(message, "content")
    text = content if isinstance(content, str) else "".join(map(_block_text, blocks(message)))
    if text:
        return text
    refusals = [
        get(source, "refusal") for source in (message, get(message, "additional_kwargs"), *blocks(message))
    ]
    return next((refusal for refusal in refusals if isinstance(refusal, str)), "")


def _block_text(block: Any) -> str:
    if isinstance(block, str):
        return block
    kind = get(block, "type")
    written = kind in ("text", "output_text") or (kind is None and not get(block, "thought"))
    text = get(block, "text") if written else None
    return text if isinstance(text, str) else ""
