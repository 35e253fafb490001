"""A deterministic tokenizer, small enough to predict by eye.

A token is a piece of a word (up to eight letters or digits) or one other character, together with the white
space before it, so that `"".join(tokenize(text)) == text` for every text.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

EOS: Final = "<|end|>"
"""Token that ends every message of a prompt and every reply that stops by itself."""

_TOKEN: Final = re.compile(r"\s*\w{1,8}|\s*[^\w\s]|\s+")
_VOCABULARY: Final = 50_000


def tokenize(text: str) -> list[str]:
    """Split a text into tokens that join back to exactly that text."""
    return _TOKEN.findall(text)


def count_tokens(text: str) -> int:
    """Number of tokens of a text."""
    return len(tokenize(text))


def token_id(token: str) -> int:
    """A stable id for a token, equal in every process; distinct tokens may share one."""
    return zlib.crc32(token.encode("utf-8", "surrogatepass")) % _VOCABULARY


def render_prompt(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = ()) -> list[str]:
    """Tokens of a conversation under the chat template of this fake model.

    A reply that is sent back as the next assistant message renders to the tokens it was generated as, so that
    the prompt of step k + 1 begins with prompt and reply of step k.
    """
    tokens: list[str] = []
    if tools:
        tokens += ["<|tools|>", *tokenize(json.dumps(tools, sort_keys=True)), EOS]
    for message in messages:
        tokens += [f"<|{message.get('role', 'user')}|>", *_message_tokens(message), EOS]
    return [*tokens, "<|assistant|>"]


def message_text(content: object) -> str:
    """Text of a message's `content`: a string, a list of parts, or None for a call without words."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        parts = (part.get("text") for part in content if isinstance(part, Mapping))
        return "".join(text for text in parts if isinstance(text, str))
    return ""


def _message_tokens(message: Mapping[str, Any]) -> list[str]:
    tokens = tokenize(message_text(message.get("content")))
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        tokens += [str(function.get("name", "")), *tokenize(str(function.get("arguments", "")))]
    return tokens
