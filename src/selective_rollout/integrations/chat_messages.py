"""What a LangChain message tells of the request behind it, for the integrations that build on LangChain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selective_rollout.actions import read
from selective_rollout.actions.fields import get
from selective_rollout.types import Usage


def usage_of(message: Any) -> Usage:
    """Tokens of the request behind an assistant message; unknown, not 0, where it carries none.

    Of several samples (`n` > 1) each message repeats the request's total: take it from one of them. Messages
    streamed from an endpoint of one's own carry none, unless the model was made with `stream_usage=True`.
    """
    counts = get(message, "usage_metadata")
    if not isinstance(counts, Mapping):
        return Usage()
    prompt, completion = counts.get("input_tokens"), counts.get("output_tokens")
    if prompt is None and completion is None:
        return Usage()
    return Usage(
        prompt=prompt,
        cached=(counts.get("input_token_details") or {}).get("cache_read"),
        completion=completion,
        reasoning=(counts.get("output_token_details") or {}).get("reasoning"),
        source="server",
    )


def response_id_of(message: Any) -> str | None:
    """The server's id of the response that a message came in."""
    name = (get(message, "response_metadata") or {}).get("id")
    return name if isinstance(name, str) and name else None


def finish_reason_of(message: Any) -> str | None:
    """Why the model stopped writing, as its server reported it."""
    metadata = get(message, "response_metadata") or {}
    incomplete = metadata.get("incomplete_details") or {}  # of OpenAI's Responses API
    reason = metadata.get("finish_reason") or metadata.get("stop_reason") or incomplete.get("reason")
    return reason if isinstance(reason, str) else None


def is_cut_off(message: Any) -> bool:
    """Whether a message ran into its token limit."""
    return read.is_cut_off(finish_reason_of(message))
