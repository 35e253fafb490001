"""Recorded rollouts in the formats of other tools."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from selective_rollout.errors import MissingExtraError, TraceError
from selective_rollout.trace.importers import ColumnMapping, ImportReport, import_rollouts, tables
from selective_rollout.trace.reader import RecordedGroup, read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import RolloutStatus, Usage


def imported(form: str, paths: Sequence[Path], *maps: str) -> tuple[ImportReport, dict[str, RecordedGroup]]:
    target = paths[0].parent / "trace" / "out.jsonl"
    target.unlink(missing_ok=True)
    with Recorder(target, record_observations=True, record_completions=True) as out:
        report = import_rollouts(form, paths, out, mapping=ColumnMapping.parse(maps))
    return report, {recorded.group.id: recorded for recorded in read_groups(target)}


def written(path: Path, records: Sequence[Any], *, lines: bool = True) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(map(json.dumps, records)) + "\n" if lines else json.dumps(records, indent=2))
    return path


def call(call_id: str, name: str, **args: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(args)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "function": function}]}


def tau_result(task: int, trial: int, reward: float, *actions: dict[str, Any]) -> dict[str, Any]:
    opening = [{"role": "system", "content": "policy"}, {"role": "user", "content": "hi"}]
    info = {"task": {"instruction": f"task {task}"}}
    return {"task_id": task, "trial": trial, "reward": reward, "info": info, "traj": [*opening, *actions]}


def test_tau_bench_results(tmp_path: Path) -> None:
    reply = {"role": "tool", "content": "Error: user not found"}
    crash = {
        "task_id": 0,
        "trial": 2,
        "reward": 0.0,
        "info": {"error": "429", "traceback": "..."},
        "traj": [],
    }
    results = [
        tau_result(
            0, 0, 1.0, call("c", "get_user", id="x"), reply, {"role": "assistant", "content": "Sorry."}
        ),
        tau_result(1, 0, 0.0, {"role": "assistant", "content": "No."}),
        tau_result(0, 1, 0.0, call("c", "get_user", id="x"), {"role": "tool", "content": "{}"}),
        crash,
    ]
    report, groups = imported("tau-bench", [written(tmp_path / "gpt.json", results, lines=False)])
    first, second, crashed = groups["0"].group.rollouts
    assert first.actions == ('get_user({"id":"x"})', "Sorry.")
    assert [step.is_error for step in first.steps] == [True, None]
    assert second.steps[0].is_error is False
    assert (crashed.status, crashed.reward) == (RolloutStatus.FAILED, None)
    assert groups["0"].group.task_id == "0"
    assert (first.answer, report.failed, report.signal_bearing) == (None, 1, 1)


def test_ids_that_are_unique_in_a_file_only_name_their_file_when_there_are_several(tmp_path: Path) -> None:
    say = {"role": "assistant", "content": "No."}
    paths = [written(tmp_path / f"{m}.json", [tau_result(0, 0, 1.0, say)]) for m in ("a", "b")]
    report, groups = imported("tau-bench", paths)
    assert list(groups) == ["a/0", "b/0"]
    assert {recorded.group.task_id for recorded in groups.values()} == {"0"}
    other = written(
        tmp_path / "c.json", [tau_result(0, 0, 1.0, say) | {"info": {"task": {"instruction": "x"}}}]
    )
    report, _ = imported("tau-bench", [paths[0], other])
    assert any("tasks ('0') have different prompts" in warning for warning in report.warnings)


def test_verifiers_results(tmp_path: Path) -> None:
    as_text = call("c1", "python", code="1+1")
    as_text["tool_calls"] = [json.dumps(as_text["tool_calls"][0])]
    done = [as_text, {"role": "tool", "content": "2"}, {"role": "assistant", "content": "\\boxed{2}"}]
    row = {"example_id": 0, "prompt": [{"role": "user", "content": "1+1?"}], "answer": "2", "error": None}
    records = [
        row
        | {"completion": done, "reward": 1.0, "token_usage": {"input_tokens": 50.0, "output_tokens": 9.0}},
        row | {"completion": done[:1], "reward": 0.0, "is_truncated": True},
        row | {"completion": None, "reward": 0.0, "error": {"error": "APITimeout", "error_chain_str": "..."}},
        row | {"completion": [], "reward": 0.0, "prompt_tokens": 5.0, "completion_tokens": 0.0},
    ]
    report, groups = imported("verifiers", [written(tmp_path / "results.jsonl", records)])
    first, second, third, fourth = groups["0"].group.rollouts
    assert first.actions == ('python({"code":"1+1"})', "\\boxed{2}")
    assert (first.answer, second.answer) == ("2", None)
    assert second.status is RolloutStatus.TRUNCATED
    assert [r.failure.kind for r in (third, fourth) if r.failure] == ["error", "no_action"]
    assert third.failure is not None
    assert third.failure.message == "APITimeout"
    totals = groups["0"].begin.metadata["recorded_tokens"]["rollouts"]
    assert totals[0] == {"prompt": 50, "completion": 9}
    assert (report.failed, report.signal_bearing) == (2, 1)


TRL_ROWS = [
    {
        "step": step,
        "prompt": f"p{p}",
        "completion": f"Action: go {c}",
        "acc": c == 0,
        "fmt": 0.5,
        "advantage": 0,
    }
    for step in (1, 2)
    for p in range(2)
    for c in range(2)
]


def trl_file(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / f"completions_00001.{kind}"
    if kind == "jsonl":
        return written(path, TRL_ROWS)
    if kind == "csv":
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, TRL_ROWS[0].keys())
            table.writeheader()
            table.writerows(TRL_ROWS)
        return path
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(TRL_ROWS), path, row_group_size=3)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_trl_completions(tmp_path: Path, kind: str) -> None:
    path = trl_file(tmp_path, kind)
    with pytest.raises(TraceError, match=r"no group id in group_id; .*group=step\+prompt .*fmt, advantage"):
        imported("trl", [path])
    report, groups = imported("trl", [path], "group=step+prompt", "reward=acc+fmt")
    assert list(groups) == ["1|p0", "1|p1", "2|p0", "2|p1"]
    assert [r.reward for r in groups["2|p0"].group.rollouts] == [1.5, 0.5]
    assert [r.actions for r in groups["2|p0"].group.rollouts] == [("go 0",), ("go 1",)]
    assert groups["2|p0"].group.policy_version == "2"
    assert (report.signal_bearing, report.records) == (4, 8)
    assert "map task=" in report.warnings[0]


def test_parquet_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "parquet", None)
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(MissingExtraError, match=r'pip install "selective-rollout\[parquet\]"'):
        imported("trl", [path])


def test_a_broken_parquet_file_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(TraceError, match=r"a.parquet: not a readable Parquet file"):
        imported("trl", [path], "group=step")


def paper_group(*trajectories: dict[str, Any], task: str = "heat/trial") -> dict[str, Any]:
    return {
        "task_id": task,
        "task_desc": "heat some egg",
        "group_size": len(trajectories),
        "max_steps": 3,
        "trajectories": list(trajectories),
    }


def paper_rollout(
    actions: str, *, won: bool = False, done: bool = True, terminated_at: int | None = None
) -> dict[str, Any]:
    steps = [{"obs": f"before {a}", "action": a, "done": False} for a in actions]
    steps[-1]["done"] = done
    end = len(actions) - 1 if terminated_at is None else terminated_at
    return {"total_reward": float(won), "won": won, "terminated_at": end, "steps": steps}


def test_the_papers_rollouts(tmp_path: Path) -> None:
    group = paper_group(paper_rollout("ab", won=True), paper_rollout("abc"), paper_rollout("b"))
    report, groups = imported("paper", [written(tmp_path / "rollouts.jsonl", [group])])
    won, out_of_steps, lost = groups["heat/trial"].group.rollouts
    assert won.actions == ("a", "b")
    assert [step.observation for step in won.steps] == ["before b", None]
    assert [r.status for r in (won, out_of_steps, lost)] == [
        RolloutStatus.FINISHED,
        RolloutStatus.TRUNCATED,
        RolloutStatus.FINISHED,
    ]
    assert [r.reward for r in (won, out_of_steps, lost)] == [1.0, 0.0, 0.0]
    assert report.signal_bearing == 1


def test_a_group_that_the_papers_gate_cut_has_no_rewards_of_its_own(tmp_path: Path) -> None:
    group = paper_group(
        paper_rollout("a", won=True), paper_rollout("ab", done=False), paper_rollout("ab", done=False)
    )
    report, groups = imported("paper", [written(tmp_path / "gated.jsonl", [group])])
    [recorded] = groups.values()
    assert [r.status for r in recorded.group.rollouts[1:]] == [RolloutStatus.CUT] * 2
    assert [r.reward for r in recorded.group.rollouts] == [1.0, None, None]
    assert recorded.end is not None
    assert (recorded.end.outcome, recorded.end.cut_at) == ("drop", 2)
    assert (report.cut, report.unknown, report.rewards_left_out) == (2, 1, 2)


def test_a_task_rolled_out_again_is_another_group_of_the_same_task(tmp_path: Path) -> None:
    group = paper_group(paper_rollout("a"), paper_rollout("b"))
    report, groups = imported("paper", [written(tmp_path / "rollouts.jsonl", [group, group])])
    assert list(groups) == ["heat/trial", "heat/trial#2"]
    assert {recorded.group.task_id for recorded in groups.values()} == {"heat/trial"}
    assert report.sizes == {2: 2}


def test_the_papers_rollouts_one_a_line(tmp_path: Path) -> None:
    lines = [
        {"task_id": "t", "steps": [{"action": "look", "observation": "room"}], "reward": n, "won": bool(n)}
        for n in range(2)
    ]
    _, groups = imported("paper", [written(tmp_path / "rollouts.jsonl", lines)])
    assert [r.reward for r in groups["t"].group.rollouts] == [0.0, 1.0]
    assert groups["t"].group.rollouts[0].steps[0].observation == "room"
    broken = written(tmp_path / "b.jsonl", [{"task_id": "t", "steps": "none"}])
    with pytest.raises(TraceError, match=":1: `steps` must be a list of objects"):
        imported("paper", [broken])


def test_conversations(tmp_path: Path) -> None:
    opening = {"role": "user", "content": "what is 6*7?"}
    records = [
        {
            "group_id": 1,
            "messages": [opening, {"role": "assistant", "content": f"Final Answer: {n}"}],
            "reward": n,
        }
        for n in (42, 41)
    ]
    report, groups = imported("messages", [written(tmp_path / "chats.jsonl", records)])
    assert [r.answer for r in groups["1"].group.rollouts] == ["42", "41"]
    assert report.warnings == []


def test_responses_with_several_choices_pay_for_their_prompt_once(tmp_path: Path) -> None:
    choices = [
        {"index": n, "finish_reason": "stop", "message": {"role": "assistant", "content": f"act {n}"}}
        for n in range(4)
    ]
    told = {
        "group_id": "a",
        "choices": choices,
        "usage": {"prompt_tokens": 50, "completion_tokens": [10, 12, 9, 11]},
    }
    summed = {"group_id": "b", "choices": choices, "usage": {"prompt_tokens": 50, "completion_tokens": 42}}
    _, groups = imported("messages", [written(tmp_path / "responses.jsonl", [told, summed])])
    usages = [r.steps[0].usage for r in groups["a"].group.rollouts]
    assert usages == [Usage(50, None, 10), Usage(0, None, 12), Usage(0, None, 9), Usage(0, None, 11)]
    assert groups["b"].begin.metadata["recorded_tokens"]["prompt"] == 50
    assert groups["b"].begin.metadata["recorded_tokens"]["completion"] == 42


def test_a_choice_of_the_older_completions_is_its_text(tmp_path: Path) -> None:
    record = {"group_id": "a", "choices": [{"text": "act 0"}, {"text": "act 1", "finish_reason": "length"}]}
    _, groups = imported("messages", [written(tmp_path / "responses.jsonl", [record])])
    told, cut_off = groups["a"].group.rollouts
    assert (told.actions, told.status) == (("act 0",), RolloutStatus.FINISHED)
    assert (cut_off.actions, cut_off.status) == ((), RolloutStatus.TRUNCATED)


@pytest.mark.parametrize(
    ("form", "record", "says"),
    [
        (
            "tau-bench",
            {"group_id": 1, "actions": []},
            "not a tau-bench result: no `task_id`, `traj`; did you mean the format `generic`?",
        ),
        ("tau-bench", {"example_id": 1, "completion": []}, "did you mean the format `verifiers`?"),
        (
            "verifiers",
            {"task_id": 1, "traj": []},
            "no `example_id`, `completion`; did you mean the format `tau-bench`?",
        ),
        ("messages", {"task_id": 1, "trajectories": []}, "did you mean the format `paper`?"),
        ("trl", {"uid": 1, "messages": []}, "did you mean the format `messages`?"),
        ("paper", {"a": 1, "b": 2}, "not a group of the paper's rollouts: no `trajectories`; columns: a, b"),
        (
            "messages",
            {"type": "header", "trace_version": 1},
            "is a trace of this package; it needs no import",
        ),
        ("generic", {"type": "header", "trace_version": 1}, "is a trace of this package; it needs no import"),
        (
            "generic",
            {"task_id": 1, "traj": []},
            "no group id in group_id or group; did you mean the format `tau-bench`?",
        ),
    ],
)
def test_a_wrong_format_is_named_and_the_right_one_too(
    tmp_path: Path, form: str, record: dict[str, Any], says: str
) -> None:
    path = written(tmp_path / "a.jsonl", [record])
    with pytest.raises(TraceError) as caught:
        imported(form, [path])
    assert str(caught.value).startswith(f"{path}:1: ")
    assert str(caught.value).endswith(says)
