"""What the integration says where TRL is not installed."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from selective_rollout.errors import MissingExtraError


def test_the_install_line_is_in_the_message() -> None:
    if importlib.util.find_spec("openrlhf") is not None:
        pytest.skip("openrlhf is installed here")
    with pytest.raises(MissingExtraError, match=r'pip install "selective-rollout\[openrlhf\]"'):
        importlib.import_module("selective_rollout.integrations.openrlhf")
