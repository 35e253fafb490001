"""Calls between tags, as models write them whose server parses no tools.

`<tool_call>` around JSON (Hermes, Qwen) or around keys and values (GLM), and `<function=name>` around JSON
(Llama) or around parameters (Qwen-Coder).
"""

from __future__ import annotations

import re
from typing import Any, Final

from selective_rollout.actions.parse import calls_from_json, unfence
from selective_rollout.actions.raw import RawCall
from selective_rollout.actions.values import loads

_CALL: Final = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FUNCTION: Final = re.compile(r"<function=([^\s>]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
# No value reaches over the next beginning, so that a model that only begins costs no quadratic search.
_PARAMETER: Final = re.compile(r"<parameter=([^\s>]+)>((?:(?!<parameter=).)*?)</parameter>", re.DOTALL)
_PAIR: Final = re.compile(
    r"<arg_key>([^<]*)</arg_key>\s*<arg_value>((?:(?!<arg_key>).)*?)</arg_value>", re.DOTALL
)
_HEAD: Final = re.compile(r"\s*([^\s<>{}\[\]\"]+)(?=\s*(?:<arg_key>|\Z))")
_JSON_NAME: Final = re.compile(r'"name"\s*:\s*"([^"\\]+)"')


def tagged_calls(text: str) -> tuple[RawCall, ...]:
    """Read the tagged calls of a completion; empty if there are none."""
    tagged = _CALL.findall(text) or (_FUNCTION.search(text) and [text])
    return tuple(call for inner in tagged or () for call in _calls(inner))


def _calls(inner: str) -> tuple[RawCall, ...]:
    functions = _FUNCTION.findall(inner)
    if functions:
        return tuple(_function(name, written) for name, written in functions)
    written = unfence(inner)
    try:
        calls = calls_from_json(loads(written))
    except ValueError:
        calls = ()
    return calls or (_keyed(written),)


def _function(name: str, written: str) -> RawCall:
    args = _pairs(_PARAMETER, written)
    try:
        args = loads(written) if args is None else args
    except ValueError:
        args = None
    return RawCall(name, args if isinstance(args, dict) else None, raw=written.strip())


def _keyed(written: str) -> RawCall:
    head = _HEAD.match(written)
    args = _pairs(_PAIR, written[head.end() :]) if head else None
    if head and args:
        return RawCall(head[1], args, raw=written)
    name = _JSON_NAME.search(written)
    return RawCall(name[1] if name else "tool_call", None, raw=written)


def _pairs(pattern: re.Pattern[str], written: str) -> dict[str, Any] | None:
    """Read named values that fill a text as a whole; None if something else is left."""
    if pattern.sub("", written).strip():
        return None
    return {key.strip(): _value(value.strip("\n")) for key, value in pattern.findall(written)}


def _value(written: str) -> Any:
    try:
        return loads(written)
    except ValueError:
        return written
