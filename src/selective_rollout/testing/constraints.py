"""Keeping a fake model's replies to the texts that a request allows."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from selective_rollout.testing.brains import Reply

_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_ALTERNATIVES: Final = re.compile(rf"\s*root\s*::=\s*{_QUOTED}(?:\s*\|\s*{_QUOTED})*\s*")


def constrained(reply: Reply, body: Mapping[str, Any], ways: Collection[str], seed: int) -> Reply:
    """The reply itself if the request allows it, else one of the texts it allows, drawn by the seed.

    Args:
        reply: what the brain said.
        body: the request.
        ways: fields that this server understands: "choice", "grammar", "json_schema"; others are ignored.
        seed: seed of this choice.
    """
    if "json_schema" in ways and (field := _enumeration(body)) is not None:
        name, values = field
        allowed = {value: json.dumps({name: value}) for value in values}
    else:
        allowed = {text: text for text in _texts(body, ways)}
    if not allowed or reply.content in allowed.values():
        return reply
    chosen = reply.content if reply.content in allowed else list(allowed)[seed % len(allowed)]
    return replace(reply, content=allowed[chosen], tool_calls=())


def _texts(body: Mapping[str, Any], ways: Collection[str]) -> Sequence[str]:
    if "choice" in ways and isinstance(outputs := body.get("structured_outputs"), Mapping):
        return list(outputs.get("choice") or ())
    grammar = body.get("grammar")
    if "grammar" in ways and isinstance(grammar, str) and _ALTERNATIVES.fullmatch(grammar):
        return [json.loads(quoted) for quoted in re.findall(_QUOTED, grammar)]
    return []


def _enumeration(body: Mapping[str, Any]) -> tuple[str, list[str]] | None:
    """The only field of the schema asked for, and the texts it may hold."""
    asked = body.get("response_format")
    schema = asked.get("json_schema", {}).get("schema", {}) if isinstance(asked, Mapping) else {}
    for name, field in schema.get("properties", {}).items():
        if isinstance(field, Mapping) and isinstance(field.get("enum"), list):
            return name, field["enum"]
    return None
