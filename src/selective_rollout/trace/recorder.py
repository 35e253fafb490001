"""Writing traces: one process, one file, one event a line, in the kernel's hands before the call returns.

A loop of one's own needs three lines:

    recorder = Recorder(Path("runs/mine"))
    with recorder.group("g1", size=8) as group:
        group.step(0, "look"); group.finish(0, reward=1.0)

Given a rule (`gate=GateConfig()`), `step` and `finish` also return the gate's decision.
"""

from __future__ import annotations

import datetime
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from selective_rollout._version import __version__
from selective_rollout.errors import GroupError, TraceError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.group import GroupGate
from selective_rollout.gate.streaming import StreamGate
from selective_rollout.trace.group_log import GroupLog
from selective_rollout.trace.schema import (
    LARGEST_GROUP,
    TRACE_VERSION,
    DecisionEvent,
    Event,
    GroupEndEvent,
    GroupEvent,
    HeaderEvent,
    RolloutEndEvent,
)
from selective_rollout.types import Mode, SamplingInfo

Redact = Callable[[str], str]

_REDACTED_FIELDS: Final = ("action", "completion", "observation", "answer", "state_key", "error", "stream")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_DECODER: Final = msgspec.json.Decoder(Event)
_GROUP_LINES: Final = (b'{"type":"group",', b'{"type":"group_end",')


class Recorder:
    """Appends events to one trace file that no other writer shares.

    Args:
        path: a `.jsonl` file, appended to if it exists; or a folder, in which a new file named after rank and
            pid is created.
        record_observations: keep observation texts (off by default; their hashes are always kept).
        record_completions: keep raw completions (off by default).
        redact: applied to every recorded text before it is written, e.g. to mask secrets.
        rank: worker number, for the file name and the header.
        metadata: stored in the header, e.g. the workload's model name. Never put secrets here.

    Raises:
        TraceError: the path cannot be written, or exists and is no trace.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        record_observations: bool = False,
        record_completions: bool = False,
        redact: Redact | None = None,
        rank: int = 0,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.record_observations = record_observations
        self.record_completions = record_completions
        self._redact = redact
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder(enc_hook=_plain)
        self.path = _file_for(Path(path), rank)
        self._descriptor: int | None = _open_for_append(self.path)
        self._begun = _begun_in(self.path)
        """Per group, the last attempt that must not begin again."""
        self.write(
            HeaderEvent(
                trace_version=TRACE_VERSION,
                producer=f"selective-rollout {__version__}",
                created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                writer=f"rank{rank}-pid{os.getpid()}",
                metadata=dict(metadata or {}),
            )
        )

    def write(self, event: Event) -> None:
        """Append one event; it survives a kill of this process from here on.

        Raises:
            TraceError: the recorder is closed, or the event is one that no reader would take.
            GroupError: a group of this id was begun before, or its size is none.
        """
        line = self._encode(self._prepared(event)) + b"\n"
        with self._lock:
            if self._descriptor is None:
                raise TraceError(f"{self.path}: the recorder is closed")
            if isinstance(event, GroupEvent):
                self._begin(event)
            os.write(self._descriptor, line)

    @contextmanager
    def group(
        self,
        group_id: str,
        size: int,
        *,
        task_id: str | None = None,
        gate: GateConfig | GroupGate | None = None,
        mode: Mode = "observe",
        attempt: int = 1,
        policy_version: str | None = None,
        sampling: Sequence[SamplingInfo] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Iterator[GroupLog]:
        """Record one group; its end is written when the block is left.

        A block left by Ctrl-C or a cancellation stays open in the trace: the group is unfinished, and a
        resumed run takes it up again.

        Args:
            group_id: explicit identity of the group, never its prompt text.
            size: rollouts requested.
            task_id: the independent unit of statistics; defaults to the group id.
            gate: a rule to watch the group with, or a gate already made for it.
            mode: recorded with the group; what is done with a fired decision is the caller's part.
            attempt: counts restarts of an unfinished group.
            policy_version: version of the weights that sampled the group.
            sampling: declared sampling facts, one per rollout.
            metadata: declared facts, e.g. strata.
        """
        if isinstance(gate, GateConfig):
            gate = GroupGate(gate, size, group_id=group_id, sampling=sampling)
        log = log_of(self, group_id, attempt=attempt, gate=gate)
        log.begin(
            size=size,
            task_id=task_id or group_id,
            mode=mode,
            policy_version=policy_version,
            sampling=sampling,
            metadata=metadata,
        )
        try:
            yield log
        except Exception as error:
            log.end(error=f"{type(error).__name__}: {error}")
            raise
        log.end()

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            self.close()

    def _prepared(self, event: Event) -> Event:
        if self._redact is None:
            return event
        texts: dict[str, Any] = {
            name: self._redact(text)
            for name in _REDACTED_FIELDS
            if isinstance(text := getattr(event, name, None), str)
        }
        if isinstance(event, DecisionEvent):
            texts["answers"] = [None if answer is None else self._redact(answer) for answer in event.answers]
        if isinstance(event, RolloutEndEvent) and isinstance(event.stream, list):
            texts["stream"] = None  # token ids spell the text, and cannot be redacted
        failure = getattr(event, "failure", None)
        if failure is not None:
            texts["failure"] = msgspec.structs.replace(failure, message=self._redact(failure.message))
        return msgspec.structs.replace(event, **texts) if texts else event

    def _begin(self, event: GroupEvent) -> None:
        group = f"{self.path}: group {event.group!r}"
        if not 1 <= event.size <= LARGEST_GROUP:
            raise GroupError(f"{group} has size {event.size}: give one from 1 to {LARGEST_GROUP:,}")
        if event.attempt <= self._begun.get(event.group, 0):
            raise GroupError(
                f"{group} was recorded before: every group needs an id of its own; groups of one prompt "
                "share a task_id"
            )
        self._begun[event.group] = event.attempt

    def _encode(self, event: Event) -> bytes:
        """Encode what a reader will take; one wrong line would make the whole trace unreadable."""
        try:
            line = self._encoded(event)
            _DECODER.decode(line)
        except (TypeError, msgspec.ValidationError) as error:
            kind = event.__struct_config__.tag
            raise TraceError(f"{self.path}: this {kind} event cannot be recorded: {error}") from None
        return line

    def _encoded(self, event: Event) -> bytes:
        """Encode; texts with lone surrogates, which no JSON file may hold, are repaired and flagged."""
        try:
            return self._encoder.encode(event)
        except UnicodeEncodeError:
            plain = _without_surrogates(msgspec.to_builtins(event, enc_hook=_plain))
            if "repaired" in event.__struct_fields__:
                plain["repaired"] = True
            return self._encoder.encode(plain)


def log_of(
    recorder: Recorder | None,
    group_id: str,
    *,
    attempt: int = 1,
    gate: GroupGate | None = None,
    stream: StreamGate | None = None,
) -> GroupLog:
    """The log of a group whose end its driver writes; without a recorder its events go nowhere."""
    return GroupLog(
        _nowhere if recorder is None else recorder.write,
        group_id,
        attempt=attempt,
        gate=gate,
        stream=stream,
        record_observations=recorder is not None and recorder.record_observations,
        record_completions=recorder is not None and recorder.record_completions,
    )


def _nowhere(event: Event) -> None:
    """Takes an event that nobody records."""


def _plain(value: Any) -> Any:
    """The number or text that a NumPy scalar holds."""
    if getattr(value, "shape", None) == ():
        return value.item()
    raise TypeError(f"{type(value).__name__} is no plain value")


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_surrogates(item) for item in value]
    return value


def _file_for(path: Path, rank: int) -> Path:
    if path.suffix == ".jsonl":
        return path
    number = 0
    while True:
        suffix = f"-{number}" if number else ""
        candidate = path / f"trace-rank{rank}-pid{os.getpid()}{suffix}.jsonl"
        if not candidate.exists():
            return candidate
        number += 1


def _begun_in(path: Path) -> dict[str, int]:
    """The groups of earlier writers: one that ended never begins again, another may go on as it was."""
    begun: dict[str, int] = {}
    with path.open("rb") as file:
        for line in file:
            if not line.startswith(_GROUP_LINES):
                continue
            with suppress(msgspec.DecodeError):  # torn; readers skip it, too
                event = _DECODER.decode(line)
                if isinstance(event, GroupEvent):
                    begun[event.group] = event.attempt - 1
                elif isinstance(event, GroupEndEvent):
                    begun[event.group] = sys.maxsize
    return begun


def _open_for_append(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise TraceError(f"{path}: cannot write the trace ({error.strerror})") from None
    try:
        _isolate_torn_line(path, descriptor)
    except TraceError:
        os.close(descriptor)
        raise
    return descriptor


def _isolate_torn_line(path: Path, descriptor: int) -> None:
    """Let a line torn by a killed writer end here, so that the next event starts on a line of its own."""
    size = os.fstat(descriptor).st_size
    if size == 0:
        return
    if b'"type":"header"' not in os.pread(descriptor, 4096, 0).split(b"\n", 1)[0]:
        raise TraceError(f"{path}:1: not a trace of this package; choose another file to record into")
    if os.pread(descriptor, 1, size - 1) != b"\n":
        os.write(descriptor, b"\n")
