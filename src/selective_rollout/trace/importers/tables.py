"""Records of tables: CSV, and Parquet if pyarrow is installed."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from selective_rollout.errors import MissingExtraError, TraceError
from selective_rollout.trace.importers.columns import Record
from selective_rollout.trace.importers.files import (
    MAX_LINE_BYTES,
    Place,
    Skip,
    bounded_lines,
    decoded,
    opened,
)

try:
    import pyarrow  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from pyarrow import parquet
except ImportError:
    pyarrow = parquet = None

_CSV_WORDS: Final[dict[str, Any]] = {"": None, "true": True, "false": False}


class CsvTable:
    """A CSV file with a header line; an empty cell is unknown."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._header: list[str] | None = None
        self._file: BinaryIO | None = None

    def scan(self, skip: Skip) -> Iterator[tuple[Place, Record]]:
        """See `RecordFile`."""
        csv.field_size_limit(MAX_LINE_BYTES)  # process-wide; the standard limit is below one long completion
        with opened(self.path) as file:
            lines = _Lines(self.path, file, Place(0, 1))
            rows = csv.reader(lines, strict=True)
            place = lines.next
            while (row := self._row(rows, place)) is not None:
                if self._header is None:
                    self._header = row
                elif row:
                    yield place, self._record(row, place)
                place = lines.next

    def load(self, place: Place) -> Record:
        """See `RecordFile`."""
        if self._file is None:
            self._file = opened(self.path)
        self._file.seek(place.position)
        row = self._row(csv.reader(_Lines(self.path, self._file, place), strict=True), place)
        return self._record(row or [], place)

    def close(self) -> None:
        """See `RecordFile`."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _row(self, rows: Iterator[list[str]], place: Place) -> list[str] | None:
        try:
            return next(rows, None)
        except csv.Error as error:
            raise TraceError(f"{self.path}:{place.line}: not CSV ({error})") from None

    def _record(self, row: list[str], place: Place) -> Record:
        header = self._header or []
        if len(row) != len(header):
            raise TraceError(
                f"{self.path}:{place.line}: {len(row)} cells under {len(header)} column names; "
                "the first line of a CSV file names its columns"
            )
        return {name: _CSV_WORDS.get(cell.casefold(), cell) for name, cell in zip(header, row, strict=True)}


class _Lines:
    """Feeds a CSV reader line by line, and knows where the next line starts."""

    def __init__(self, path: Path, file: BinaryIO, start: Place) -> None:
        self.next = start
        self._path = path
        self._lines = bounded_lines(path, file)

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        raw = next(self._lines)
        position, line = self.next
        self.next = Place(position + len(raw), line + 1)
        return decoded(raw, f"{self._path}:{line}", first=line == 1)


class ParquetTable:
    """A Parquet file; its rows are numbered from 1, and one row group is held in memory.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """

    def __init__(self, path: Path) -> None:
        if parquet is None:
            raise MissingExtraError("parquet", "pyarrow")
        self.path = path
        self._starts: list[int] = []
        self._held: tuple[int, list[Record]] | None = None

    def scan(self, skip: Skip) -> Iterator[tuple[Place, Record]]:
        """See `RecordFile`."""
        self._starts = [0]
        group = 0
        while (rows := self._rows(group)) is not None:
            for offset, record in enumerate(rows):
                row = self._starts[group] + offset
                yield Place(row, row + 1), record
            self._starts.append(self._starts[group] + len(rows))
            group += 1

    def load(self, place: Place) -> Record:
        """See `RecordFile`."""
        group = next(g for g, start in enumerate(self._starts[1:]) if place.position < start)
        rows = self._rows(group)
        assert rows is not None
        return rows[place.position - self._starts[group]]

    def close(self) -> None:
        """See `RecordFile`."""
        self._held = None

    def _rows(self, group: int) -> list[Record] | None:
        """The rows of one row group; None behind the last one."""
        if self._held is not None and self._held[0] == group:
            return self._held[1]
        try:
            with parquet.ParquetFile(self.path) as file:
                if group >= file.num_row_groups:
                    return None
                rows: list[Record] = file.read_row_group(group).to_pylist()
        except (OSError, pyarrow.ArrowException) as error:
            reason = str(error).partition("\n")[0]
            raise TraceError(f"{self.path}: not a readable Parquet file ({reason})") from None
        self._held = (group, rows)
        return rows
