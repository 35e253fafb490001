"""Items of OpenAI's Responses API, which splits what other formats put into one message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final

from selective_rollout.actions.fields import blocks, get

CALL_SUFFIX: Final = "_call"
"""How the types of items and blocks end that are calls, the server's own tools included."""
SILENT: Final = ("reasoning", "compaction")
"""Items of the model that neither say nor do anything."""


def is_item(source: Any) -> bool:
    """Tell whether this is an item of what a response put out: a call, reasoning, or a part of its text."""
    kind = get(source, "type")
    if not isinstance(kind, str):
        return False
    if kind == "message":
        return bool(get(source, "role") == "assistant")
    return get(source, "role") is None and (kind == "reasoning" or kind.endswith(CALL_SUFFIX))


def join_items(messages: Iterable[Any]) -> Iterator[Any]:
    """Make one message of the items of one response; other messages stay as they are.

    Replies stand between two responses, so neighbouring items belong together.
    """
    for of_response, run in groupby(messages, is_item):
        if of_response:
            yield message_of(run)
        else:
            yield from run


def message_of(items: Iterable[Any]) -> dict[str, Any]:
    """The assistant message that the items of one response make together."""
    content: list[Any] = []
    for item in items:
        kind, text = get(item, "type"), get(item, "content")
        if kind in (None, "message"):
            content += [{"type": "output_text", "text": text}] if isinstance(text, str) else blocks(item)
        elif kind not in SILENT:
            content.append(item)
    return {"role": "assistant", "content": content}
