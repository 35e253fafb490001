"""An enforcing run that falls back to observing once its audits contradict the certificate."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from selective_rollout.engine.batch import run_groups
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.resume import resume_point
from selective_rollout.engine.rule import AuditAlarmWarning
from selective_rollout.engine.runner import Workshop
from selective_rollout.env.base import Observation, StepResult
from selective_rollout.errors import ConfigError
from selective_rollout.gate.audit import Alarm
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.gate.score import TwoSidedScore
from selective_rollout.policy.base import Completion, Message, RequestInfo
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Task


class Lookalike:
    """Everybody does the same, and every other rollout of a "trap" is rewarded all the same."""

    def __init__(self, task: Task, rollout: int) -> None:
        self.reward = float(task.id.startswith("trap") and rollout % 2)
        self.steps = 0

    def start(self) -> Observation:
        return Observation("begin")

    def step(self, action: str) -> StepResult:
        self.steps += 1
        return StepResult("go on", reward=self.reward, terminated=self.steps == 4, is_error=False)

    def close(self) -> None: ...


class Parrot:
    async def complete(self, messages: Sequence[Message], info: RequestInfo) -> Completion:
        return Completion({"role": "assistant", "content": "go"})

    async def aclose(self) -> None: ...


def shop(gate: GateConfig | None = None, recorder: Recorder | None = None, **config: object) -> Workshop:
    settings = {"group_size": 2, "mode": "enforce", "audit_rate": 0.5, "concurrency": 2, **config}
    return Workshop(
        Parrot(),
        Lookalike,
        gate or GateConfig(start_step=2),
        RunConfig(**settings),
        recorder,  # type: ignore[arg-type]
    )


def tasks(kind: str, n: int) -> Iterator[Task]:
    return (Task(f"{kind}{i}", "prompt") for i in range(n))


async def run(kind: str, n: int, made: Workshop, **options: object) -> list[GroupOutcome]:
    stream = run_groups(tasks(kind, n), made, certified=True, **options)  # type: ignore[arg-type]
    return [outcome async for outcome in stream]


async def test_wrong_cuts_ring_and_the_gate_only_observes(tmp_path: Path) -> None:
    alarm = Alarm(0.1, 0.5)
    with Recorder(tmp_path / "t.jsonl") as recorder:
        with pytest.warns(AuditAlarmWarning, match="the gate is off from here on: alarm at e-value 20"):
            outcomes = await run("trap", 60, shop(recorder=recorder), alarm=alarm)
    assert alarm.rung
    assert any(outcome.cut_as for outcome in outcomes[:20])
    assert not any(outcome.cut_as for outcome in outcomes[-20:])
    modes = [recorded.begin.mode for recorded in read_groups(tmp_path)]
    assert modes[0] == "enforce"
    assert modes[-1] == "observe"


@pytest.mark.parametrize("ended", [1, 5, 12, 59])
async def test_a_resumed_run_rings_where_an_uninterrupted_one_does(tmp_path: Path, ended: int) -> None:
    whole, parts = Alarm(0.1, 0.5), Alarm(0.1, 0.5)
    with Recorder(tmp_path / "whole" / "t.jsonl") as recorder, pytest.warns(AuditAlarmWarning):
        await run("trap", 60, shop(recorder=recorder), alarm=whole, capacity=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AuditAlarmWarning)
        with Recorder(tmp_path / "parts" / "1.jsonl") as recorder:
            first = run_groups(
                tasks("trap", 60), shop(recorder=recorder), certified=True, alarm=Alarm(0.1, 0.5), capacity=2
            )
            for _ in range(ended):
                await anext(first)
            await first.aclose()
        point = resume_point([tmp_path / "parts"], replayable=False)
        assert len(point.done) == ended
        with Recorder(tmp_path / "parts" / "2.jsonl") as recorder:
            await run("trap", 60, shop(recorder=recorder), alarm=parts, capacity=2, resume=point)
    modes, resumed = (
        {recorded.group.id: recorded.begin.mode for recorded in read_groups(tmp_path / name)}
        for name in ("whole", "parts")
    )
    assert resumed == modes
    assert set(modes.values()) == {"enforce", "observe"}
    assert parts.describe() == whole.describe()


async def test_an_alarm_that_rings_from_the_trace_says_so(tmp_path: Path) -> None:
    with Recorder(tmp_path / "1.jsonl") as recorder:  # nobody listens to the first part
        await run("trap", 60, shop(recorder=recorder))
    alarm = Alarm(0.1, 0.5)
    with pytest.warns(AuditAlarmWarning, match="the gate is off from here on"):
        outcomes = await run(
            "trap", 70, shop(), alarm=alarm, resume=resume_point([tmp_path], replayable=True)
        )
    assert len(outcomes) == 10
    assert all(outcome.cut_as is None and not outcome.audited for outcome in outcomes)


async def test_right_cuts_never_ring() -> None:
    alarm = Alarm(0.1, 0.5)
    outcomes = await run("same", 40, shop(), alarm=alarm)
    assert not alarm.rung
    assert alarm.counts.unobserved == sum(outcome.cut_as is not None for outcome in outcomes) > 0
    assert alarm.counts.audited_zero_variance == sum(outcome.audited for outcome in outcomes) > 0


async def test_an_alarm_that_rang_before_leaves_the_gate_off() -> None:
    alarm = Alarm(0.1, 0.5)
    with pytest.warns(AuditAlarmWarning):
        await run("trap", 60, shop(), alarm=alarm)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcomes = await run("trap", 5, shop(), alarm=alarm)
    assert all(outcome.cut_as is None and not outcome.audited for outcome in outcomes)


async def test_an_observing_run_feeds_no_alarm() -> None:
    alarm = Alarm(0.1, 0.5)
    await run("trap", 20, shop(mode="observe"), alarm=alarm)
    assert alarm.e_value == 1.0


async def test_each_task_may_have_its_own_threshold() -> None:
    def tau_of(task: Task) -> float:
        return 0.0 if task.id.endswith("1") else 0.9

    outcomes = await run("same", 2, shop(audit_rate=0.0), tau_of=tau_of)
    cut = {outcome.group.id: outcome.cut_as for outcome in outcomes}
    assert cut == {"same0": "drop", "same1": None}
    assert outcomes[0].decisions[0].tau == 0.12, "clipped at the rule's"


async def test_a_score_reads_errors_observations_and_history() -> None:
    features = ("error_share", "observation_novelty", "history_p_zero_variance")
    ones = (1.0, 1.0, 1.0)
    rule = GateConfig(
        start_step=2, tau=0.9, score=TwoSidedScore(features, (0.0,) * 3, ones, ones, ones, 0.0, 0.0)
    )
    with pytest.raises(ConfigError, match="the gate's score reads the prompts' earlier rewards"):
        await run("same", 1, shop(rule))
    history = PromptHistory()
    history.record("same0", "before", [0.0, 0.0])
    [outcome] = await run("same", 1, shop(rule, audit_rate=0.0), history=history)
    facts = outcome.decisions[0].facts
    assert facts is not None
    assert facts.features == (0.0, 0.5, history.p_zero_variance("same0", 2))
    assert outcome.cut_as == "drop"
