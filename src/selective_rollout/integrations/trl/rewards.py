"""Rewards of the rows that may teach: what was dropped costs no judge and enters no metric."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

RewardFunc: TypeAlias = Callable[..., Any]
Kept: TypeAlias = Callable[[], Sequence[bool] | None]
"""Tells which rows of the batch under way may teach; None: all of them."""

ENVIRONMENT_REWARD = "environment_reward"
"""The extra field in which `gated_rollout_func` hands on what the environments said."""


def environment_reward(**arguments: Any) -> list[float | None]:
    """Reward function: what the environments of `gated_rollout_func` gave at the end; None: nothing."""
    return list(arguments[ENVIRONMENT_REWARD])


def kept_only(function: RewardFunc, kept: Kept) -> RewardFunc:
    """Call a reward function with the kept rows only; the others get 0, for the caller to overwrite."""
    if _is_async(function):

        @functools.wraps(function, updated=())
        async def asynchronous(**arguments: Any) -> list[Any]:
            rows = _places(kept())
            if rows is None:
                return list(await function(**arguments))
            return _spread(await function(**_at(arguments, *rows)) if rows[0] else [], *rows)

        return asynchronous

    @functools.wraps(function, updated=())
    def synchronous(**arguments: Any) -> list[Any]:
        rows = _places(kept())
        if rows is None:
            return list(function(**arguments))
        return _spread(function(**_at(arguments, *rows)) if rows[0] else [], *rows)

    return synchronous


def _is_async(function: RewardFunc) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _places(kept: Sequence[bool] | None) -> tuple[list[int], int] | None:
    if kept is None or all(kept):
        return None
    return [row for row, keep in enumerate(kept) if keep], len(kept)


def _at(arguments: dict[str, Any], places: list[int], size: int) -> dict[str, Any]:
    picked = {
        name: [value[row] for row in places] if isinstance(value, list) and len(value) == size else value
        for name, value in arguments.items()
    }
    if "log_extra" in arguments:
        picked["log_extra"] = _spreading(arguments["log_extra"], places, size)
    return picked


def _spreading(log_extra: Callable[[str, list[Any]], None], places: list[int], size: int) -> Any:
    """The table of completions has a line for every row, so what is said of the kept ones is spread."""

    def log(column: str, values: list[Any]) -> None:
        log_extra(column, _spread(values, places, size, None))

    return log


def _spread(values: Sequence[Any], places: list[int], size: int, other: Any = 0.0) -> list[Any]:
    if len(values) != len(places):
        return list(values)
    spread = [other] * size
    for row, value in zip(places, values, strict=True):
        spread[row] = value
    return spread
