"""Writing traces."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selective_rollout.errors import GroupError, SelectiveRolloutError, TraceError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.group import GroupGate
from selective_rollout.trace.group_log import GroupLog
from selective_rollout.trace.reader import ReadReport, read_groups
from selective_rollout.trace.recorder import Recorder, log_of
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


def test_a_driver_that_writes_the_end_itself_takes_a_log(tmp_path: Path) -> None:
    for recorder in (None, Recorder(tmp_path / "t.jsonl", record_observations=True)):
        gate = GroupGate(GateConfig(start_step=1), 2, group_id="g")
        log = log_of(recorder, "g", attempt=2, gate=gate)
        log.begin(size=2, task_id="g")
        for rollout in (0, 1):
            log.step(rollout, "look", observation="a desk")
        log.end(outcome="drop", cut_at=1)
        assert gate.fired is not None, "watched, whether or not anybody writes"
    [recorded] = read_groups(tmp_path)
    assert recorded.group.attempt == 2
    assert recorded.group.rollouts[0].steps[0].observation == "a desk"
    assert recorded.end is not None
    assert (recorded.end.outcome, recorded.end.cut_at) == ("drop", 1)


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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda group: group.step(0, None),
            r"this step event cannot be recorded: Expected `str`, got `null`",
        ),
        (lambda group: group.step(0, {"tool": "look"}), r"Expected `str`, got `object` - at `\$\.action`"),
        (lambda group: group.finish(0, 1.0, 42), r"Expected `str \| null`, got `int` - at `\$\.answer`"),
        (lambda group: group.step(0, "a", is_error=object()), "object is no plain value"),
        (lambda group: group.step(0, "a", usage={"prompt_tokens": 1}), "usage is a dict: give types.Usage"),
        (lambda group: group.step(2, "a"), "has rollouts 0 to 1; there is no rollout 2"),
        (lambda group: group.finish(-1), "there is no rollout -1"),
        (lambda group: group.step(1, "late"), "rollout 1 of group 'g' has already ended"),
        (lambda group: group.fail(1, "timeout"), "rollout 1 of group 'g' has already ended"),
    ],
)
def test_what_no_reader_would_take_is_refused_and_the_rest_stays_readable(
    tmp_path: Path, wrong: Callable[[GroupLog], object], message: str
) -> None:
    with Recorder(tmp_path) as recorder, recorder.group("g", 2) as group:
        group.step(0, "look")
        group.finish(1, 0.0)
        with pytest.raises(SelectiveRolloutError, match=message):
            wrong(group)
        group.step(0, "open")
        group.finish(0, 1.0)
    [recorded] = read_groups(tmp_path)
    assert recorded.group.rollouts[0].actions == ("look", "open")
    assert [rollout.reward for rollout in recorded.group.rollouts] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        ({"group_id": "g"}, "group 'g' was recorded before: every group needs an id of its own"),
        ({"group_id": 5}, r"this group event cannot be recorded: Expected `str`, got `int` - at `\$\.group`"),
        ({"group_id": "h", "size": 0}, "group 'h' has size 0: give one from 1 to 100,000"),
        ({"group_id": "h", "size": 10**9}, "group 'h' has size 1000000000"),
        ({"group_id": "h", "sampling": [{"seed": 1}]}, "sampling must be a list of types.SamplingInfo"),
    ],
)
def test_a_group_that_no_reader_would_take_is_refused(
    tmp_path: Path, begin: dict[str, Any], message: str
) -> None:
    with Recorder(tmp_path) as recorder:
        with recorder.group("g", 2) as group:
            group.finish(0, 1.0)
        with (
            pytest.raises(SelectiveRolloutError, match=message),
            recorder.group(**{"size": 2, **begin}),
        ):
            pass
    assert [recorded.group.id for recorded in read_groups(tmp_path)] == ["g"]


def test_a_file_that_is_appended_to_keeps_its_group_ids(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with Recorder(path) as recorder:
        with recorder.group("ended", 2) as group:
            group.finish(0, 1.0)
        with suppress(KeyboardInterrupt), recorder.group("left", 2):
            raise KeyboardInterrupt
    with path.open("a") as file:
        file.write('{"type":"group","gro')
    with Recorder(path) as recorder:
        with pytest.raises(GroupError, match="group 'ended' was recorded before"), recorder.group("ended", 2):
            pass
        with recorder.group("left", 2) as group:
            group.finish(0, 0.0)
    assert [recorded.group.id for recorded in read_groups(path)] == ["ended", "left"]


def test_numpy_scalars_are_plain_values(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder, recorder.group("g", 2, metadata={"level": np.int64(3)}) as group:
        group.step(np.int64(1), np.str_("look"))  # type: ignore[arg-type]
    [recorded] = read_groups(tmp_path)
    assert recorded.group.metadata == {"level": 3}
    assert [(r.index, r.actions) for r in recorded.group.rollouts] == [(1, ("look",))]


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
