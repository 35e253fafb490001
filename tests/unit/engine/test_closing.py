"""What came of a group, as its outcome and its record say it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from selective_rollout.engine.closing import decided, write_end
from selective_rollout.engine.hold import Verdict
from selective_rollout.engine.ledger import Ledger
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.group import GroupGate
from selective_rollout.gate.streaming import StreamGate, StreamRule
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder, log_of
from selective_rollout.types import Group

RULE = GateConfig(start_step=1, outcome="survivor")


def fired_gate() -> GroupGate:
    gate = GroupGate(RULE, 2, group_id="g")
    for rollout in (0, 1):
        gate.report(rollout, "look")
    return gate


@pytest.mark.parametrize(
    ("verdict", "cut_as", "cut_at", "would_cut_at"),
    [
        (Verdict(), None, None, 1),
        (Verdict(late_veto=True), None, None, 1),
        (Verdict(stopped=True, cut_at=1, survivor=0, answer="42"), "survivor", 1, None),
    ],
    ids=["observed", "vetoed late", "cut"],
)
def test_the_gate_and_the_control_settle_what_became_of_a_group(
    verdict: Verdict, cut_as: str | None, cut_at: int | None, would_cut_at: int | None
) -> None:
    found = decided(fired_gate(), verdict)
    assert (found["cut_as"], found["cut_at"], found["would_cut_at"]) == (cut_as, cut_at, would_cut_at)
    assert (found["survivor"], found["late_veto"]) == (verdict.survivor, verdict.late_veto)
    assert [decision.step for decision in found["decisions"]] == [1]
    assert (found["stream_decisions"], found["stream_would_cut_at"]) == ((), None)


def test_a_stream_gate_has_positions_of_its_own() -> None:
    gate = GroupGate(RULE, 2, group_id="g")
    stream = StreamGate(StreamRule(level="char", tau=0.5, start=2), RULE, 2, group_id="g")
    for rollout in (0, 1):
        stream.hear(rollout, "abc")
    observed, cut = (decided(gate, made, stream) for made in (Verdict(), Verdict(True, stream_cut_at=2)))
    assert (observed["stream_cut_at"], observed["stream_would_cut_at"]) == (None, 2)
    assert (cut["stream_cut_at"], cut["stream_would_cut_at"]) == (2, None)
    assert (observed["would_cut_at"], observed["decisions"]) == (None, ())


def test_the_record_ends_as_the_outcome_says(tmp_path: Path) -> None:
    gate = fired_gate()
    outcome = GroupOutcome(
        group=Group("g", 2, (), "t"),
        ledger=Ledger(abandoned=7),
        answer="42",
        **decided(gate, Verdict(stopped=True, cut_at=1, survivor=0)),
    )
    with Recorder(tmp_path / "t.jsonl") as recorder:
        for name, ended in (("g", outcome), ("h", replace(outcome, ledger=Ledger()))):
            log = log_of(recorder, name, gate=gate)
            log.begin(size=2, task_id=name)
            write_end(log, ended, error=None if name == "g" else "it broke")
    first, second = (recorded.end for recorded in read_groups(tmp_path))
    assert first is not None
    assert second is not None
    assert (first.outcome, first.cut_at, first.survivor, first.answer) == ("survivor", 1, 0, "42")
    assert (first.abandoned, first.error) == (7, None)
    assert (second.abandoned, second.error) == (None, "it broke")
