"""Rollout dumps of verl, as its two trainers write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selective_rollout.errors import TraceError
from selective_rollout.trace.importers import ColumnMapping, ImportReport, import_rollouts
from selective_rollout.trace.importers.verl import turns_of
from selective_rollout.trace.reader import RecordedGroup, read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import RolloutStatus


def imported(folder: Path, *maps: str) -> tuple[ImportReport, dict[str, RecordedGroup]]:
    target = folder.parent / "trace.jsonl"
    with Recorder(target, record_observations=True, record_completions=True) as out:
        report = import_rollouts("verl", folder, out, mapping=ColumnMapping.parse(maps))
    return report, {recorded.group.id: recorded for recorded in read_groups(target)}


def line(step: int, output: str, score: float, **more: Any) -> dict[str, Any]:
    return {"input": f"user\nQ{step}", "output": output, "gts": "7", "score": score, "step": step, **more}


def dump(folder: Path, *records: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for step in {record["step"] for record in records}:
        mine = [json.dumps(record) for record in records if record["step"] == step]
        (folder / f"{step}.jsonl").write_text("\n".join(mine) + "\n", encoding="utf-8")
    return folder


def call(place: str) -> str:
    return f'<tool_call>\n{{"name": "look", "arguments": {{"place": "{place}"}}}}\n</tool_call>'


def reply(text: str) -> str:
    return f"\nuser\n<tool_response>\n{text}\n</tool_response>\nassistant\n"


def test_the_default_trainers_dump(tmp_path: Path) -> None:
    folder = dump(
        tmp_path / "rollouts",
        line(1, call("a") + reply("nothing") + call("b") + reply("7") + "It is 7.", 1.0, uid="u-1_0_0"),
        line(1, call("a") + reply("nothing") + "No idea.", 0.0, uid="u-1_1_0"),
        line(2, "7", 1.0, uid="u-2_0_0"),
        line(2, "7", 1.0, uid="u-2_1_0"),
    )
    report, groups = imported(folder)
    assert (report.files, report.records, list(groups)) == (2, 4, ["u-1", "u-2"])
    first = groups["u-1"].group
    assert (first.task_id, first.policy_version) == ("user\nQ1", "1")
    right, wrong = first.rollouts
    assert [step.action for step in right.steps[:2]] == ['look({"place":"a"})', 'look({"place":"b"})']
    assert [step.observation for step in right.steps] == ["nothing", "7", None]
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    assert len(wrong.steps) == 2


def test_the_older_trainer_names_no_groups(tmp_path: Path) -> None:
    folder = dump(tmp_path / "rollouts", line(1, "7", 1.0, acc=True), line(1, "8", 0.0, acc=False))
    with pytest.raises(TraceError, match=r"1\.jsonl:1: no group id .*group=step\+input"):
        imported(folder)
    report, groups = imported(folder, "group=step+input")
    (group,) = groups.values()
    assert [rollout.reward for rollout in group.group.rollouts] == [1.0, 0.0]
    assert report.records == 2


def test_of_several_outputs_the_last_one_counts(tmp_path: Path) -> None:
    folder = dump(
        tmp_path / "rollouts",
        line(1, "draft", 1.0, uid="u_0_0"),
        line(1, "final", 1.0, uid="u_0_1"),
        line(1, "other", 0.0, uid="u_1_0"),
    )
    report, groups = imported(folder)
    assert [rollout.steps[-1].completion for rollout in groups["u"].group.rollouts] == ["final", "other"]
    assert report.superseded == 1


def test_a_rollout_that_the_gate_cut_has_no_reward(tmp_path: Path) -> None:
    stand_in = -(2.0**-7)
    folder = dump(tmp_path / "rollouts", *(line(1, "", stand_in, uid=f"u_{member}_0") for member in range(2)))
    _, groups = imported(folder)
    assert [rollout.status for rollout in groups["u"].group.rollouts] == [RolloutStatus.CUT] * 2
    assert [rollout.reward for rollout in groups["u"].group.rollouts] == [None] * 2


def test_other_records_are_refused(tmp_path: Path) -> None:
    folder = dump(tmp_path / "rollouts", {"step": 1, "prompt": "p", "completion": "c"})
    with pytest.raises(TraceError, match="did you mean the format `trl`"):
        imported(folder)


WORDS = st.text("abc {}<>\n", min_size=1).filter(lambda text: text == text.strip())


@given(turns=st.lists(st.tuples(WORDS, st.lists(WORDS, min_size=1, max_size=2)), min_size=1), last=WORDS)
def test_turns_and_replies_come_apart_as_they_were_put_together(
    turns: list[tuple[str, list[str]]], last: str
) -> None:
    def answer(texts: list[str]) -> str:
        tags = "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in texts)
        return f"\nuser\n{tags}\nassistant\n"

    found = turns_of("".join(said + answer(texts) for said, texts in turns) + last)
    expected = [
        {"role": role, "content": text}
        for said, texts in turns
        for role, text in (("assistant", said), ("tool", "\n".join(texts)))
    ]
    assert found == [*expected, {"role": "assistant", "content": last}]
