"""Fields of messages that may be dicts or objects of any library, of which none is imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def get(source: Any, name: str) -> Any:
    """A field of a dict or an object; None if it has none."""
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)


def first(source: Any, names: Iterable[str]) -> Any:
    """The first of several fields that is there and not null."""
    return next((value for name in names if (value := get(source, name)) is not None), None)


def listed(value: Any) -> list[Any]:
    """A field that should hold a list, also where it holds one thing or nothing; text is no list."""
    if isinstance(value, list | tuple):
        return list(value)
    return [value] if value and not isinstance(value, str) else []


def blocks(message: Any) -> list[Any]:
    """The blocks of a message whose content is no plain text."""
    content = get(message, "content")
    return listed(content if content is not None else get(message, "parts"))
