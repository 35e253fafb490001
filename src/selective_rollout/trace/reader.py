"""Reading traces: files or folders, groups in bounded memory, errors with file:line.

The reader is strict, because it reads what this package wrote. The one thing it forgives is a line torn by a
killed writer, which it reports and skips.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeAlias

import msgspec

from selective_rollout.errors import TraceError
from selective_rollout.gate.decision import GateDecision
from selective_rollout.trace.assembly import GroupAssembly
from selective_rollout.trace.schema import (
    TRACE_VERSION,
    Event,
    GroupEndEvent,
    GroupEvent,
    HeaderEvent,
    RewardEvent,
)
from selective_rollout.types import Group

MAX_LINE_BYTES = 64 * 2**20
"""A longer line is refused: no honest event comes near it."""

LateRewards: TypeAlias = dict[tuple[str, int, int], float | None]
"""Rewards by (group, attempt, rollout)."""


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """A group as recorded, with what the gate decided at the time."""

    group: Group
    begin: GroupEvent
    end: GroupEndEvent | None
    """None: the group is unfinished."""
    decisions: tuple[GateDecision, ...]
    overrun: int
    """Completion tokens that arrived after the cut."""
    lost: int
    """Completion tokens that became no step: cut off, cancelled, or of failed attempts."""
    abandoned: int
    """Completion tokens of earlier attempts of this group."""
    where: str
    """file:line of the group's first event."""


@dataclass(slots=True)
class ReadReport:
    """What a reader repaired or skipped; pass one in to learn of it."""

    files: int = 0
    lines: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    """One line each, starting with file:line."""


def trace_files(paths: Iterable[Path | str]) -> list[Path]:
    """The trace files among files and folders (whose `*.jsonl` are taken, by name).

    Raises:
        TraceError: a path does not exist, or a folder holds no trace.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found = sorted(path.glob("*.jsonl")) or sorted(path.glob("*/*.jsonl"))
            if not found:
                raise TraceError(f"{path}: the folder holds no .jsonl trace")
            files += found
        elif path.exists():
            files.append(path)
        else:
            raise TraceError(f"{path}: no such file or folder")
    return files


def read_events(path: Path, report: ReadReport | None = None) -> Iterator[tuple[str, Event]]:
    """Yield (file:line, event) of one file.

    Raises:
        TraceError: a line is no event of this trace version, or the file starts with no header.
    """
    report = report if report is not None else ReadReport()
    report.files += 1
    decoder = msgspec.json.Decoder(Event)
    torn: tuple[str, str] | None = None
    with _opened(path) as file:
        for number, line in enumerate(_lines(path, file), start=1):
            report.lines += 1
            report.bytes += len(line)
            where = f"{path}:{number}"
            if not line.strip():
                continue
            try:
                event = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if torn is not None or number == 1:
                    raise TraceError(_unreadable(*(torn or (where, str(error))))) from None
                torn = (where, str(error))
                continue
            _require_header(where, number, event)
            if torn is not None:
                if not isinstance(event, HeaderEvent):
                    raise TraceError(_unreadable(*torn))
                report.problems.append(f"{torn[0]}: skipped a line torn by a killed writer")
                torn = None
            yield where, event
    if torn is not None:
        report.problems.append(f"{torn[0]}: skipped a line torn by a killed writer")


def read_groups(
    paths: Iterable[Path | str] | Path | str,
    *,
    report: ReadReport | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[RecordedGroup]:
    """Yield the groups of traces as they end; unfinished ones last.

    Late rewards are joined in, wherever they stand. Of several attempts the last one counts, the tokens of
    the others as abandoned. Memory holds the open groups and the late rewards only.

    Args:
        paths: files and folders.
        report: collects what was repaired or skipped.
        on_bytes: called with the number of bytes read so far, for a progress bar.

    Raises:
        TraceError: see `read_events`; also a group that ends twice, steps out of order, unknown groups.
    """
    files = trace_files([paths] if isinstance(paths, (str, Path)) else paths)
    report = report if report is not None else ReadReport()
    late = _late_rewards(files)
    open_groups: dict[str, GroupAssembly] = {}
    ended: dict[str, int] = {}
    for path in files:
        for where, event in read_events(path, report):
            if on_bytes is not None:
                on_bytes(report.bytes)
            if isinstance(event, (HeaderEvent, RewardEvent)):
                continue
            assembly = _take(where, event, open_groups, ended)
            if isinstance(event, GroupEndEvent):
                ended[event.group] = event.attempt
                del open_groups[event.group]
                yield _recorded(assembly, late)
    for assembly in open_groups.values():
        yield _recorded(assembly, late)


def _take(
    where: str, event: Event, open_groups: dict[str, GroupAssembly], ended: dict[str, int]
) -> GroupAssembly:
    assert not isinstance(event, (HeaderEvent, RewardEvent))
    assembly = open_groups.get(event.group)
    if isinstance(event, GroupEvent):
        if event.group in ended:
            raise TraceError(f"{where}: group {event.group!r} has already ended; group ids must be unique")
        if assembly is not None and event.attempt <= assembly.begin.attempt:
            raise TraceError(f"{where}: group {event.group!r} attempt {event.attempt} begins twice")
        abandoned = assembly.abandoned + assembly.completion_tokens if assembly is not None else 0
        open_groups[event.group] = GroupAssembly(event, where, abandoned)
        return open_groups[event.group]
    if assembly is None:
        raise TraceError(f"{where}: {type(event).__name__} of group {event.group!r}, which has not begun")
    if event.attempt == assembly.begin.attempt:
        assembly.take(where, event)
    return assembly


def _recorded(assembly: GroupAssembly, late: LateRewards) -> RecordedGroup:
    begin = assembly.begin
    rewards = {rollout: late.get((begin.group, begin.attempt, rollout)) for rollout in range(begin.size)}
    return RecordedGroup(
        group=assembly.group(rewards),
        begin=begin,
        end=assembly.end,
        decisions=tuple(assembly.decisions),
        overrun=assembly.overrun,
        lost=assembly.lost,
        abandoned=assembly.abandoned,
        where=assembly.where,
    )


def _late_rewards(files: Iterable[Path]) -> LateRewards:
    """One quick pass for the reward events, which may stand behind the end of their group."""
    decoder = msgspec.json.Decoder(RewardEvent)
    found: LateRewards = {}
    for path in files:
        with _opened(path) as file:
            for number, line in enumerate(_lines(path, file), start=1):
                if not line.startswith(b'{"type":"reward"'):
                    continue
                try:
                    event = decoder.decode(line)
                except msgspec.DecodeError:
                    continue  # read_events judges whether the line is torn or wrong
                key = (event.group, event.attempt, event.rollout)
                if key in found:
                    raise TraceError(f"{path}:{number}: a second late reward for group {event.group!r}")
                found[key] = event.reward
    return found


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise TraceError(f"{path}: cannot read the trace ({error.strerror})") from None


def _lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise TraceError(f"{path}:{number}: the line is longer than {MAX_LINE_BYTES // 2**20} MiB")
        yield line


def _require_header(where: str, number: int, event: Event) -> None:
    if number == 1 and not isinstance(event, HeaderEvent):
        raise TraceError(f"{where}: a trace starts with a header; to read another format use `import`")
    if isinstance(event, HeaderEvent) and event.trace_version != TRACE_VERSION:
        raise TraceError(f"{where}: trace_version {event.trace_version} is not {TRACE_VERSION}")


def _unreadable(where: str, error: str) -> str:
    hint = "; to read another format use `import`" if where.endswith(":1") else ""
    return f"{where}: not an event of a trace ({error}){hint}"
