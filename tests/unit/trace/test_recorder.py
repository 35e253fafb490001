"""Writing traces."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from selective_rollout.errors import TraceError
from selective_rollout.gate.config import GateConfig
from selective_rollout.trace.reader import ReadReport, read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import RolloutStatus, Usage


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_three_lines_record_a_group(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder:
        with recorder.group("g1", size=2) as group:
            group.step(0, "look")
            group.finish(0, reward=1.0)
            group.step(1, "look", observation="a desk", is_error=False)
            group.fail(1, "timeout", "no answer in 30 s")
    [recorded] = read_groups(tmp_path / "t.jsonl")
    first, second = recorded.group.rollouts
    assert (first.actions, first.status, first.reward) == (("look",), RolloutStatus.FINISHED, 1.0)
    assert second.status is RolloutStatus.FAILED
    assert second.failure is not None
    assert second.failure.message == "no answer in 30 s"
    assert recorded.group.task_id == "g1"
    assert recorded.end is not None


def test_a_rule_turns_the_recorder_into_a_watched_loop(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder, recorder.group("g", 2, gate=GateConfig(start_step=2)) as group:
        for action in ("look", "open"):
            decisions = [group.step(rollout, action) for rollout in (0, 1)]
    assert decisions[-1] is not None
    assert decisions[-1].fires
    [recorded] = read_groups(tmp_path)
    assert [decision.fires for decision in recorded.decisions] == [True]
    assert recorded.end is not None
    assert (recorded.end.cut_at, recorded.end.would_cut_at) == (None, 2)


def test_observations_and_completions_stay_out_unless_asked_for(tmp_path: Path) -> None:
    for keep in (False, True):
        path = tmp_path / f"{keep}.jsonl"
        with Recorder(path, record_observations=keep, record_completions=keep) as recorder:
            with recorder.group("g", 2) as group:
                group.step(0, "look", observation="secret place", completion="I think: look")
        [step] = [line for line in lines_of(path) if line["type"] == "step"]
        assert step["observation_hash"]
        assert ("observation" in step, "completion" in step) == (keep, keep)


def test_redaction_runs_before_the_first_byte_is_written(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with Recorder(path, redact=lambda text: text.replace("hunter2", "***")) as recorder:
        with recorder.group("g", 2) as group:
            group.step(0, "login(hunter2)")
            group.finish(0, answer="hunter2")
            group.fail(1, "error", "bad password hunter2")
        with recorder.group("h", 3, gate=GateConfig(start_step=1, outcome="survivor")) as group:
            for rollout in range(2):
                group.finish(rollout, answer="hunter2", last_action="a")
            group.step(2, "look", state_key="at hunter2")
    assert "hunter2" not in path.read_text()
    assert path.read_text().count("***") == 8


def test_files_are_private_and_named_after_their_writer(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", rank=3) as first, Recorder(tmp_path / "run", rank=3) as second:
        assert first.path != second.path
    assert first.path.name == f"trace-rank3-pid{os.getpid()}.jsonl"
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o600


def test_lone_surrogates_are_repaired_and_flagged(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with Recorder(path) as recorder, recorder.group("g", 2) as group:
        group.step(0, "say(\ud83d)")
        group.step(1, "say(ok)")
    broken, sound = [line for line in lines_of(path) if line["type"] == "step"]
    assert (broken["action"], broken["repaired"]) == ("say(\ufffd)", True)
    assert "repaired" not in sound


def test_unscored_rewards_are_null_never_zero(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with Recorder(path) as recorder, recorder.group("g", 3) as group:
        group.finish(0, reward=float("nan"))
        group.finish(1, reward=None)
        group.cut(2)
    assert [r.reward for r in next(iter(read_groups(path))).group.rollouts] == [None, None, None]
    assert "NaN" not in path.read_text()


def test_late_rewards_are_joined_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with Recorder(path) as recorder:
        with recorder.group("g", 2) as group:
            group.finish(0)
            group.finish(1, reward=0.0)
        group.reward(0, 1.0)
    first, second = next(iter(read_groups(path))).group.rollouts
    assert (first.reward, first.late_reward) == (1.0, True)
    assert (second.reward, second.late_reward) == (0.0, False)


def test_an_error_in_the_block_ends_the_group_and_passes_on(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder:
        with pytest.raises(ZeroDivisionError), recorder.group("g", 2):
            raise ZeroDivisionError("oops")
    [recorded] = read_groups(tmp_path)
    assert recorded.end is not None
    assert recorded.end.error == "ZeroDivisionError: oops"


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError])
def test_an_interruption_leaves_the_group_open_for_a_resume(
    tmp_path: Path, error: type[BaseException]
) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder:
        with pytest.raises(error), recorder.group("g", 2) as group:
            group.step(0, "look")
            raise error
    [recorded] = read_groups(tmp_path)
    assert recorded.end is None
    assert recorded.group.rollouts[0].actions == ("look",)


def test_a_killed_writer_leaves_a_valid_trace_that_can_be_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    script = (
        "import os, signal, sys\n"
        "from selective_rollout.trace.recorder import Recorder\n"
        "recorder = Recorder(sys.argv[1])\n"
        "with recorder.group('g', 2) as group:\n"
        "    group.step(0, 'look')\n"
        '    os.write(recorder._descriptor, b\'{"type":"step","gro\')\n'
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    report = ReadReport()
    [recorded] = read_groups(path, report=report)
    assert recorded.group.rollouts[0].actions == ("look",)
    assert report.problems == [f"{path}:4: skipped a line torn by a killed writer"]
    with Recorder(path) as recorder, recorder.group("h", 2) as group:
        group.step(0, "open")
    report = ReadReport()
    assert {r.group.id for r in read_groups(path, report=report)} == {"g", "h"}
    assert len(report.problems) == 1


def test_usage_is_kept_as_counted(tmp_path: Path) -> None:
    usage = Usage(prompt=50, cached=32, completion=7, source="server")
    with Recorder(tmp_path / "t.jsonl") as recorder, recorder.group("g", 2) as group:
        group.step(0, "look", usage=usage)
        group.step(1, "look")
    first, second = next(iter(read_groups(tmp_path))).group.rollouts
    assert first.steps[0].usage == usage
    assert second.steps[0].usage is None


def test_a_closed_recorder_says_so(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "t.jsonl")
    recorder.close()
    recorder.close()
    with pytest.raises(TraceError, match="the recorder is closed"), recorder.group("g", 2):
        pass


def test_foreign_files_are_not_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text('{"my": "data"}\n')
    with pytest.raises(TraceError, match=r"notes\.jsonl:1: not a trace of this package"):
        Recorder(path)
    assert path.read_text() == '{"my": "data"}\n'


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot write the trace"):
        Recorder(tmp_path / "file" / "t.jsonl")


def test_a_loop_that_enforces_its_cuts_says_so_itself(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder:
        with recorder.group("g", 2, gate=GateConfig(start_step=1), mode="enforce") as group:
            group.step(0, "look")
            decision = group.step(1, "look")
            assert decision is not None
            assert decision.fires
            group.cut(0)
            group.cut(1)
            group.end(outcome="drop", cut_at=decision.step)
    [recorded] = read_groups(tmp_path)
    assert recorded.end is not None
    assert (recorded.end.cut_at, recorded.end.would_cut_at) == (1, None)
