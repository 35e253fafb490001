"""Records of foreign files, one at a time, each with its place: JSON lines, and one JSON array.

Every file is gone through twice: once to learn which records make a group, once to read a group's records
together. Between the two only places are kept, so memory does not grow with the length of the records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, Protocol

from selective_rollout.errors import TraceError
from selective_rollout.trace.importers.columns import Record

MAX_LINE_BYTES: Final = 64 * 2**20
"""A longer line is refused before it is read whole."""
MAX_ARRAY_BYTES: Final = 256 * 2**20
"""A larger JSON array is refused: it has to be held in memory whole."""

_BOM: Final = b"\xef\xbb\xbf"
_UTF16_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")
_NOT_BLANK: Final = re.compile(r"[^ \t\r\n]|\Z")
_DECODER: Final = json.JSONDecoder()


class Place(NamedTuple):
    """Where a record stands: a position its file understands, and the line for messages."""

    position: int
    line: int


Skip = Callable[[str, str], None]
"""Told (file:line, reason) of a record that is left out."""


class RecordFile(Protocol):
    """A file of records."""

    path: Path

    def scan(self, skip: Skip) -> Iterator[tuple[Place, Record]]:
        """Yield all records in order.

        Raises:
            TraceError: the file cannot be read; the message starts with file:line.
        """

    def load(self, place: Place) -> Record:
        """Read one record again."""

    def close(self) -> None:
        """Let go of what `load` keeps open."""


class JsonLines:
    """One JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def scan(self, skip: Skip) -> Iterator[tuple[Place, Record]]:
        """See `RecordFile`; a last line torn by a killed writer is skipped."""
        position = 0
        with opened(self.path) as file:
            for line, raw in enumerate(bounded_lines(self.path, file), start=1):
                place, position = Place(position, line), position + len(raw)
                where = f"{self.path}:{line}"
                text = decoded(raw, where, first=line == 1)
                if not text.strip():
                    continue
                try:
                    record = parsed(text, where)
                except TraceError:
                    if line == 1 or raw.endswith(b"\n"):
                        raise
                    skip(where, "the last line was torn by a killed writer")
                    return
                yield place, record

    def load(self, place: Place) -> Record:
        """See `RecordFile`."""
        if self._file is None:
            self._file = opened(self.path)
        self._file.seek(place.position)
        where = f"{self.path}:{place.line}"
        return parsed(decoded(self._file.readline(), where, first=place.line == 1), where)

    def close(self) -> None:
        """See `RecordFile`."""
        if self._file is not None:
            self._file.close()
            self._file = None


class JsonArray:
    """One JSON array of objects, held in memory as text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._text: str | None = None

    def scan(self, skip: Skip) -> Iterator[tuple[Place, Record]]:
        """See `RecordFile`."""
        text = self._whole()
        position = _behind_blanks(text, 0) + 1
        line = 1 + text.count("\n", 0, position)
        while True:
            start = _behind_blanks(text, position)
            line += text.count("\n", position, start)
            where = f"{self.path}:{line}"
            if text.startswith("]", start):
                self._require_end(text, start + 1, where)
                return
            record, end = self._value(text, start, where)
            yield Place(start, line), record
            line += text.count("\n", start, end)
            position = self._behind_comma(text, end, f"{self.path}:{line}")

    def load(self, place: Place) -> Record:
        """See `RecordFile`."""
        return self._value(self._whole(), place.position, f"{self.path}:{place.line}")[0]

    def close(self) -> None:
        """See `RecordFile`."""
        self._text = None

    def _whole(self) -> str:
        if self._text is None:
            with opened(self.path) as file:
                raw = file.read(MAX_ARRAY_BYTES + 1)
            if len(raw) > MAX_ARRAY_BYTES:
                raise TraceError(
                    f"{self.path}: a JSON array of more than {MAX_ARRAY_BYTES // 2**20} MiB; "
                    "write it as JSON lines, one record a line"
                )
            self._text = decoded(raw, f"{self.path}:1", first=True)
        return self._text

    def _value(self, text: str, start: int, where: str) -> tuple[Record, int]:
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{where}: {_json_problem(error)}") from None
        return _object(value, where), end

    def _behind_comma(self, text: str, end: int, where: str) -> int:
        position = _behind_blanks(text, end)
        if text.startswith(",", position):
            return position + 1
        if text.startswith("]", position):
            return position
        problem = "the array is not closed" if position == len(text) else "no comma between two records"
        raise TraceError(f"{where}: not a JSON array: {problem}")

    def _require_end(self, text: str, position: int, where: str) -> None:
        if text[position:].strip():
            raise TraceError(f"{where}: text after the JSON array; give JSON lines or one array")


def opened(path: Path) -> BinaryIO:
    """Open a file for reading.

    Raises:
        TraceError: it cannot be opened.
    """
    try:
        return path.open("rb")
    except OSError as error:
        raise TraceError(f"{path}: cannot read the file ({error.strerror})") from None


def bounded_lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file; none is read beyond the bound.

    Raises:
        TraceError: a line is too long.
    """
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise TraceError(f"{path}:{number}: the line is longer than {MAX_LINE_BYTES // 2**20} MiB")
        yield line


def decoded(raw: bytes, where: str, *, first: bool) -> str:
    """Text of UTF-8 bytes, without the mark that some editors put first.

    Raises:
        TraceError: the bytes are no UTF-8.
    """
    if first:
        if raw.startswith(_UTF16_BOMS):
            raise TraceError(f"{where}: the file is UTF-16; save it as UTF-8")
        raw = raw.removeprefix(_BOM)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise TraceError(f"{where}: not UTF-8 (byte {error.start + 1}: 0x{raw[error.start]:02x})") from None


def parsed(text: str, where: str) -> Record:
    """The JSON object that a text is.

    Raises:
        TraceError: it is none.
    """
    try:
        return _object(json.loads(text), where)
    except (ValueError, RecursionError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(
            f"{where}: {_json_problem(error)}; give one JSON object a line, or an array"
        ) from None


def _behind_blanks(text: str, position: int) -> int:
    found = _NOT_BLANK.search(text, position)
    return found.start() if found else len(text)


def _object(value: object, where: str) -> Record:
    if not isinstance(value, dict):
        raise TraceError(f"{where}: a record must be a JSON object, not {type(value).__name__}")
    return value


def _json_problem(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "JSON nested too deeply"
    reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error).split(";")[0]
    return f"not JSON ({reason})"
