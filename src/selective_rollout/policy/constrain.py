"""Keeping a completion inside a set of actions, in the three ways that servers understand.

`choice` is vLLM's `structured_outputs`, `grammar` llama.cpp's GBNF, `json_schema` the portable
`response_format`, which costs the tokens of a small JSON object. A server that does not know a field ignores
it without a word, so the way has to fit the server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from selective_rollout.policy.options import Constrain

_KEY: Final = "action"
_GBNF_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def constraint_body(way: Constrain, actions: Sequence[str]) -> dict[str, Any]:
    """Fields of a request body that allow exactly the given actions."""
    if way == "choice":
        return {"structured_outputs": {"choice": list(actions)}}
    if way == "grammar":
        return {"grammar": gbnf_alternatives(actions)}
    schema = {
        "type": "object",
        "properties": {_KEY: {"type": "string", "enum": list(actions)}},
        "required": [_KEY],
        "additionalProperties": False,
    }
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": _KEY, "strict": True, "schema": schema},
        }
    }


def gbnf_alternatives(actions: Sequence[str]) -> str:
    """A GBNF grammar whose only sentences are the given actions."""
    return "root ::= " + " | ".join(f'"{_gbnf_escape(action)}"' for action in dict.fromkeys(actions))


def unwrap_action(message: Mapping[str, Any], actions: Sequence[str]) -> dict[str, Any]:
    """Replace the JSON object that `json_schema` asked for by the action in it.

    A message that holds anything else (cut off, or the server ignored the schema) is returned as it is.
    """
    try:
        said = json.loads(message.get("content") or "")
    except (TypeError, ValueError):
        return dict(message)
    action = said.get(_KEY) if isinstance(said, Mapping) else None
    return dict(message) | ({"content": action} if action in actions else {})


def _gbnf_escape(text: str) -> str:
    return "".join(_GBNF_ESCAPES.get(c) or (f"\\x{ord(c):02X}" if ord(c) < 0x20 else c) for c in text)
