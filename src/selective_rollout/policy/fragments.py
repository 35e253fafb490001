"""One choice of an answer, put together from its fragments.

Text simply follows text; pieces of tool calls interleave and are keyed by their index.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from selective_rollout.errors import PolicyError

_REASONING_FIELDS: Final = ("reasoning", "reasoning_content")


def as_object(value: object, what: str) -> Mapping[str, Any]:
    """Require a JSON object; null counts as an empty one.

    Raises:
        PolicyError: kind "protocol".
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return value
    raise PolicyError(f"{what} should be an object, got {type(value).__name__}", "protocol")


def as_list(value: object, what: str) -> Sequence[Any]:
    """Require a JSON list; null counts as an empty one.

    Raises:
        PolicyError: kind "protocol".
    """
    if value is None:
        return ()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return value
    raise PolicyError(f"{what} should be a list, got {type(value).__name__}", "protocol")


@dataclass(slots=True)
class CallParts:
    """What came of one tool call so far."""

    id: str | None = None
    name: str = ""
    arguments: str = ""

    def add(self, call_id: str | None, function: Mapping[str, Any]) -> bool:
        """Take in one fragment; True if it carried text.

        A name that comes again in full, as some servers send it, is no second half of it.
        """
        self.id = self.id or call_id
        name = str(function.get("name") or "")
        if name != self.name:
            self.name += name
        arguments = function.get("arguments")
        text = (arguments or "") if isinstance(arguments, str | None) else json.dumps(arguments)
        self.arguments += text
        return bool(name or text)

    def to_function(self) -> dict[str, str]:
        """The finished call, without its id."""
        return {"name": _whole(self.name), "arguments": _whole(self.arguments)}


@dataclass(slots=True)
class ChoiceParts:
    """What came of one choice so far."""

    finish_reason: str | None = None
    chunks: int = 0
    """Chunks that carried anything generated."""
    _content: list[str] = field(default_factory=list)
    _has_content: bool = False
    _refusal: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _reasoning_field: str | None = None
    _calls: dict[int, CallParts] = field(default_factory=dict)
    _newest: dict[int, int] = field(default_factory=dict)
    """Place of the newest call by the index that the server gives it."""
    _legacy_call: CallParts | None = None

    def add(self, delta: Mapping[str, Any]) -> bool:
        """Take in one delta, or a whole message.

        Returns:
            True if it carried anything generated.

        Raises:
            PolicyError: kind "protocol" if a field has a type that the format does not know.
        """
        grew = self._add_text(delta)
        for fragment in as_list(delta.get("tool_calls"), "tool_calls"):
            grew |= self._add_call(as_object(fragment, "a tool call"))
        if legacy := as_object(delta.get("function_call"), "function_call"):
            self._legacy_call = self._legacy_call or CallParts()
            grew |= self._legacy_call.add(None, legacy)
        self.chunks += grew
        return grew

    def message(self, answer_id: str) -> dict[str, Any]:
        """The finished assistant message, which can always be sent back.

        Calls without an id get one made from `answer_id`; half characters become U+FFFD.
        """
        content = _whole("".join(self._content))
        shown = content if self._has_content and (content or not self._calls) else None
        message: dict[str, Any] = {"role": "assistant", "content": shown}
        if self._calls:
            message["tool_calls"] = [
                {
                    "id": call.id or f"call_{answer_id}_{index}",
                    "type": "function",
                    "function": call.to_function(),
                }
                for index, call in sorted(self._calls.items())
            ]
        if self._legacy_call is not None:
            message["function_call"] = self._legacy_call.to_function()
        if self._reasoning_field is not None:
            message[self._reasoning_field] = _whole("".join(self._reasoning))
        if self._refusal:
            message["refusal"] = _whole("".join(self._refusal))
        return message

    def _add_text(self, delta: Mapping[str, Any]) -> bool:
        self._has_content |= delta.get("content") is not None
        content, refusal = _text(delta.get("content")), _text(delta.get("refusal"))
        name = next((name for name in _REASONING_FIELDS if delta.get(name)), None)
        if content:
            self._content.append(content)
        if refusal:
            self._refusal.append(refusal)
        if name is not None:
            self._reasoning_field = self._reasoning_field or name
            self._reasoning.append(_text(delta[name]))
        return bool(content or refusal or name)

    def _add_call(self, fragment: Mapping[str, Any]) -> bool:
        """Find the call that a fragment belongs to, and add it.

        Some servers leave the index out, or give every call the same one; a further call then shows by a name
        together with another id, or by a name that follows arguments.
        """
        index, call_id = fragment.get("index"), fragment.get("id")
        function = as_object(fragment.get("function"), "the function of a tool call")
        name = function.get("name")
        place = self._newest.get(index, index) if isinstance(index, int) else self._place_of(call_id)
        known = self._calls.get(place)
        if known is not None and name:
            other_id = bool(call_id and known.id) and call_id != known.id
            if other_id or (known.arguments and (index is None or name != known.name)):
                place = max(self._calls) + 1
        if isinstance(index, int):
            self._newest[index] = place
        return self._calls.setdefault(place, CallParts()).add(call_id, function)

    def _place_of(self, call_id: object) -> int:
        """Where the call of an id stands, else the newest one."""
        same = (place for place, call in self._calls.items() if call_id and call.id == call_id)
        return next(same, max(self._calls, default=0))


def said(delta: Mapping[str, Any]) -> str:
    """Text of a delta or message that is no tool call: reasoning, then content, then refusal.

    Raises:
        PolicyError: kind "protocol" if a field has a type that the format does not know.
    """
    reasoning = next((delta[name] for name in _REASONING_FIELDS if delta.get(name)), None)
    return _text(reasoning) + _text(delta.get("content")) + _text(delta.get("refusal"))


def called(message: Mapping[str, Any]) -> str:
    """The tool calls of a finished message as text, `name(arguments)` one after the other."""
    calls = [as_object(call, "a tool call").get("function") for call in message.get("tool_calls") or ()]
    legacy = message.get("function_call")
    functions = [as_object(call, "a function") for call in [*calls, *([legacy] if legacy else [])]]
    return "".join(f"{function.get('name')}({function.get('arguments')})" for function in functions)


def _whole(text: str) -> str:
    """Join surrogate pairs that came in two pieces, and replace single ones, which JSON can spell."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _text(content: object) -> str:
    """Text of a field: a string, nothing, or a list of parts."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = (as_object(part, "a part of the text") for part in as_list(content, "the text"))
    return "".join(_text(part.get("text")) for part in parts)
