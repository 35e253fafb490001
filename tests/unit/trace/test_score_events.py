"""What a score reads reaches the gate through the log, and the trace through the decision."""

from __future__ import annotations

from pathlib import Path

from selective_rollout.analysis.replay import replay
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.group import GroupGate
from selective_rollout.gate.score import TwoSidedScore
from selective_rollout.trace.group_log import GroupLog, observation_hash
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.trace.schema import Event
from selective_rollout.types import Step

SCORE = TwoSidedScore(
    ("observation_novelty", "error_share"), (0.5, 0.5), (1.0, 1.0), (-1.0, 1.0), (-1.0, 0.0), 0.0, 0.0
)
RULE = GateConfig(start_step=2, tau=0.9, score=SCORE)


def test_a_recorded_decision_holds_the_features_and_replays(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder, recorder.group("g", 2, gate=RULE) as log:
        for _ in range(2):
            for member in range(2):
                log.step(member, "look", observation="nothing new", is_error=member == 1)
        for member in range(2):
            log.finish(member, 0.0)
    [recorded] = read_groups(tmp_path)
    [decision] = recorded.decisions
    assert decision.fires
    assert decision.facts is not None
    assert decision.facts.features == (0.5, 0.5)
    assert decision.p_signal == SCORE.p_signal((0.5, 0.5))
    [check] = replay(recorded.group, RULE).checks
    assert check.distance == decision.p_signal


def test_a_plain_rule_leaves_no_trace_of_scores(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder:
        with recorder.group("g", 2, gate=GateConfig(start_step=1)) as log:
            log.step(0, "a", observation="x")
            log.step(1, "a", observation="x")
    assert "features" not in (tmp_path / "t.jsonl").read_text()


def test_steps_written_ahead_are_told_with_their_own_replies() -> None:
    events: list[Event] = []
    gate = GroupGate(RULE, 2)
    log = GroupLog(events.append, "g", gate=gate)
    for member in range(2):
        for index, (observation, error) in enumerate([("one", True), ("two", False)], start=1):
            step = Step(index, "go", observation_hash=observation_hash(observation), is_error=error)
            log.write_step(member, step)
    for member in range(2):
        log.report(member, "go")
        log.finish(member, last_action="go")
    [decision] = gate.checks
    assert decision.facts is not None
    assert decision.facts.features == (1.0, 0.5)


def test_a_report_without_a_written_step_says_nothing_of_the_reply() -> None:
    gate = GroupGate(RULE, 2)
    log = GroupLog([].append, "g", gate=gate)
    for _ in range(2):
        log.report(0, "go")
        log.report(1, "go")
    [decision] = gate.checks
    assert decision.facts is not None
    assert decision.facts.features == (None, None)
