"""Tool calls that were written as strings: JSON call objects and call syntax.

Read are `{"tool": ..., "args": ...}` and its relatives (one object, several after another, or a list of
them), `name({...})`, `name(key=value, ...)`, and several such calls joined by `+` (as canonical actions are),
by line breaks, or as a list in brackets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from selective_rollout.actions.literals import read_literal
from selective_rollout.actions.raw import RawCall
from selective_rollout.actions.values import load_at, loads

INVALID: Final = "invalid:"
"""Prefix of a call whose arguments are no JSON object."""

_NAME_KEYS: Final = frozenset({"tool", "name", "tool_name", "action", "function"})
_ARGS_KEYS: Final = frozenset({"args", "arguments", "parameters", "input", "tool_input", "action_input"})
_ID_KEYS: Final = frozenset({"id", "call_id", "tool_call_id", "index"})
_CALL_TYPES: Final = ("function", "function_call", "tool_call", "tool_use")
_LIST_KEY: Final = "tool_calls"

_FENCE: Final = re.compile(r"```[\w+-]*[ \t]*\n(.*?)\n?[ \t]*```\s*", re.DOTALL)
_HEAD: Final = re.compile(r"([^\s()\[\]{}\"'+=,]+)\(")
_NAMED: Final = re.compile(r"([^\s()\[\]{}\"'+=,]+)[(\[]")
_INVALID_END: Final = re.compile(r"\)(?=\Z|\+[^\s()\[\]{}\"'+=,]+\()")
_JOINT: Final = re.compile(r"\s*\+\s*|\s*\n\s*")
_COMMA: Final = re.compile(r"\s*,\s*")
_BETWEEN: Final = re.compile(r"[\s;,]*")
_KEY: Final = re.compile(r"\s*([^\W\d]\w*)\s*=\s*")
_CLOSING: Final = re.compile(r"\s*\)")
_NEXT: Final = re.compile(r"\s*(?:,|(?=\)))")


def unfence(text: str) -> str:
    """Return the inside of a text that is one code block as a whole; any other text stripped."""
    stripped = text.strip()
    fence = _FENCE.fullmatch(stripped) if stripped.startswith("```") else None
    return fence[1].strip() if fence else stripped


def call_name(text: str) -> str | None:
    """Return `name` of a text that starts like `name(` or `name[`, else None."""
    head = _NAMED.match(text)
    return head[1] if head else None


def call_from_object(value: Any) -> RawCall | None:
    """Read a JSON object of one of the known call shapes; None if it is something else."""
    if not isinstance(value, Mapping):
        return None
    keys = set(value) - _ID_KEYS
    if value.get("type") in _CALL_TYPES:
        keys.discard("type")
    if keys == {"function"} and isinstance(value["function"], Mapping):
        inner = value["function"]
        return call_from_object(inner if _ARGS_KEYS & set(inner) else {**inner, "args": {}})
    name_keys, args_keys = keys & _NAME_KEYS, keys & _ARGS_KEYS
    if len(keys) != 2 or len(name_keys) != 1 or len(args_keys) != 1:
        return None
    name, args = value[name_keys.pop()], value[args_keys.pop()]
    if not isinstance(name, str):
        return None
    if isinstance(args, str):
        return call_from_text(name, args)
    if args is None or isinstance(args, Mapping):
        return RawCall(name, dict(args or {}))
    return None


def call_from_text(name: str, text: str) -> RawCall:
    """Make a call from arguments written as text, where plain text is one positional argument."""
    inner = unfence(text)
    if not inner:
        return RawCall(name, {})
    try:
        args = loads(inner)
    except ValueError:
        args = None
    if isinstance(args, Mapping):
        return RawCall(name, dict(args), raw=inner)
    if inner.startswith("{"):
        return RawCall(name, None, raw=inner)
    return RawCall(name, {"0": args if isinstance(args, str) else inner}, raw=inner)


def calls_from_json(value: Any) -> tuple[RawCall, ...]:
    """Read a call object or a list of call objects; empty if the value is something else."""
    if isinstance(value, Mapping) and value.keys() == {_LIST_KEY}:
        value = value[_LIST_KEY]
    items = value if isinstance(value, list) else [value]
    calls = [call_from_object(item) for item in items]
    return () if None in calls else tuple(call for call in calls if call is not None)


def calls_from_text(text: str) -> tuple[RawCall, ...]:
    """Read calls that fill a text which is no single JSON value; empty if it is something else."""
    if text.startswith("{"):
        return _calls_in_a_row(text)
    if text.startswith("[") and text.endswith("]"):
        return _calls_from_syntax(text[1:-1].strip(), _COMMA)
    return _calls_from_syntax(text, _JOINT)


def _calls_in_a_row(text: str) -> tuple[RawCall, ...]:
    """Read call objects that follow each other."""
    values, position = [], 0
    while position < len(text):
        try:
            value, end = load_at(text, position)
        except ValueError:
            return ()
        values.append(value)
        between = _BETWEEN.match(text, end)
        position = between.end() if between else end
    return calls_from_json(values)


def _calls_from_syntax(text: str, joint: re.Pattern[str]) -> tuple[RawCall, ...]:
    """Read `name(...)` calls that fill the text as a whole; empty if it is something else."""
    calls: list[RawCall] = []
    position = 0
    while True:
        head = _HEAD.match(text, position)
        if head is None:
            return ()
        try:
            call, position = _call(text, head)
        except ValueError:
            return ()
        calls.append(call)
        if position == len(text):
            return tuple(calls)
        between = joint.match(text, position)
        if between is None:
            return ()
        position = between.end()


def _call(text: str, head: re.Match[str]) -> tuple[RawCall, int]:
    """Read one call and return it with the position behind it."""
    if not head[1].startswith(INVALID):
        args, position = _call_arguments(text, head.end())
        return RawCall(head[1], args), position
    end = _INVALID_END.search(text, head.end())
    if end is None:
        raise ValueError("no closing parenthesis")
    return RawCall(head[1].removeprefix(INVALID), None, raw=text[head.end() : end.start()]), end.end()


def _call_arguments(text: str, position: int) -> tuple[dict[str, Any], int]:
    """Read arguments up to the closing parenthesis; positional ones are named "0", "1", ..."""
    args: dict[str, Any] = {}
    positional = 0
    while not (closing := _CLOSING.match(text, position)):
        keyword = _KEY.match(text, position)
        if keyword is not None:
            key, position = keyword[1], keyword.end()
        else:
            key, positional = str(positional), positional + 1
        if key in args:
            raise ValueError(f"argument {key} is given twice")
        args[key], position = read_literal(text, position)
        end = _NEXT.match(text, position)
        if end is None:
            raise ValueError("no comma or closing parenthesis")
        position = end.end()
    only = args["0"] if args.keys() == {"0"} else None
    return (only if isinstance(only, dict) else args), closing.end()
