"""Without its extra, the gateway says how to get it."""

from __future__ import annotations

import importlib
import sys

import pytest

from selective_rollout.errors import MissingExtraError

PACKAGE = "selective_rollout.integrations.gateway"


@pytest.mark.parametrize("missing", ["starlette", "uvicorn", "httptools"])
def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name in [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError, match=r'pip install "selective-rollout\[gateway\]"'):
        importlib.import_module(PACKAGE)
