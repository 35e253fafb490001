"""Reading a request's conversation: what the model has done so far, and what came back.

The body is not decoded as a whole: each message is kept as the bytes that the client sent, looked at for its
role, and read only the first time it comes by.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import msgspec

from selective_rollout.actions import ActionOptions, canonicalise, read_action
from selective_rollout.actions.items import CALL_SUFFIX, SILENT, message_of

Api: TypeAlias = Literal["chat", "completions", "responses"]

_APIS: Final[Mapping[bytes, Api]] = {
    b"/v1/chat/completions": "chat",
    b"/v1/completions": "completions",
    b"/v1/responses": "responses",
}
_SERVER_RUN: Final = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_call",
        "tool_search_call",
    }
)


def api_of(path: bytes) -> Api | None:
    """Which generating endpoint a path from /v1 on names; a server may keep it deeper than at its root."""
    return _APIS.get(path[path.rfind(b"/v1/") :])


class Body(msgspec.Struct, frozen=True):
    """The parts of a request that the gateway reads; messages stay as they were sent."""

    messages: list[msgspec.Raw] | None = None
    input: str | list[msgspec.Raw] | None = None
    prompt: msgspec.Raw = msgspec.Raw(b"")
    previous_response_id: str | None = None
    tools: list[msgspec.Raw] | None = None
    functions: list[msgspec.Raw] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    n: int | None = None
    seed: int | None = None
    temperature: float | None = None

    @property
    def offers_tools(self) -> bool:
        """Whether the model may call tools of the client."""
        return bool(self.tools or self.functions)


_decode_body: Final = msgspec.json.Decoder(Body).decode


def read_body(raw: bytes) -> Body | None:
    """Read a request body; None if it is none that this module knows, which is the server's to judge."""
    try:
        return _decode_body(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Said:
    """One turn of the model."""

    action: str
    calls: tuple[str, ...] | None = ()
    """Ids of its tool calls, which tell equal actions apart; None: not known, it comes from a trace."""
    waits: bool = False
    """It calls tools of the client, so that something has to come back."""

    def same(self, other: Said) -> bool:
        """Whether the two are one turn, seen twice."""
        unknown = self.calls is None or other.calls is None
        return self.action == other.action and (unknown or self.calls == other.calls)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the model in a conversation, and the texts that followed it."""

    said: Said
    replies: tuple[bytes, ...]
    """Raw messages up to the next turn."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one request shows."""

    opening: int
    """Tells conversations apart: a hash of what stands before the first turn."""
    turns: Sequence[Turn]
    before: tuple[bytes, ...] = ()
    """Raw messages before the first turn."""


class _Head(msgspec.Struct, frozen=True):
    role: str | None = None
    type: str | None = None


_decode_head: Final = msgspec.json.Decoder(_Head).decode
_decode_any: Final = msgspec.json.Decoder().decode


class Reader:
    """Reads the conversations of one rollout; what it has read it knows by its bytes.

    Args:
        options: what counts as the same action.
        most: longer conversations are not read.
    """

    def __init__(self, options: ActionOptions, most: int) -> None:
        self._options = options
        self._most = most
        self._known: dict[int, Said] = {}

    def read(self, api: Api, body: Body) -> Conversation | None:
        """Read a conversation; None if there is none, or it is too long."""
        if api == "chat":
            items: Sequence[bytes] | None = _raw(body.messages)
        elif api == "responses":
            items = [_as_message(body.input)] if isinstance(body.input, str) else _raw(body.input)
        else:
            items = [prompt] if (prompt := bytes(body.prompt)) else None
        if items is None or len(items) > self._most:
            return None
        return self._split(items, grouped=api == "responses")

    def said(self, message: Mapping[str, Any]) -> Said:
        """What a message of the model does."""
        action = read_action(message, self._options)
        return Said(
            canonicalise(action, self._options),
            tuple(call.id for call in action.calls if call.id is not None),
            waits_for_client(message),
        )

    def _split(self, items: Sequence[bytes], *, grouped: bool) -> Conversation:
        """Cut a list of messages into turns.

        Args:
            items: raw messages.
            grouped: neighbouring items of the model are one turn, as in the Responses API.
        """
        turns: list[Turn] = []
        before: list[bytes] = []
        replies: list[bytes] = []
        spoken: list[bytes] = []

        def close() -> None:
            nonlocal spoken, replies
            if spoken:
                turns.append(Turn(self._said_in(spoken, grouped=grouped), tuple(replies)))
            spoken, replies = [], []

        for item in items:
            if not _is_model(item):
                (replies if spoken or turns else before).append(item)
                continue
            if spoken and (replies or not grouped):
                close()
            spoken.append(item)
        close()
        return Conversation(hash(tuple(before)), turns, tuple(before))

    def _said_in(self, spoken: Sequence[bytes], *, grouped: bool) -> Said:
        mark = hash(tuple(spoken))
        said = self._known.get(mark)
        if said is None:
            parts = [_object(item) for item in spoken]
            said = self.said(message_of(parts) if grouped else parts[0])
            if len(self._known) >= self._most:
                self.forget()
            self._known[mark] = said
        return said

    def forget(self) -> None:
        """Give back the memory; whatever comes by again is read again."""
        self._known.clear()


def waits_for_client(message: Mapping[str, Any]) -> bool:
    """Whether a message calls tools that the client runs."""
    if message.get("tool_calls") or message.get("function_call"):
        return True
    content = message.get("content")
    kinds = [b.get("type") for b in content if isinstance(b, Mapping)] if isinstance(content, list) else []
    return any(
        isinstance(kind, str) and kind.endswith(CALL_SUFFIX) and kind not in _SERVER_RUN for kind in kinds
    )


def reply_text(replies: Sequence[bytes]) -> str | None:
    """The texts that came back, as one; None if nothing did."""
    texts = [text for text in map(_text_of, replies) if text is not None]
    return "\n".join(texts) if texts else None


def stands_in(text: str, raw: bytes) -> bool:
    """Whether a JSON body repeats a text, however its writer escapes it."""
    spellings = (json.dumps(text), json.dumps(text, ensure_ascii=False))
    return any(spelling[1:-1].encode("utf-8", "surrogatepass") in raw for spelling in spellings)


def _as_message(text: str) -> bytes:
    return msgspec.json.encode({"role": "user", "content": text})


def _raw(items: Sequence[msgspec.Raw] | None) -> list[bytes] | None:
    return None if items is None else [bytes(item) for item in items]


def _is_model(item: bytes) -> bool:
    try:
        head = _decode_head(item)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    if head.role is not None:
        return head.role == "assistant"
    kind = head.type or ""
    return kind in SILENT or kind.endswith(CALL_SUFFIX)


def _object(item: bytes) -> dict[str, Any]:
    try:
        value = _decode_any(item)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {"role": "assistant", "content": ""}
    return value if isinstance(value, dict) else {}


def _text_of(item: bytes) -> str | None:
    value = _object(item)
    content = value.get("content", value.get("output"))
    if content is None:
        return None
    return content if isinstance(content, str) else json.dumps(content, sort_keys=True)
