"""Token counts of foreign records. What nobody counted is None, never 0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from selective_rollout.errors import TraceError
from selective_rollout.types import Usage

_MOST: Final = 2**53
_PROMPT: Final = ("prompt_tokens", "input_tokens", "prompt")
_ANTHROPIC: Final = "input_tokens"
_BESIDE_PROMPT: Final = ("cache_read_input_tokens", "cache_creation_input_tokens")
"""Parts of the prompt that Anthropic does not count among its input tokens."""
_COMPLETION: Final = ("completion_tokens", "output_tokens", "completion")


def token_count(value: Any, where: str) -> int | None:
    """One count; None if unknown.

    Raises:
        TraceError: the value is no count.
    """
    if value is None or value != value or value == "":
        return None
    try:
        number = float(value) if isinstance(value, (int, float, str)) and value is not True else -1.0
    except (ValueError, OverflowError):
        number = -1.0
    if not (0 <= number <= _MOST and number.is_integer()):
        raise TraceError(f"{where}: {str(value)[:40]!r} is no number of tokens")
    return int(number)


def read_usage(value: Any, where: str) -> Usage | None:
    """A usage object, or a single number of completion tokens; None if neither count is known.

    Raises:
        TraceError: a count is no number.
    """
    if not isinstance(value, dict):
        completion = token_count(value, where)
        return None if completion is None else Usage(completion=completion)
    prompt = token_count(_first(value, _PROMPT), where)
    if prompt is not None and value.get(_ANTHROPIC) is not None and value.get(_PROMPT[0]) is None:
        prompt += sum(token_count(value.get(name), where) or 0 for name in _BESIDE_PROMPT)
    completion = token_count(_first(value, _COMPLETION), where)
    return None if prompt is None and completion is None else Usage(prompt=prompt, completion=completion)


def completion_sum(usages: Iterable[Usage | None]) -> int:
    """Completion tokens known of several completions."""
    return sum(usage.completion or 0 for usage in usages if usage is not None)


def total(usages: Iterable[Usage | None]) -> Usage | None:
    """Sum over completions; a count unknown for one of them is unknown for all."""
    known = list(usages)
    prompts = [usage.prompt if usage else None for usage in known]
    completions = [usage.completion if usage else None for usage in known]
    prompt, completion = _sum(prompts), _sum(completions)
    return None if prompt is None and completion is None else Usage(prompt=prompt, completion=completion)


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None


def _first(value: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((value[name] for name in names if value.get(name) is not None), None)
