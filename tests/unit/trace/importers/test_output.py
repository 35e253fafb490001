"""A trace appears under its name whole or not at all."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from selective_rollout.errors import TraceError
from selective_rollout.trace.importers import import_rollouts, replacing_recorder
from selective_rollout.trace.reader import read_groups


def source(folder: Path, *, broken: bool = False) -> Path:
    path = folder / "in.jsonl"
    lines = [json.dumps({"group_id": n, "actions": ["look"], "reward": 0}) for n in range(3)]
    lines[2] = lines[2].replace("0}", '"bad"}') if broken else lines[2]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_trace_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "runs" / "trace.jsonl"
    with replacing_recorder(target) as out:
        import_rollouts("generic", source(tmp_path), out)
        assert not target.exists()
        with pytest.raises(TraceError, match="holds no .jsonl trace"):
            list(read_groups(target.parent))
    assert len(list(read_groups(target))) == 3
    assert [entry.name for entry in target.parent.iterdir()] == ["trace.jsonl"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_a_failed_import_leaves_the_old_trace_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "trace.jsonl"
    target.write_text("old")
    path = source(tmp_path, broken=True)
    with pytest.raises(TraceError, match="exists already"), replacing_recorder(target):
        pass
    with pytest.raises(ValueError, match="in.jsonl:3: reward 'bad'"):
        with replacing_recorder(target, overwrite=True) as out:
            import_rollouts("generic", path, out)
    assert target.read_text() == "old"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in.jsonl", "trace.jsonl"]


def test_a_target_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="a trace is a .jsonl file"), replacing_recorder(tmp_path / "x.json"):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot write the trace"):
        with replacing_recorder(tmp_path / "file" / "x.jsonl"):
            pass
