"""`import` on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from selective_rollout.cli.main import main
from selective_rollout.trace.reader import read_groups


def rows(*rewards: object) -> str:
    return "".join(
        json.dumps(
            {"group_id": f"g{n // 2}", "rollout_id": n % 2, "actions": ["look", f"go {n}"], "reward": r}
        )
        + "\n"
        for n, r in enumerate(rewards)
    )


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["selective-rollout", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


def test_rollouts_become_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text(rows(1, 1, 0, 1, None, 1))
    assert call(monkeypatch, "import", "generic", "mine.jsonl", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["zero_variance"], document["signal_bearing"], document["unknown"]) == (1, 1, 1)
    assert document["trace"] == "mine.trace.jsonl"
    assert [group.group.id for group in read_groups("mine.trace.jsonl")] == ["g0", "g1", "g2"]


def test_actions_can_be_compared_by_tool_or_without_some_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    record = {"group_id": "g", "rollout_id": 0, "actions": ['web({"q": "oslo", "k": 5})'], "reward": 1}
    Path("mine.jsonl").write_text(json.dumps(record) + "\n")
    for option, action in ((("--name-only",), "web"), (("--ignore-arg", "web.q"), 'web({"k":5})')):
        Path("mine.trace.jsonl").unlink(missing_ok=True)
        assert call(monkeypatch, "import", "generic", "mine.jsonl", *option) == 0
        [recorded] = read_groups("mine.trace.jsonl")
        assert recorded.group.rollouts[0].actions == (action,)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("generic", "mine.jsonl", "--map", "prize=reward"), "cannot map 'prize'"),
        (("generic", "mine.jsonl", "--ignore-arg", "query"), "write TOOL.ARG"),
        (("tau-bench", "mine.jsonl"), "mine.jsonl:1"),
        (("generic", "nowhere.jsonl"), "nowhere.jsonl"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing_behind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text(rows(1, 1))
    assert call(monkeypatch, "import", *arguments) == 2
    errors = capsys.readouterr().err
    assert words in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.jsonl"]


def test_an_existing_trace_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text(rows(1, 1))
    assert call(monkeypatch, "import", "generic", "mine.jsonl") == 0
    before = Path("mine.trace.jsonl").read_bytes()
    assert call(monkeypatch, "import", "generic", "mine.jsonl") == 2
    assert "exists already" in capsys.readouterr().err
    assert Path("mine.trace.jsonl").read_bytes() == before


def test_groups_of_one_prompt_are_noticed_when_they_are_calibrated_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    records = [
        {"group_id": f"img{g}", "prompt": "Describe.", "actions": [f"look {m}"], "reward": m * g % 2}
        for g in range(20)
        for m in range(3)
    ]
    Path("mine.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert call(monkeypatch, "import", "generic", "mine.jsonl") == 0
    assert "Describe" not in Path("mine.trace.jsonl").read_text()
    capsys.readouterr()
    assert call(monkeypatch, "calibrate", "mine.trace.jsonl", "--no-split") == 0
    assert "warning: 19 groups share a prompt but not a task id" in capsys.readouterr().err.replace("\n", " ")
