"""What verl's integration says where verl is not installed."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from selective_rollout.errors import MissingExtraError


def test_the_install_line_is_in_the_message() -> None:
    if importlib.util.find_spec("verl") is not None:
        pytest.skip("verl is installed here")
    with pytest.raises(MissingExtraError, match=r'verl is not installed.*selective-rollout\[verl\]"'):
        importlib.import_module("selective_rollout.integrations.verl")
