"""Token counts out of every shape in which servers report them.

Measured shapes: vLLM and OpenAI count the prompt once and sum the completion over the choices; llama.cpp
reports the completion of one choice only, streams one usage object per choice, and without usage still
sends `timings`. Details are absent, null or objects. What nobody counted is None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from selective_rollout.policy.fragments import called, said
from selective_rollout.types import Usage, UsageSource

_CHARACTERS_PER_TOKEN: Final = 4
_WEAKEST_LAST: Final[tuple[UsageSource, ...]] = ("server", "client", "estimated", "unknown")


def read_usage(reported: object) -> Usage:
    """Read one `usage` object; anything else, or one without a single count, is unknown usage."""
    if not isinstance(reported, Mapping):
        return Usage()
    prompt = _count(reported, "prompt_tokens", "input_tokens")
    completion = _count(reported, "completion_tokens", "output_tokens")
    reasoning = _count(_details(reported, "completion", "output"), "reasoning_tokens")
    cached = _count(_details(reported, "prompt", "input"), "cached_tokens")
    if cached is None:
        cached = _count(reported, "prompt_cache_hit_tokens")
    total = _count(reported, "total_tokens")
    if None not in (prompt, completion) and reasoning and total == _add([prompt, completion, reasoning]):
        completion = _add([completion, reasoning])
    if prompt is None and completion is None:
        return Usage()
    return Usage(prompt, cached, completion, reasoning, "server")


def read_timings(timings: object) -> Usage:
    """Read llama.cpp's `timings`, which it sends also where no usage was asked for."""
    if not isinstance(timings, Mapping):
        return Usage()
    new, cached = _count(timings, "prompt_n"), _count(timings, "cache_n")
    completion = _count(timings, "predicted_n")
    if new is None and completion is None:
        return Usage()
    return Usage(None if new is None else new + (cached or 0), cached, completion, None, "server")


def response_usage(reported: Sequence[object], counted: Sequence[int] | None = None) -> Usage:
    """Usage of one response, however many choices it holds.

    Args:
        reported: its usage objects: one for all choices, or one per choice.
        counted: `counted[c]` is the client's own count for choice c, as streamed; None if it could not count.

    Returns:
        The prompt once and the completion summed over the choices. If the only usage object covers just one
        of several choices (the client counted more), the completion is the client's sum. If nothing was
        reported, the completion is the client's count and the prompt is unknown.
    """
    usages = [usage for usage in map(read_usage, reported) if usage.source == "server"]
    total = None if counted is None else sum(counted)
    if not usages:
        return Usage(completion=total, source="client") if total else Usage()
    completion = _add([usage.completion for usage in usages])
    source: UsageSource = "server"
    if total and (completion is None or _covers_less(completion, len(usages), counted or ())):
        completion, source = total, "client"
    return Usage(
        _most([usage.prompt for usage in usages]),
        _most([usage.cached for usage in usages]),
        completion,
        _add([usage.reasoning for usage in usages]),
        source,
    )


def sum_usages(usages: Iterable[Usage]) -> Usage:
    """Total over several requests, discarded samples included.

    A count that is unknown for one request is unknown for the total; the source is the weakest one.
    """
    known = list(usages)
    if not known:
        return Usage()
    return Usage(
        _add([usage.prompt for usage in known]),
        _add([usage.cached for usage in known]),
        _add([usage.completion for usage in known]),
        _add([usage.reasoning for usage in known]),
        max((usage.source for usage in known), key=_WEAKEST_LAST.index),
    )


def estimate_completion(message: Mapping[str, Any]) -> int:
    """Guess the completion tokens of an assistant message at four characters a token, reasoning included.

    Good for an order of magnitude in English; never to be added to counts.
    """
    characters = len(said(message)) + len(called(message))
    return -(-characters // _CHARACTERS_PER_TOKEN)


def _covers_less(completion: int, objects: int, counted: Sequence[int]) -> bool:
    """Whether the reported completion leaves out text that the client received.

    Servers count at least what they show, so a single number below the client's sum that one choice could
    account for (give or take an unseen end token) is the number of one choice.
    """
    if completion == 0:
        return True
    several = sum(tokens > 0 for tokens in counted) > 1
    return objects == 1 and several and completion < sum(counted) and completion <= max(counted) + 1


def _details(reported: Mapping[str, Any], *sides: str) -> Mapping[str, Any]:
    for side in sides:
        details = reported.get(f"{side}_tokens_details")
        if isinstance(details, Mapping):
            return details
    return {}


def _count(reported: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = reported.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def _add(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _most(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
