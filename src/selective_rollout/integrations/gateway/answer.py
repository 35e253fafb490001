"""Reading what the model server answered, once it is complete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from selective_rollout.actions.items import message_of
from selective_rollout.actions.read import is_cut_off
from selective_rollout.errors import PolicyError
from selective_rollout.integrations.gateway.conversation import Api
from selective_rollout.policy.stream import Assembly
from selective_rollout.policy.usage import read_usage, response_usage
from selective_rollout.types import Usage

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_LAST_EVENTS: Final = ("response.completed", "response.incomplete")
_decode: Final = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the model."""

    message: Mapping[str, Any] | None
    """The assistant message; None if it is not known which of several, or if none came whole."""
    text: str = ""
    usage: Usage = field(default_factory=Usage)
    finish_reason: str | None = None
    id: str | None = None

    @property
    def is_cut_off(self) -> bool:
        """Whether it ran into its token limit, so that it holds no trustworthy action."""
        return is_cut_off(self.finish_reason)


def read_whole(api: Api, body: bytes, n: int) -> Answer | None:
    """Read a JSON answer; None if it is none."""
    try:
        value = _decode(body)
    except _UNREADABLE:
        return None
    if not isinstance(value, dict):
        return None
    if api == "responses":
        return _of_response(value)
    if api == "completions":
        return _of_texts([value], n)
    assembly = Assembly(n)
    try:
        assembly.add_response(value)
    except PolicyError:
        return None
    return _of_assembly(assembly, n)


def read_stream(api: Api, body: bytes, n: int) -> Answer | None:
    """Read what came of a stream of events, whole or broken off; None if nothing can be made of it."""
    events = list(_payloads(body))
    if api == "responses":
        last = next((event for event in reversed(events) if event.get("type") in _LAST_EVENTS), None)
        response = last.get("response") if last is not None else None
        return _of_response(response) if isinstance(response, dict) else None
    if api == "completions":
        return _of_texts(events, n)
    assembly = Assembly(n)
    try:
        for event in events:
            assembly.add_chunk(event)
    except PolicyError:
        return None
    return _of_assembly(assembly, n)


def _of_assembly(assembly: Assembly, n: int) -> Answer | None:
    try:
        choices = assembly.finish()
    except PolicyError:
        return Answer(None, usage=assembly.usage(), id=_text(assembly.response_id))
    first = choices[0]
    only = first.message if n == 1 else None
    return Answer(
        only,
        _text(first.message.get("content")) or "" if only else "",
        assembly.usage(),
        first.finish_reason,
        _text(assembly.response_id),
    )


def _of_texts(parts: Sequence[Mapping[str, Any]], n: int) -> Answer | None:
    """An answer of the legacy completions API, whole or in chunks."""
    texts: list[str] = []
    reason: str | None = None
    usages: list[object] = []
    for part in parts:
        usages += [part["usage"]] if part.get("usage") else []
        for choice in _objects(part.get("choices")):
            texts.append(_text(choice.get("text")) or "")
            reason = _text(choice.get("finish_reason")) or reason
    if not texts:
        return None
    text = "".join(texts)
    message = {"role": "assistant", "content": text} if n == 1 and reason else None
    usage = response_usage(usages[-1:], None if len(parts) == 1 else [sum(map(bool, texts))])
    return Answer(message, text if message else "", usage, reason, _text(parts[0].get("id")))


def _of_response(response: Mapping[str, Any]) -> Answer | None:
    """An answer of the Responses API."""
    items = list(_objects(response.get("output")))
    status = response.get("status")
    if status not in ("completed", "incomplete", None):
        return None
    message = message_of(items)
    texts = [_text(block.get("text")) for block in _objects(message["content"])]
    return Answer(
        message,
        "".join(text for text in texts if text),
        read_usage(response.get("usage")),
        "length" if status == "incomplete" else "stop",
        _text(response.get("id")),
    )


def _payloads(body: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects in a stream of events; `data:` lines of one event belong together."""
    for event in body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n"):
        lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
        try:
            value = _decode(b"\n".join(lines)) if lines else None
        except _UNREADABLE:
            continue
        if isinstance(value, dict):
            yield value


def _objects(value: object) -> Iterable[Mapping[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
