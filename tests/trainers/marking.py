"""What all folders of trainer tests do to their tests as they are collected."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest


def mark(items: Iterable[pytest.Item], folder: Path, ignored: Iterable[str]) -> None:
    """Mark the tests of a folder; what the frameworks warn each other of is not ours to mend.

    Args:
        items: all tests that were collected.
        folder: whose tests are meant.
        ignored: filters of those warnings, as pytest reads them.
    """
    for item in items:
        if item.path.parent == folder:
            item.add_marker(pytest.mark.trainers)
            for warning in ignored:
                item.add_marker(pytest.mark.filterwarnings(warning))
