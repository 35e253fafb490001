"""Skips what needs a framework that is not installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest


def need(distribution: str) -> str:
    """The version that is installed; one that is installed and cannot be imported is no reason to skip.

    Raises:
        Skipped: there is none.
    """
    try:
        return version(distribution)
    except PackageNotFoundError:
        reason = f"make test-seams installs {distribution} into an environment of its own"
        pytest.skip(reason, allow_module_level=True)
