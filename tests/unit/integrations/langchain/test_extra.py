"""Without LangChain the import says what to install."""

from __future__ import annotations

import importlib
import sys

import pytest

from selective_rollout.errors import MissingExtraError

PACKAGE = "selective_rollout.integrations.langchain"


def test_without_the_extra_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith((PACKAGE, "langchain."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "langchain", None)
    with pytest.raises(MissingExtraError, match=r'Run: pip install "selective-rollout\[langchain\]"'):
        importlib.import_module(PACKAGE)
