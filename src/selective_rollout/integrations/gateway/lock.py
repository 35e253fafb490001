"""One writer for one trace: a second gateway on the same folder is turned away."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selective_rollout.errors import PrerequisiteError

try:
    import fcntl
except ModuleNotFoundError:  # not on Windows, where nothing keeps a second one away
    fcntl = None  # type: ignore[assignment]


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Hold a lock that ends with this process, however it ends.

    Raises:
        PrerequisiteError: another process holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise PrerequisiteError(
                    f"{path.parent}: another gateway records there; stop it, or choose another --name"
                ) from None
        yield
    finally:
        os.close(descriptor)
