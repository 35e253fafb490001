"""Writing TOML: flat tables of plain values. Reading is the standard library's `tomllib`."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from selective_rollout.errors import ConfigError

Table: TypeAlias = Mapping[str, object]
"""Keys with text, numbers, bools, lists of those, or None, which is left out since TOML has no null."""

_BARE: Final = re.compile("[A-Za-z0-9_-]+")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")
_ESCAPED: Final = re.compile('[\\\\"\x00-\x1f\x7f]')
_SHORT: Final = {"\\": "\\\\", '"': '\\"', "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def to_toml(tables: Mapping[str, Table | Sequence[Table]], comment: str = "") -> str:
    """Write tables in order, a sequence of tables as `[[name]]` each; `comment` goes on top, line by line.

    Raises:
        ConfigError: a value that TOML cannot hold, such as nested data or a lone surrogate.
    """
    lines = [_CONTROL.sub(" ", line) for line in comment.splitlines()]
    parts = ["\n".join(f"# {line}".rstrip() for line in lines)] if lines else []
    for name, value in tables.items():
        if isinstance(value, Mapping):
            parts.append(_table(f"[{_key(name)}]", value))
        else:
            parts += [_table(f"[[{_key(name)}]]", table) for table in value]
    return "\n\n".join(parts) + "\n"


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is never seen half-written: the old one stays until the new one is complete.

    Raises:
        ConfigError: the file cannot be written.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(f"{path}: cannot write the file ({error.strerror})") from None


def _table(header: str, table: Table) -> str:
    rows = [f"{_key(key)} = {_value(key, value)}" for key, value in table.items() if value is not None]
    return "\n".join([header, *rows])


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name, name)


def _value(key: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return _text(key, value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(key, item) for item in value)}]"
    raise ConfigError(f"{key}: {type(value).__name__} has no place in a TOML file")


def _text(key: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{key}: the text {text!r} is not valid Unicode") from None
    return f'"{_ESCAPED.sub(lambda found: _escape(found[0]), text)}"'


def _escape(character: str) -> str:
    return _SHORT.get(character) or f"\\u{ord(character):04x}"
