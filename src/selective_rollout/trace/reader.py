"""Reading traces: files or folders, groups in bounded memory, errors with file:line.

The reader is strict, because it reads what this package wrote. The one thing it forgives is a line torn by a
killed writer, which it reports and skips.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

import msgspec

from selective_rollout.errors import TraceError
from selective_rollout.gate.decision import GateDecision
from selective_rollout.gate.streaming import MemberStream
from selective_rollout.trace.assembly import GroupAssembly
from selective_rollout.trace.schema import (
    TRACE_VERSION,
    Event,
    GroupEndEvent,
    GroupEvent,
    HeaderEvent,
    RewardEvent,
    StepEvent,
)
from selective_rollout.types import Group

MAX_LINE_BYTES = 64 * 2**20
"""A longer line is refused: no honest event comes near it."""

_REWARD: Final = b'{"type":"reward"'
_BLOCK_BYTES: Final = 2**20
_TELL_EVERY_BYTES: Final = 2**18

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
    stream_decisions: tuple[GateDecision, ...] = ()
    """What the stream gate decided, if there was one; their `step` counts symbols."""
    streams: Mapping[int, MemberStream] = field(default_factory=dict)
    """By rollout, where streams were recorded."""

    @property
    def is_gated(self) -> bool:
        """Whether a gate that enforces had a say in how far it ran: it was not drawn for an audit."""
        return self.begin.mode == "enforce" and not self.begin.audit


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
    for number, event in _numbered(path, report if report is not None else ReadReport()):
        yield f"{path}:{number}", event


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
        on_bytes: called now and then with the number of bytes read so far, for a progress bar.

    Raises:
        TraceError: see `read_events`; also a group that ends twice, steps out of order, unknown groups.
    """
    files = trace_files([paths] if isinstance(paths, (str, Path)) else paths)
    report = report if report is not None else ReadReport()
    late = _late_rewards(files)
    desk = _Desk()
    told = 0
    for path in files:
        for number, event in _numbered(path, report):
            ended = desk.take(path, number, event)
            if ended is not None:
                yield _recorded(ended, late)
            if on_bytes is not None and report.bytes - told >= _TELL_EVERY_BYTES:
                told = report.bytes
                on_bytes(told)
    if on_bytes is not None:
        on_bytes(report.bytes)
    for unfinished in desk.open.values():
        yield _recorded(unfinished, late)


class _Desk:
    """The groups that have begun and not ended."""

    def __init__(self) -> None:
        self.open: dict[str, GroupAssembly] = {}
        self._ended: set[str] = set()
        self._writers = 0
        self._begun_by: dict[str, int] = {}
        """The writer that began each open group; each header is another one."""

    def take(self, path: Path, number: int, event: Event) -> GroupAssembly | None:
        """File one event; return its group if it has ended with it."""
        if isinstance(event, StepEvent):  # first, since nine lines in ten are steps
            assembly = self.open.get(event.group)
            if assembly is not None and event.attempt == assembly.begin.attempt:
                assembly.take_step(path, number, event)
                return None
        if isinstance(event, HeaderEvent):
            self._writers += 1
            return None
        if isinstance(event, RewardEvent):
            return None
        if isinstance(event, GroupEvent):
            self._begin(path, number, event)
            return None
        assembly = self.open.get(event.group)
        if assembly is None:
            kind = type(event).__name__
            raise TraceError(f"{path}:{number}: {kind} of group {event.group!r}, which has not begun")
        if event.attempt == assembly.begin.attempt:
            assembly.take(path, number, event)
        if not isinstance(event, GroupEndEvent):
            return None
        self._ended.add(event.group)
        del self._begun_by[event.group]
        return self.open.pop(event.group)

    def _begin(self, path: Path, number: int, event: GroupEvent) -> None:
        where = f"{path}:{number}"
        before = self.open.get(event.group)
        if event.group in self._ended:
            raise TraceError(
                f"{where}: group {event.group!r} has already ended; ids must be unique in what is read "
                "together, so give runs that use the same ones a folder each"
            )
        # A writer that was killed while it took a group up may have left the same attempt behind.
        earliest = (
            0 if before is None else before.begin.attempt + (self._begun_by[event.group] == self._writers)
        )
        if event.attempt < earliest:
            raise TraceError(f"{where}: group {event.group!r} attempt {event.attempt} begins twice")
        abandoned = before.abandoned + before.completion_tokens if before is not None else 0
        self.open[event.group] = GroupAssembly(event, where, abandoned)
        self._begun_by[event.group] = self._writers


def _numbered(path: Path, report: ReadReport) -> Iterator[tuple[int, Event]]:
    """Yield (line number, event) of one file."""
    report.files += 1
    decode = msgspec.json.Decoder(Event).decode
    torn: tuple[int, str] | None = None
    with _opened(path) as file:
        for number, line in enumerate(_lines(path, file), start=1):
            report.lines += 1
            report.bytes += len(line)
            try:
                event = decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if not line.strip():
                    continue
                if torn is not None or number == 1:
                    raise TraceError(_unreadable(path, *(torn or (number, str(error))))) from None
                torn = (number, str(error))
                continue
            if number == 1 or type(event) is HeaderEvent:
                _require_header(path, number, event)
            if torn is not None:
                if not isinstance(event, HeaderEvent):
                    raise TraceError(_unreadable(path, *torn))
                report.problems.append(f"{path}:{torn[0]}: skipped a line torn by a killed writer")
                torn = None
            yield number, event
    if torn is not None:
        report.problems.append(f"{path}:{torn[0]}: skipped a line torn by a killed writer")


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
        stream_decisions=tuple(assembly.stream_decisions),
        streams=assembly.streams(),
    )


def _late_rewards(files: Iterable[Path]) -> LateRewards:
    """One quick pass for the reward events, which may stand behind the end of their group."""
    decoder = msgspec.json.Decoder(RewardEvent)
    found: LateRewards = {}
    for path in files:
        with _opened(path) as file:
            if not _holds(file, _REWARD):
                continue
            for number, line in enumerate(_lines(path, file), start=1):
                if not line.startswith(_REWARD):
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


def _holds(file: BinaryIO, words: bytes) -> bool:
    """Whether the words stand anywhere in a file, which is left at its start."""
    tail = b""
    while block := file.read(_BLOCK_BYTES):
        if words in tail + block:
            break
        tail = block[-len(words) :]
    file.seek(0)
    return bool(block)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise TraceError(f"{path}: cannot read the trace ({error.strerror})") from None


def _lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    for number, line in enumerate(iter(partial(file.readline, MAX_LINE_BYTES + 1), b""), start=1):
        if len(line) > MAX_LINE_BYTES:
            raise TraceError(f"{path}:{number}: the line is longer than {MAX_LINE_BYTES // 2**20} MiB")
        yield line


def _require_header(path: Path, number: int, event: Event) -> None:
    if number == 1 and not isinstance(event, HeaderEvent):
        raise TraceError(
            f"{path}:{number}: a trace starts with a header; to read another format use `import`"
        )
    if isinstance(event, HeaderEvent) and event.trace_version != TRACE_VERSION:
        raise TraceError(f"{path}:{number}: trace_version {event.trace_version} is not {TRACE_VERSION}")


def _unreadable(path: Path, number: int, error: str) -> str:
    hint = "; to read another format use `import`" if number == 1 else ""
    return f"{path}:{number}: not an event of a trace ({error}){hint}"
