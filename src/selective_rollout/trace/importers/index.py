"""Which records make a group: the first of the two passes over the files."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from selective_rollout.errors import TraceError
from selective_rollout.trace.importers.columns import Columns, Record
from selective_rollout.trace.importers.files import MAX_ARRAY_BYTES, Place, RecordFile
from selective_rollout.trace.importers.formats import Format
from selective_rollout.trace.importers.opening import labels, open_records
from selective_rollout.trace.importers.report import ImportReport
from selective_rollout.trace.importers.turns import is_conversation, opening_text

_MOST_OPEN: Final = 16


@dataclass(slots=True)
class IndexedGroup:
    """Where the records of one group stand.

    Attributes:
        id: its id in the trace.
        key: its id in the records.
        task: its task id, None if the records have none.
        places: file number, position and line of each record, in a row.
        prompts: hashes of the prompts its records name; normally one.
    """

    id: str
    key: str
    task: str | None = None
    places: array[int] = field(default_factory=lambda: array("q"))
    prompts: set[bytes] = field(default_factory=set)


class Index:
    """The groups of all files in the order in which they first appear; memory holds places only."""

    def __init__(self, form: Format, columns: Columns, paths: Sequence[Path], report: ImportReport) -> None:
        self.groups: dict[str, IndexedGroup] = {}
        self._format = form
        self._columns = columns
        self._report = report
        self._files: list[RecordFile] = [open_records(path) for path in paths]
        self._sizes = [path.stat().st_size for path in paths]
        self._labels = labels(list(paths)) if form.per_file and len(paths) > 1 else [""] * len(paths)
        self._open: dict[int, None] = {}
        report.files = len(paths)
        report.bytes = sum(self._sizes)

    def build(self, on_bytes: Callable[[int], None]) -> None:
        """Go through all files.

        Args:
            on_bytes: told the bytes gone through so far.

        Raises:
            TraceError: a record cannot be read, is of another format, or has no group id.
        """
        before = 0
        for number, file in enumerate(self._files):
            for place, record in file.scan(self._report.skip):
                self._report.records += 1
                self._add(number, place, record)
                on_bytes(before + min(place.position, self._sizes[number]))
            before += self._sizes[number]
            self._opened(number)
        self._columns.require_declared()

    def records(self, group: IndexedGroup) -> Iterator[tuple[str, Record]]:
        """Yield (file:line, flat record) of each rollout of a group."""
        places = iter(group.places)
        for number, position, line in zip(places, places, places, strict=True):
            self._opened(number)
            file = self._files[number]
            where = f"{file.path}:{line}"
            for rollout in self._format.rollouts(file.load(Place(position, line)), where):
                if self._columns.group_id(rollout, where) == group.key:
                    yield where, rollout

    def close(self) -> None:
        """Close all files."""
        for number in self._open:
            self._files[number].close()
        self._open.clear()

    def _add(self, number: int, place: Place, record: Record) -> None:
        where = f"{self._files[number].path}:{place.line}"
        try:
            self._add_rollouts(number, place, record, where)
        except RecursionError:
            raise TraceError(f"{where}: nested too deeply") from None

    def _add_rollouts(self, number: int, place: Place, record: Record, where: str) -> None:
        whole = self._format.whole_group is not None and self._format.whole_group in record
        touched: dict[str, IndexedGroup] = {}
        for rollout in self._format.rollouts(record, where):
            self._columns.notice(rollout, where)
            key = self._columns.group_id(rollout, where)
            if key not in touched:
                touched[key] = self._group(key, self._labels[number], whole)
                touched[key].places.extend((number, *place))
            group = touched[key]
            group.task = group.task or self._columns.identity("task", rollout, where)
            prompt = _prompt_hash(self._columns, rollout)
            if prompt is not None:
                group.prompts.add(prompt)

    def _group(self, key: str, label: str, whole: bool) -> IndexedGroup:
        """The group of a key; a record that holds a whole group is always one of its own."""
        base = f"{label}/{key}" if label else key
        identity, repeats = base, 1
        while whole and identity in self.groups:
            repeats += 1
            identity = f"{base}#{repeats}"
        return self.groups.setdefault(identity, IndexedGroup(identity, key))

    def _opened(self, number: int) -> None:
        """Keep the files used last open, as long as they are few and small."""
        self._open.pop(number, None)
        self._open[number] = None
        while len(self._open) > 1 and (
            len(self._open) > _MOST_OPEN or sum(self._sizes[n] for n in self._open) > MAX_ARRAY_BYTES
        ):
            oldest = next(iter(self._open))
            del self._open[oldest]
            self._files[oldest].close()


def _prompt_hash(columns: Columns, record: Record) -> bytes | None:
    """Hash of the prompt that a record names, or that its conversation opens with; None if neither."""
    prompt = columns.get("prompt", record)
    if prompt is None:
        actions = columns.get("actions", record)
        prompt = opening_text(actions) if is_conversation(actions) else None
    if not prompt:
        return None
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
