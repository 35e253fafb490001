"""Writing a folder of results, each file whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from selective_rollout.errors import ConfigError

Writer: TypeAlias = tuple[str, Callable[[Path], object]]
"""A file's name, and what writes it to the path it is given."""


def write_files(folder: Path, what: str, writers: Sequence[Writer]) -> list[Path]:
    """Write files in order; each is complete before it takes the place of an older one.

    Args:
        folder: made if it does not exist.
        what: the result's name in an error message.
        writers: the files.

    Returns:
        The paths, in order.

    Raises:
        ConfigError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_written(folder / name, write) for name, write in writers]
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot write the {what} there ({error.strerror}); name another --out"
        ) from None


def _written(path: Path, write: Callable[[Path], object]) -> Path:
    # The suffix stays last: a picture's format is read from it.
    partial = path.with_name(f"{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        write(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path
