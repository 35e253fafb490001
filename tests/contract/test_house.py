"""Rules of the house that no linter knows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "selective_rollout").rglob("*.py"))
HEAVY = ("openai", "msgspec", "click", "rich", "h11", "numpy", "matplotlib", "jinja2", "langgraph", "asyncio")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_no_module_outgrows_its_room(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 600, f"{path.name} has {lines} lines: split it by topic"


def test_few_modules_are_long() -> None:
    long = [path.name for path in SOURCES if len(path.read_text(encoding="utf-8").splitlines()) > 400]
    assert long == []


def loaded_by(statement: str) -> set[str]:
    """Top-level packages in sys.modules after a statement, in a fresh interpreter."""
    script = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_by("import selective_rollout") & set(HEAVY) == set()


def test_deciding_loads_rapidfuzz_and_nothing_else() -> None:
    loaded = loaded_by("from selective_rollout import GateConfig, GroupGate, mean_pairwise_distance")
    assert "rapidfuzz" in loaded
    assert loaded & (set(HEAVY) - {"asyncio"}) == set()


def test_the_clients_of_a_model_are_loaded_only_when_one_is_made() -> None:
    assert "openai" not in loaded_by("import selective_rollout.policy, selective_rollout.cli.main")


def test_every_exported_name_exists_and_is_sorted() -> None:
    import selective_rollout

    names = list(selective_rollout.__all__)
    assert names == sorted(names)
    for name in names:
        assert getattr(selective_rollout, name) is not None
    assert set(names) <= set(dir(selective_rollout))


def test_an_unknown_name_is_an_attribute_error() -> None:
    import selective_rollout

    with pytest.raises(AttributeError, match="has no attribute 'Gate'"):
        _ = selective_rollout.Gate  # type: ignore[attr-defined]


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "src" / "selective_rollout" / "py.typed").exists()
