"""What a trace says about the workload it was recorded on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from selective_rollout.gate.certificate import Workload
from selective_rollout.trace.reader import read_events, trace_files
from selective_rollout.trace.schema import HeaderEvent


def recorded_workload(paths: Iterable[Path | str], group_size: int | None) -> Workload:
    """Read the workload from the headers of traces; a fact on which they differ is unknown.

    Args:
        paths: files and folders.
        group_size: size of the recorded groups, if they all have the same.

    Raises:
        TraceError: a path holds no trace.
    """
    headers = [_header(path) for path in trace_files(paths)]
    model, max_steps = _common(headers, "model"), _common(headers, "max_steps")
    temperature, source = _common(headers, "temperature"), _common(headers, "env")
    return Workload(
        model=model if isinstance(model, str) else None,
        sampling=None if temperature is None else f"temperature {temperature:g}",
        max_steps=max_steps if isinstance(max_steps, int) else None,
        source=source if isinstance(source, str) else None,
        group_size=group_size,
    )


def _header(path: Path) -> Mapping[str, Any]:
    first = next(read_events(path), None)
    return first[1].metadata if first is not None and isinstance(first[1], HeaderEvent) else {}


def _common(headers: list[Mapping[str, Any]], key: str) -> Any:
    found = {repr(header.get(key)): header.get(key) for header in headers}
    return next(iter(found.values())) if len(found) == 1 else None
