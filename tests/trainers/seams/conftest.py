"""The code of the page on other trainers, as a module with the reader's names in it."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "workers"))

from seam_world import Bytes, World
from tests.trainers.marking import mark

from selective_rollout.engine.training import TrainingGate
from selective_rollout.gate.config import GateConfig

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "other-trainers.md"
BLOCK = re.compile(
    r"^```python(?: no-run \(needs ([\w-]+); run by make test-seams\))?\n(.*?)^```", re.M | re.S
)
_OTHERS_WARNINGS = (
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore::ResourceWarning",
    "ignore::UserWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, Path(__file__).parent, _OTHERS_WARNINGS)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def tokenizer() -> Bytes:
    return Bytes()


@pytest.fixture
def gate_of() -> Callable[..., TrainingGate]:
    """Makes a gate that cuts at step 2 what acts alike."""

    def make(mode: Any = "enforce", **settings: Any) -> TrainingGate:
        return TrainingGate(GateConfig(start_step=2, tau=0.12), mode=mode, certified=True, **settings)

    return make


def text_of(package: str) -> str:
    """The page's code for one framework, behind what all of them share."""
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert package in {needs for needs, _ in blocks}
    return "\n".join(text for needs, text in blocks if needs in ("", package))


@pytest.fixture(scope="session")
def page_text() -> str:
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def page() -> Callable[[str], str]:
    return text_of


@pytest.fixture
def sketch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Makes a module of the page's code for a framework, with the reader's own names in it."""

    def make(package: str, gate: TrainingGate | None = None, *, text: str = "", **names: Any) -> Any:
        (tmp_path / "other_trainers.py").write_text(text or text_of(package), encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        found = importlib.util.find_spec("other_trainers")
        assert found is not None
        module = importlib.util.module_from_spec(found)
        monkeypatch.setitem(sys.modules, "other_trainers", module)
        module.__dict__.update(names)
        found.loader.exec_module(module)
        if gate is not None:
            module.gate = gate
        return module

    return make
