"""What the groups of a training run share: rule, schedule, history, skips, alarm, state."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selective_rollout.engine.rule import AuditAlarmWarning, UncertifiedGateWarning, WorkloadWarning
from selective_rollout.engine.training import TrainingGate
from selective_rollout.errors import ConfigError
from selective_rollout.gate.certificate import Certificate, Workload
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.gate_file import write_gate_file
from selective_rollout.gate.history import PromptHistory
from selective_rollout.gate.schedule import AuditedController, linear
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder

RULE = GateConfig(start_step=2, tau=0.5)
HISTORY_RULE = GateConfig(start_step=2, tau=0.5, history_mixed=4)


def enforcing(rule: GateConfig = RULE, **settings: object) -> TrainingGate:
    return TrainingGate(rule, mode="enforce", certified=True, **settings)  # type: ignore[arg-type]


def play(gate: TrainingGate, name: str, rewards: tuple[object, ...], *, task: str | None = None) -> bool:
    """A group of look-alikes; tells whether it was cut."""
    group = gate.open(name, len(rewards), task_id=task)
    for step in range(3):
        for rollout in range(group.size):
            if not group.stopped:
                group.step(rollout, f"a{step}")
    if not group.stopped:
        for rollout in range(group.size):
            group.finish(rollout)
    return not group.close(rewards).trainable


def play_all(gate: TrainingGate, count: int) -> None:
    """So many wrong cuts, but for the audits."""
    for i in range(count):
        play(gate, f"g{i}", (1, 0))


def gate_file(folder: Path, **changes: object) -> Path:
    values = {
        "rule": RULE,
        "alpha": 0.1,
        "delta": 0.05,
        "n_signal": 60,
        "false_cuts": 0,
        "cuts": 50,
        "groups": 200,
        "grid": "0.5",
        "choose_share": 0.4,
        "split_seed": 0,
        **changes,
    }
    write_gate_file(folder / "gate.toml", Certificate(**values))  # type: ignore[arg-type]
    return folder / "gate.toml"


def test_a_schedule_follows_progress_and_never_passes_the_rule() -> None:
    gate = enforcing(schedule=linear(0.9, 0.1))
    taus = []
    for progress in (0.0, 0.5, 0.75, 1.0):
        gate.at(progress=progress)
        taus.append(gate.tau)
    assert taus == pytest.approx([0.5, 0.5, 0.3, 0.1])


def test_a_callable_schedule_is_held_to_the_range() -> None:
    gate = enforcing(schedule=lambda progress: 2.0)
    with pytest.raises(ConfigError, match=r"tau must be a number in \[0, 1\], not 2.0"):
        gate.open("g", 2)


def test_the_controller_learns_from_audits_only() -> None:
    controller = AuditedController(target=0.1, ceiling=0.5, gain=0.1)
    gate = enforcing(schedule=controller, audit_rate=0.5)
    for i in range(20):
        play(gate, f"g{i}", (1, 0))
    assert gate.tau < 0.5
    lowest = gate.tau
    play(gate, "flat", (1, 1))
    assert gate.tau == lowest


def test_a_prompt_of_mixed_rewards_is_not_cut_and_one_of_equal_rewards_is() -> None:
    gate = enforcing(HISTORY_RULE, history=PromptHistory())
    assert not play(gate, "g0", (1, 1), task="even")
    assert not play(gate, "g1", (1, 0), task="odd")
    play(gate, "g2", (1, 1), task="even")
    play(gate, "g3", (1, 1), task="odd")
    assert play(gate, "g4", (1, 1), task="even")
    assert not play(gate, "g5", (1, 1), task="odd")


def test_rewards_that_stand_in_for_a_cut_group_never_enter_the_history() -> None:
    history = PromptHistory()
    gate = enforcing(history=history)
    assert play(gate, "g", (0, 0), task="p")
    assert history.last("p", 4) == ()


def test_skipping_leaves_a_way_back() -> None:
    gate = enforcing(GateConfig(start_step=9), history=PromptHistory(), skip_probability=0.5, skip_last=2)
    assert not gate.skips("p", "first")
    play(gate, "g", (1, 1), task="p")
    skips = [gate.skips("p", f"s{i}") for i in range(60)]
    assert 15 < sum(skips) < 45
    assert gate.meter.skipped == sum(skips)
    play(gate, "h", (1, 0), task="p")
    assert not any(gate.skips("p", f"t{i}") for i in range(20))


def test_nothing_is_skipped_while_observing() -> None:
    history = PromptHistory()
    history.record("p", "g", (1, 1))
    gate = TrainingGate(RULE, history=history, skip_probability=0.9, skip_last=2)
    assert not any(gate.skips("p", f"s{i}") for i in range(20))


def test_the_alarm_turns_the_gate_off(tmp_path: Path) -> None:
    gate = TrainingGate(gate_file(tmp_path), mode="enforce", audit_rate=0.2)
    with pytest.warns(AuditAlarmWarning, match="the gate is off from here on"):
        cuts = [play(gate, f"g{i}", (1, 0)) for i in range(60)]
    assert any(cuts)
    assert not any(cuts[-15:])
    assert not gate.enforcing


def test_groups_that_ran_on_because_the_gate_was_off_are_not_scaled_by_the_audit_rate(tmp_path: Path) -> None:
    gate = TrainingGate(gate_file(tmp_path), mode="enforce", audit_rate=0.5)
    with pytest.warns(AuditAlarmWarning):
        play_all(gate, 40)
    assert gate.meter.counts is not None
    before = gate.meter.counts.audited_signal
    play(gate, "after", (1, 0))
    assert gate.meter.counts.audited_signal == before


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    path = gate_file(tmp_path, alpha=0.45)

    def make() -> TrainingGate:
        return TrainingGate(
            path,
            mode="enforce",
            audit_rate=0.2,
            history=PromptHistory(),
            schedule=AuditedController(target=0.1, ceiling=0.5, gain=0.01),
        )

    straight, first = make(), make()
    for i in range(6):
        play(straight, f"g{i}", (1, 0), task="p")
        play(first, f"g{i}", (1, 0), task="p")
    second = make()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for i in range(6, 9):
        play(straight, f"g{i}", (1, 0), task="p")
        play(second, f"g{i}", (1, 0), task="p")
    assert second.state_dict() == straight.state_dict()
    assert second.tau < 0.5


@pytest.mark.parametrize(
    "later",
    [
        lambda: enforcing(RULE, history=PromptHistory(), audit_rate=0.5),
        lambda: enforcing(HISTORY_RULE, history=PromptHistory(), audit_rate=0.25),
        lambda: TrainingGate(HISTORY_RULE, history=PromptHistory()),
    ],
    ids=["rule", "audit rate", "mode"],
)
def test_under_other_settings_only_the_history_goes_on(later: Callable[[], TrainingGate]) -> None:
    before = enforcing(HISTORY_RULE, history=PromptHistory(), audit_rate=0.5)
    play(before, "g", (1, 1), task="p")
    gate = later()
    with pytest.warns(
        UserWarning, match="another rule, mode or audit rate: the gate's totals and alarm start"
    ):
        gate.load_state_dict(before.state_dict())
    assert gate.meter.groups == 0
    assert gate.history is not None
    assert gate.history.last("p", 4) == (1, 1)


def test_an_alarm_that_rang_for_another_rule_says_nothing_of_this_one() -> None:
    rung = {**enforcing().state_dict(), "fallen_back": True}
    gate, other = enforcing(), enforcing(GateConfig(start_step=2, tau=0.25))
    gate.load_state_dict(rung)
    with pytest.warns(UserWarning, match="another rule"):
        other.load_state_dict(rung)
    assert (gate.enforcing, other.enforcing) == (False, True)


def test_the_totals_of_workers_that_are_gone_are_taken_over() -> None:
    first, second = enforcing(), enforcing()
    play(first, "a", (1, 1))
    play(second, "b", (1, 1))
    gate = enforcing()
    gate.load_state_dict(first.state_dict(), gone=[second.state_dict()])
    assert gate.meter.groups == 2


def test_a_state_that_cannot_be_used_is_refused() -> None:
    gate = enforcing()
    with pytest.raises(ConfigError, match="state of format 9 is not 2"):
        gate.load_state_dict({**gate.state_dict(), "training_gate_version": 9})
    gate.open("g", 2).close()
    with pytest.raises(ConfigError, match="before the first group"):
        gate.load_state_dict(gate.state_dict())


def test_a_group_may_go_by_another_name_in_the_trace(tmp_path: Path) -> None:
    for run in "ab":  # one restarted: the same ids, and so the same audits
        with Recorder(tmp_path) as recorder:
            gate = enforcing(recorder=recorder)
            gate.open("g", 2, task_id="t", recorded_as=f"g@{run}").close()
    groups = {(each.group.id, each.group.task_id) for each in read_groups(tmp_path)}
    assert groups == {("g@a", "t"), ("g@b", "t")}


def test_workers_share_what_they_know_of_the_prompts() -> None:
    left, right = (enforcing(HISTORY_RULE, history=PromptHistory()) for _ in range(2))
    play(left, "l", (1, 1), task="p")
    play(right, "r", (1, 1), task="p")
    states = [left.state_dict(), right.state_dict()]
    left.merge_history(states)
    right.merge_history(states)
    assert play(left, "l2", (1, 1), task="p")
    assert play(right, "r2", (1, 1), task="p")


def test_news_holds_what_was_not_told_before() -> None:
    left, right = (enforcing(HISTORY_RULE, history=PromptHistory()) for _ in range(2))
    play(left, "l1", (1, 1), task="p")
    assert list(left.news()["history"]["tasks"]) == ["p"]
    play(left, "l2", (0, 1), task="q")
    news = left.news()
    assert list(news["history"]["tasks"]) == ["q"]
    right.merge_history([news])
    assert right.history is not None
    assert right.history.last("q", 4) == (0, 1)
    assert list(left.news()["history"]["tasks"]) == []


def test_the_alarms_of_many_workers_ring_falsely_as_rarely_as_one(tmp_path: Path) -> None:
    gate = TrainingGate(gate_file(tmp_path), mode="enforce", audit_rate=0.5)
    for _ in range(2):
        gate.among(4)
        assert gate.alarm is not None
        assert gate.alarm.level == pytest.approx(0.0125)
    enforcing().among(4)


def test_one_alarm_turns_every_worker_off() -> None:
    left, right = enforcing(), enforcing()
    left.merge_history([{**right.state_dict(), "fallen_back": True}])
    assert not left.enforcing


def test_the_audited_groups_are_the_same_on_every_worker_and_in_every_run() -> None:
    cut = [
        {name for name in map(str, range(40)) if play(enforcing(audit_rate=0.5), name, (1, 1))} for _ in "ab"
    ]
    assert cut[0] == cut[1]
    assert 8 < len(cut[0]) < 32


def test_the_workload_is_held_against_the_size_of_the_groups(tmp_path: Path) -> None:
    path = gate_file(tmp_path, workload=Workload(group_size=4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gate = TrainingGate(path, mode="enforce")
        gate.open("a", 4).close()
    with pytest.warns(WorkloadWarning, match="group_size: running 2, certified on 4"):
        gate.open("b", 2).close()


def test_an_uncertified_gate_says_so_once() -> None:
    with pytest.warns(UncertifiedGateWarning):
        TrainingGate(RULE, mode="enforce")


@pytest.mark.parametrize(
    ("rule", "settings", "message"),
    [
        (GateConfig(outcome="survivor"), {}, "gate.outcome must be drop in training, not survivor"),
        (RULE, {"skip_probability": 1.0}, r"skip_probability must be in \[0, 1\), not 1.0"),
        (RULE, {"skip_probability": 0.5}, "needs a history"),
        (
            RULE,
            {"skip_probability": 0.5, "history": PromptHistory()},
            "skip_last or a rule with history_mixed",
        ),
        (HISTORY_RULE, {}, r"pass history=PromptHistory\(\)"),
        (RULE, {"audit_rate": 2.0}, "audit_rate"),
        (RULE, {"mode": "on"}, "mode"),
        ({"tau": 0.1}, {}, "the rule must be a GateConfig or path of a gate.toml, not {'tau': 0.1}"),
        (RULE, {"recorder": "runs/mine"}, r"recorder must be a Recorder\(.*\), not 'runs/mine'"),
        (RULE, {"history": True}, r"history must be a PromptHistory\(\), not True"),
        (RULE, {"schedule": 0.1}, r"schedule must be a function of progress, such as linear\(.*\), not 0.1"),
    ],
)
def test_settings_that_cannot_work_are_refused(rule: Any, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingGate(rule, **settings)  # type: ignore[arg-type]
