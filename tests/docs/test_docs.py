"""What the documents show is run, and what they point at exists.

In README.md and docs/, by the words behind the opening fence of a block:

- `python`: run; the blocks of one page share a namespace and a working folder, in order.
- `python no-run (reason)`: not run; the reason is required.
- `console run`: each line `$ selective-rollout ...` must exit with 0; `console run exit=N`: with N.
- `text output`: what the block run before it printed on stdout, but for blanks at the ends of lines.

VLLM_BASE_URL and VLLM_MODEL name a loopback server, so blocks that need an endpoint run unchanged.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import click
import pytest

from selective_rollout.cli.main import cli, main
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import Reason
from selective_rollout.gate.signals import DECLARED, SIGNALS
from selective_rollout.testing import LoopbackServer, TutorialBrain
from selective_rollout.trace.schema import json_schema

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [README, *DOCS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]

FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
COMMAND = "$ selective-rollout"


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    info: str
    text: str
    line: int


def blocks_of(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    return [
        Block(found[1].strip(), found[2], text.count("\n", 0, found.start()) + 1)
        for found in FENCE.finditer(text)
    ]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


RUNNABLE = [
    path
    for path in (README, *DOCS)
    if any(block.info == "python" or block.info.startswith("console run") for block in blocks_of(path))
]


class Stage:
    """A namespace and an empty working folder for the blocks of one page."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.printed = ""
        """What the last block that ran printed, without the blanks at the ends of its lines."""
        self.problems = ""
        self._patch = monkeypatch
        self._capture = capsys
        self._module = ModuleType("documented")
        monkeypatch.setitem(sys.modules, self._module.__name__, self._module)

    def run_python(self, block: Block, path: Path) -> None:
        # Padded, so that a traceback names the line of the page.
        exec(compile("\n" * block.line + block.text, str(path), "exec"), self._module.__dict__)
        self._read()

    def run_command(self, line: str) -> int:
        self._patch.setattr(sys, "argv", shlex.split(line))
        try:
            main()
            code = 0
        except SystemExit as left:
            code = int(left.code or 0)
        self._read()
        return code

    def _read(self) -> None:
        printed, self.problems = self._capture.readouterr()
        self.printed = "\n".join(line.rstrip() for line in printed.splitlines()).rstrip()


@pytest.fixture
def stage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Stage]:
    monkeypatch.chdir(tmp_path)
    with LoopbackServer(TutorialBrain(), api_key=None) as server:
        monkeypatch.setenv("VLLM_BASE_URL", server.base_url)
        monkeypatch.setenv("VLLM_MODEL", server.model)
        yield Stage(monkeypatch, capsys)


@pytest.mark.filterwarnings("ignore::selective_rollout.engine.rule.UncertifiedGateWarning")
@pytest.mark.parametrize("path", RUNNABLE, ids=name_of)
def test_blocks_run_and_print_what_is_shown(path: Path, stage: Stage) -> None:
    for block in blocks_of(path):
        where = f"{name_of(path)}:{block.line}"
        words = block.info.split()
        if block.info == "python":
            stage.run_python(block, path)
        elif words[:2] == ["console", "run"]:
            expected = int(words[2].removeprefix("exit=")) if words[2:] else 0
            for line in block.text.splitlines():
                if line.startswith(COMMAND):
                    assert stage.run_command(line.removeprefix("$ ")) == expected, (
                        f"{where}: {line}{stage.problems}"
                    )
        elif block.info == "text output":
            assert stage.printed == block.text.rstrip(), where


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_blocks_are_of_a_known_kind(path: Path) -> None:
    known = re.compile(
        r"(python( no-run \(.+\))?|text( output)?|console( run( exit=\d+)?)?|toml|json|mermaid)?"
    )
    odd = [f"{block.line}: {block.info!r}" for block in blocks_of(path) if not known.fullmatch(block.info)]
    assert odd == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    broken = []
    for target in LINK.findall(text):
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        aim = (path.parent / file).resolve() if file else path
        if not aim.exists() or (anchor and anchor not in anchors_of(aim)):
            broken.append(target)
    assert broken == []


def anchors_of(path: Path) -> set[str]:
    """Anchors that GitHub makes of the headings."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {heading.replace(" ", "-") for heading in plain}


def test_every_page_is_on_the_map() -> None:
    linked = set(LINK.findall((ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    pages = {str(path.relative_to(ROOT / "docs")) for path in DOCS} - {"index.md"}
    assert pages - linked == set()


def rows_of(page: str) -> set[str]:
    """First cells of all table rows of a page, without their code marks."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return {row.split("|")[1].strip().strip("`") for row in text.splitlines() if row.startswith("| `")}


def test_tables_are_complete() -> None:
    assert set(Reason) <= rows_of("gate.md")
    assert set(GateConfig().to_dict()) <= rows_of("gate.md")
    assert {*SIGNALS, *DECLARED} <= rows_of("gate.md")
    assert set(json_schema()["discriminator"]["mapping"]) <= rows_of("traces.md")
    assert set(cli.list_commands(click.Context(cli))) <= rows_of("cli.md")
