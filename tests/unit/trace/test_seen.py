"""What a stopped group tells the audits: nothing, whatever stopped it, live and read back from its trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selective_rollout.analysis.audited import audit_counts
from selective_rollout.engine.ledger import Ledger
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.watch import seen_of as seen_live
from selective_rollout.gate.audit import Seen
from selective_rollout.gate.config import GateConfig
from selective_rollout.trace.group_log import GroupLog
from selective_rollout.trace.reader import RecordedGroup, read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.trace.seen import seen_of

RULE = GateConfig(start_step=2)


def recorded(folder: Path, **end: Any) -> RecordedGroup:
    """Two of three members were scored, differently, before something stopped the third."""
    with Recorder(folder / "trace.jsonl") as recorder:
        log = GroupLog(recorder.write, "g")
        log.begin(size=3, task_id="g", mode="enforce", audit=False)
        for member, reward in enumerate((0.0, 1.0)):
            log.step(member, "a")
            log.finish(member, reward)
        log.step(2, "a")
        log.cut(2)
        log.end(**end)
    (group,) = read_groups(folder)
    return group


@pytest.mark.parametrize(
    "end",
    [
        {"outcome": "drop", "cut_at": 2},
        {"outcome": "drop", "stream_cut_at": 120},
        {"outcome": "vote", "answer": "x"},
    ],
    ids=["by the rule", "inside a step", "by a vote"],
)
def test_whatever_stopped_a_group_left_it_unobserved(tmp_path: Path, end: dict[str, Any]) -> None:
    group = recorded(tmp_path, **end)
    assert seen_of(group, RULE) == Seen(cut=True, would_cut=False, zero_variance=None)
    places = {name: end.get(name) for name in ("cut_at", "stream_cut_at")}
    outcome = GroupOutcome(group.group, (), Ledger(), cut_as=end["outcome"], **places)
    assert seen_live(outcome, RULE.reward_tolerance) == seen_of(group, RULE)
    counts = audit_counts([group], 0.5, RULE)
    assert (counts.unobserved, counts.kept_signal, counts.false_cut_rate) == (1, 0, None)
