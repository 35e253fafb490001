"""An enforced gate of either integration goes off once its audits contradict the certificate."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.certified import claim_of
from tests.integration.walking_agents import PROMPT, World, same_way, scripted

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.rule import AuditAlarmWarning
from selective_rollout.env.base import Observation, StepResult
from selective_rollout.gate.audit import Alarm, Seen
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.gate_file import write_gate_file
from selective_rollout.integrations.langgraph import GroupResult, GroupRunner, build_graph
from selective_rollout.integrations.langgraph.outcome import GraphOutcome
from selective_rollout.testing import ScriptedPolicy, TutorialBrain
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Task

STEPS = 4
RULE = GateConfig(start_step=2, tau=0.2)
CONFIG = RunConfig(group_size=2, mode="enforce", audit_rate=0.5)
GROUPS = 40

RunGroup = Callable[[str], GraphOutcome]


class Trap:
    """Everybody is told the same, and every other rollout is rewarded."""

    def __init__(self, task: Task, rollout: int) -> None:
        self.reward, self.steps = float(rollout % 2), 0

    def start(self) -> Observation:
        return Observation("begin")

    def step(self, action: str) -> StepResult:
        self.steps += 1
        return StepResult("go on", reward=self.reward, terminated=self.steps == STEPS, is_error=False)

    def close(self) -> None: ...


def graph(gate: Path, recorder: Recorder) -> RunGroup:
    policy = ScriptedPolicy(TutorialBrain(1.0, steps=STEPS))
    built = build_graph(policy, environment=Trap, gate=gate, config=CONFIG, recorder=recorder)
    return lambda name: GroupResult.from_state(built.invoke({"prompt": "q", "group_id": name}))


def runner(gate: Path, recorder: Recorder) -> RunGroup:
    rewards = itertools.cycle([0.0, 1.0])
    agent = scripted(same_way, World())
    runs = GroupRunner(agent, gate=gate, config=CONFIG, recorder=recorder, reward=lambda state: next(rewards))
    return lambda name: runs.invoke(PROMPT, {"configurable": {"thread_id": name}})


@pytest.mark.parametrize("opened", [graph, runner])
def test_audits_that_contradict_the_certificate_switch_the_gate_off(
    opened: Callable[[Path, Recorder], RunGroup], tmp_path: Path
) -> None:
    claim = claim_of(RULE, alpha=0.05)
    write_gate_file(tmp_path / "gate.toml", claim)
    rang_after, outcomes = None, []
    with Recorder(tmp_path / "trace.jsonl") as recorder:
        run = opened(tmp_path / "gate.toml", recorder)
        for number in range(GROUPS):
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                outcomes.append(run(f"g{number}"))
            if any(warning.category is AuditAlarmWarning for warning in told):
                assert rang_after is None, "it is told once"
                rang_after = number
    assert rang_after is not None
    before, after = outcomes[: rang_after + 1], outcomes[rang_after + 1 :]
    audits = [outcome for outcome in before if outcome.audited]
    alarm = Alarm(claim.alpha, CONFIG.audit_rate)
    assert [alarm.add(Seen(cut=False, would_cut=True, zero_variance=False)) for _ in audits] == [False, True]
    assert all((outcome.cut_at is None) == outcome.audited for outcome in before)
    assert {(outcome.cut_at, outcome.would_cut_at, outcome.audited) for outcome in after} == {
        (None, 2, False)
    }
    modes = [recorded.begin.mode for recorded in read_groups(tmp_path / "trace.jsonl")]
    assert modes == ["enforce"] * len(before) + ["observe"] * len(after)
