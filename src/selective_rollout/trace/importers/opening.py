"""Finding the input files and telling their kind by name and first byte."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from selective_rollout.errors import TraceError
from selective_rollout.trace.importers.files import JsonArray, JsonLines, RecordFile, opened
from selective_rollout.trace.importers.tables import CsvTable, ParquetTable

_SUFFIXES: Final = (".jsonl", ".json", ".csv", ".parquet")
_BLANKS: Final = b" \t\r\n\xef\xbb\xbf"


def input_files(paths: Iterable[Path | str]) -> list[Path]:
    """The files among files and folders, of which those with a known suffix are taken, by name.

    Raises:
        TraceError: a path does not exist, is given twice, or is no regular file; a folder holds no such file.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found = sorted(entry for entry in path.iterdir() if entry.suffix in _SUFFIXES and entry.is_file())
            if not found:
                raise TraceError(f"{path}: the folder holds no {', '.join(_SUFFIXES)} file")
            files += found
        elif path.is_file():
            files.append(path)
        else:
            problem = (
                "is no regular file (files are read twice)" if path.exists() else "no such file or folder"
            )
            raise TraceError(f"{path}: {problem}")
    twice = (
        next((path for path in files if files.count(path) > 1), None)
        if len(files) > len(set(files))
        else None
    )
    if twice is not None:
        raise TraceError(f"{twice}: given twice; its rollouts would count double")
    return files


def open_records(path: Path) -> RecordFile:
    """The file's records, read as what its name or its first byte says."""
    if path.suffix == ".csv":
        return CsvTable(path)
    if path.suffix == ".parquet":
        return ParquetTable(path)
    with opened(path) as file:
        head = file.read(4096).lstrip(_BLANKS)
    return JsonArray(path) if head.startswith(b"[") else JsonLines(path)


def labels(files: list[Path]) -> list[str]:
    """Short names that tell the files apart: as much of the end of their paths as that takes."""
    parts = [path.with_suffix("").parts for path in files]
    length = 1
    while len({names[-length:] for names in parts}) < len(parts) and length < max(map(len, parts)):
        length += 1
    return ["/".join(names[-length:]) for names in parts]
