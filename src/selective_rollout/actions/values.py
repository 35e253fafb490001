"""JSON values in one spelling: sorted keys, compact separators, no escapes that are not needed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, Final

DEEPEST: Final = 100
"""Levels of nesting that are still read; no tool takes more, and recursion over the values stays safe."""

# Not strict: models write raw line breaks inside strings, and tool executors accept them.
_DECODER: Final = json.JSONDecoder(strict=False)


def loads(text: str) -> Any:
    """Parse JSON; the last of repeated keys wins, as it does for tool executors.

    Raises:
        ValueError: not JSON, or nested too deeply.
    """
    value, end = load_at(text, len(text) - len(text.lstrip()))
    if text[end:].strip():
        raise ValueError("text after the JSON value")
    return value


def load_at(text: str, position: int) -> tuple[Any, int]:
    """Parse the JSON value that starts at a position and return it with the position behind it.

    Raises:
        ValueError: not JSON, or nested too deeply.
    """
    try:
        value, end = _DECODER.raw_decode(text, position)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    brackets = text.count("[", position, end) + text.count("{", position, end)
    if brackets > DEEPEST and is_deep(value):
        raise ValueError("JSON is nested too deeply")
    return value, end


def dumps(value: Any, *, numeric_equal: bool = False) -> str:
    """Write a value in its canonical spelling.

    Equal values get equal text. 1 and 1.0 differ unless `numeric_equal`, which compares numbers as Python's
    `==` does; true is never 1.

    Raises:
        ValueError: the value is circular.
    """
    if numeric_equal:
        value = _plain(value, numeric_equal=True)
    try:
        return _ENCODER.encode(value)
    except TypeError:  # keys that are no strings, or do not sort
        return _ENCODER.encode(_plain(value, numeric_equal=numeric_equal))


def without(value: Any, paths: Iterable[str]) -> Any:
    """Return a copy of a JSON value without the keys at the dotted paths; lists are searched item by item."""
    for path in paths:
        value = {} if path == "*" else _without(value, path)
    return value


def is_deep(value: Any) -> bool:
    """Tell whether a value is nested deeper than is read."""
    level = [value]
    for _ in range(DEEPEST):
        level = [item for outer in level for item in _items(outer)]
        if not level:
            return False
    return any(isinstance(item, dict | list) for item in level)


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _without(value: Any, path: str) -> Any:
    if isinstance(value, list | tuple):
        return [_without(item, path) for item in value]
    if not isinstance(value, Mapping):
        return value
    if path in value:  # the literal key first, since a key may itself hold a dot
        return {key: item for key, item in value.items() if key != path}
    head, _, rest = path.partition(".")
    if not rest or head not in value:
        return value
    return {**value, head: _without(value[head], rest)}


def _plain(value: Any, *, numeric_equal: bool) -> Any:
    if isinstance(value, float) and numeric_equal and value.is_integer():
        return int(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, numeric_equal=numeric_equal) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, numeric_equal=numeric_equal) for item in value]
    return _plain(_foreign(value), numeric_equal=numeric_equal)


def _foreign(value: Any) -> Any:
    """Turn what JSON does not know into what it does: numbers, models by field, sets sorted, or text."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real | Decimal):
        return float(value)
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    dump = getattr(value, "model_dump", None)
    return dump() if callable(dump) else str(value)


_ENCODER: Final = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=True, default=_foreign
)
