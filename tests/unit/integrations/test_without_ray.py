"""What the coordinator's integration says where Ray is not installed."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from selective_rollout.errors import MissingExtraError


def test_the_install_line_is_in_the_message() -> None:
    if importlib.util.find_spec("ray") is not None:
        pytest.skip("ray is installed here")
    with pytest.raises(MissingExtraError, match=r'ray is not installed.*selective-rollout\[openrlhf\]"'):
        importlib.import_module("selective_rollout.integrations.ray_registry")
