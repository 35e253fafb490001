"""Values as they stand in call syntax: JSON, or what Python spells differently."""

from __future__ import annotations

import re
from typing import Any, Final

from selective_rollout.actions.values import DEEPEST, load_at, loads

_BLANKS: Final = re.compile(r"\s*")
_WORD: Final = re.compile(r"(?:True|False|None)\b")
_WORDS: Final = {"True": True, "False": False, "None": None}
_QUOTED: Final = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_CLOSING: Final = {"[": "]", "(": ")", "{": "}"}


def read_literal(text: str, position: int, depth: int = 0) -> tuple[Any, int]:
    """Read the value that starts at a position and return it with the position behind it.

    Raises:
        ValueError: no value, or nested too deeply.
    """
    position = _behind_blanks(text, position)
    word = _WORD.match(text, position)
    if word is not None:
        return _WORDS[word[0]], word.end()
    quoted = _QUOTED.match(text, position)
    if quoted is not None:
        inner = quoted[1].replace("\\'", "'").replace('"', '\\"')
        return loads(f'"{inner}"'), quoted.end()
    opening = text[position : position + 1]
    if opening not in _CLOSING or depth > DEEPEST:
        return load_at(text, position)
    try:
        return load_at(text, position)
    except ValueError:
        return _container(text, position + 1, opening, depth + 1)


def _container(text: str, position: int, opening: str, depth: int) -> tuple[Any, int]:
    """Read a list, a tuple (as a list) or a dict from behind its opening bracket."""
    closing = _CLOSING[opening]
    items: list[Any] = []
    keys: list[Any] = []
    comma = True
    while not text.startswith(closing, position := _behind_blanks(text, position)):
        if not comma:
            raise ValueError("no comma between two items")
        if opening == "{":
            key, position = read_literal(text, position, depth)
            if not isinstance(key, str):
                raise ValueError("a key that is no text")
            keys.append(key)
            position = _behind(text, position, ":")
        item, position = read_literal(text, position, depth)
        items.append(item)
        position = _behind_blanks(text, position)
        comma = text.startswith(",", position)
        position += comma
    if opening == "{":
        return dict(zip(keys, items, strict=True)), position + 1
    in_parentheses = opening == "(" and len(items) == 1 and not comma
    return (items[0] if in_parentheses else items), position + 1


def _behind(text: str, position: int, mark: str) -> int:
    position = _behind_blanks(text, position)
    if not text.startswith(mark, position):
        raise ValueError(f"no {mark}")
    return position + len(mark)


def _behind_blanks(text: str, position: int) -> int:
    blanks = _BLANKS.match(text, position)
    return blanks.end() if blanks else position
