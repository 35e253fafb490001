"""Reading traces: strict, with file:line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from selective_rollout.errors import TraceError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import judge
from selective_rollout.gate.group import GroupGate
from selective_rollout.trace.reader import ReadReport, read_events, read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.trace.schema import Event, json_schema
from selective_rollout.types import RolloutStatus, SamplingInfo, Usage

HEADER = '{"type":"header","trace_version":1,"producer":"p","created":"c","writer":"w"}'
GROUP = '{"type":"group","group":"g","task_id":"t","size":2}'


def trace(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path: Path) -> list[str]:
    return [recorded.group.id for recorded in read_groups(path)]


@pytest.mark.parametrize(
    ("lines", "line", "words"),
    [
        (['{"actions": ["a"]}'], 1, "not an event of a trace .* to read another format use `import`"),
        (["not json"], 1, "not an event of a trace"),
        ([GROUP], 1, "a trace starts with a header"),
        ([HEADER.replace(":1,", ":99,")], 1, "trace_version 99 is not 1"),
        ([HEADER, '{"type":"step","group":"g","rollout":0,"step":1,"action":"a"}'], 2, "which has not begun"),
        ([HEADER, GROUP, GROUP], 3, "begins twice"),
        ([HEADER, GROUP, '{"type":"group_end","group":"g"}', GROUP], 4, "has already ended"),
        (
            [HEADER, GROUP, '{"type":"step","group":"g","rollout":5,"step":1,"action":"a"}'],
            3,
            "has 2 rollouts; no rollout 5",
        ),
        (
            [HEADER, GROUP, '{"type":"step","group":"g","rollout":0,"step":2,"action":"a"}'],
            3,
            "step 2 of rollout 0 of group 'g' follows step 0",
        ),
        (
            [HEADER, GROUP, *['{"type":"rollout_end","group":"g","rollout":0,"status":"finished"}'] * 2],
            4,
            "rollout 0 of group 'g' has already ended",
        ),
        (
            [HEADER, GROUP, '{"type":"decision","group":"g","step":1,"fires":true,"reason":"mood"}'],
            3,
            "unknown reason 'mood'",
        ),
        ([HEADER, '{"type":"group","group":"g","task_id":"t","size":0}'], 2, "has size 0"),
        ([HEADER, '{"type":"group","group":"g","task_id":"t","size":1000000000}'], 2, "from 1 to 100,000"),
        ([HEADER, "broken", GROUP], 2, "not an event of a trace"),
        ([HEADER, "broken", "broken"], 2, "not an event of a trace"),
        ([HEADER, GROUP.replace("}", ',"colour":"red"}'), GROUP], 2, "unknown field `colour`"),
        ([HEADER, GROUP.replace("2", '"2"'), GROUP], 2, "Expected `int`, got `str`"),
    ],
)
def test_bad_lines_are_named_with_file_and_line(
    tmp_path: Path, lines: list[str], line: int, words: str
) -> None:
    path = trace(tmp_path, *lines)
    with pytest.raises(TraceError, match=words) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_missing_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file or folder"):
        read(tmp_path / "nowhere.jsonl")
    with pytest.raises(TraceError, match=r"holds no \.jsonl trace"):
        read(tmp_path)


def test_folders_and_several_writers_are_one_trace(tmp_path: Path) -> None:
    for rank in (0, 1):
        with Recorder(tmp_path, rank=rank) as recorder, recorder.group(f"g{rank}", 2) as group:
            group.step(0, "a")
    assert read(tmp_path) == ["g0", "g1"]
    assert [r.group.id for r in read_groups([tmp_path, tmp_path.parent / tmp_path.name][:1])] == ["g0", "g1"]


def test_groups_come_as_they_end_and_memory_does_not_hold_the_rest(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder:
        for number in range(50):
            with recorder.group(f"g{number}", 2) as group:
                group.step(0, "a")
    groups: Iterator[object] = read_groups(tmp_path)
    seen: list[int] = []
    report = ReadReport()
    next(iter(read_groups(tmp_path, report=report, on_bytes=seen.append)))
    assert report.lines == 4, "one group needs only its own lines"
    assert seen == sorted(seen)
    assert sum(1 for _ in groups) == 50


def test_the_last_attempt_counts_and_the_others_are_abandoned(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with Recorder(path) as recorder:
        with pytest.raises(KeyboardInterrupt), recorder.group("g", 2) as group:
            group.step(0, "a", usage=Usage(completion=5, source="server"))
            group.step(1, "b", usage=Usage(completion=6, source="server"))
            raise KeyboardInterrupt
        with recorder.group("g", 2, attempt=2) as group:
            group.step(0, "c", usage=Usage(completion=7, source="server"))
    [recorded] = read_groups(path)
    assert recorded.group.attempt == 2
    assert [r.actions for r in recorded.group.rollouts] == [("c",)]
    assert recorded.abandoned == 11


def test_another_writer_may_take_up_the_attempt_of_a_killed_one(tmp_path: Path) -> None:
    step = '{"type":"step","group":"g","rollout":0,"step":1,"action":"a"}'
    path = trace(tmp_path, HEADER, GROUP, step, HEADER, GROUP, step.replace('"a"', '"b"'))
    [recorded] = read_groups(path)
    assert recorded.group.rollouts[0].actions == ("b",)


def test_an_interrupted_rollout_is_still_running(tmp_path: Path) -> None:
    path = trace(tmp_path, HEADER, GROUP, '{"type":"step","group":"g","rollout":1,"step":1,"action":"a"}')
    [recorded] = read_groups(path)
    assert recorded.end is None
    assert [(r.index, r.status) for r in recorded.group.rollouts] == [(1, RolloutStatus.RUNNING)]


def test_recorded_decisions_replay_from_their_own_event(tmp_path: Path) -> None:
    rule = GateConfig(start_step=2, check_every=1, history_mixed=2)
    gate = GroupGate(
        rule, 3, group_id="g", history=[1.0, 1.0], sampling=[SamplingInfo(seed=i) for i in range(3)]
    )
    with Recorder(tmp_path / "t.jsonl") as recorder, recorder.group("g", 3, gate=gate) as group:
        for rollout, actions in enumerate(("axx", "ayx", "azx")):
            for action in actions:
                group.step(rollout, action)
            group.finish(rollout, reward=float(rollout == 0), answer="desk")
    [recorded] = read_groups(tmp_path)
    assert recorded.decisions == gate.checks
    assert len(recorded.decisions) >= 2
    for decision in recorded.decisions:
        assert decision.facts is not None
        assert judge(rule, decision.facts) is decision.reason


def test_a_line_of_absurd_length_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selective_rollout.trace.reader.MAX_LINE_BYTES", 200)
    path = trace(tmp_path, HEADER, GROUP, json.dumps({"type": "step", "action": "x" * 500}))
    with pytest.raises(TraceError, match=r":3: the line is longer than"):
        read(path)


def test_two_late_rewards_for_one_rollout_contradict_each_other(tmp_path: Path) -> None:
    late = '{"type":"reward","group":"g","rollout":0,"reward":1.0}'
    path = trace(tmp_path, HEADER, GROUP, late, late)
    with pytest.raises(TraceError, match=r":4: a second late reward for group 'g'"):
        read(path)


def test_every_event_fits_the_exported_schema(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder:
        with recorder.group("g", 2, gate=GateConfig(start_step=1)) as group:
            group.step(0, "a")
            group.step(1, "a", usage=Usage(completion=1, source="client"))
            group.finish(0, 1.0)
            group.fail(1, "timeout")
        group.reward(0, 0.5)
    schema = json_schema()
    kinds = {name: definition.get("properties", {}) for name, definition in schema["$defs"].items()}
    for line in (tmp_path / "t.jsonl").read_text().splitlines():
        event = json.loads(line)
        [definition] = [d for d in kinds.values() if d.get("type", {}).get("enum") == [event["type"]]]
        assert set(event) <= set(definition)
        assert msgspec.json.decode(line, type=Event)


def test_events_can_be_read_one_by_one(tmp_path: Path) -> None:
    path = trace(tmp_path, HEADER, GROUP)
    assert [where for where, _ in read_events(path)] == [f"{path}:1", f"{path}:2"]
