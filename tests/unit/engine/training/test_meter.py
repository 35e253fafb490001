"""What a training run has spent and saved."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.engine.training import Meter, TrainingGate
from selective_rollout.gate.config import GateConfig
from selective_rollout.types import Usage

RULE = GateConfig(start_step=2, tau=0.5)
G = 2


def play(gate: TrainingGate, name: str, *, alike: bool, rewards: tuple[object, ...], length: int = 5) -> None:
    """One group in lockstep; each step costs 10 tokens."""
    group = gate.open(name, G)
    for step in range(length):
        for rollout in range(G):
            if not group.stopped:
                action = f"a{step}" if alike else f"a{step}-{rollout}"
                group.step(rollout, action, usage=Usage(completion=10))
    if not group.stopped:
        for rollout in range(G):
            group.finish(rollout)
    group.close(rewards)


def enforcing(audit_rate: float) -> TrainingGate:
    return TrainingGate(RULE, mode="enforce", certified=True, audit_rate=audit_rate)


def test_observe_measures_what_would_have_been_saved() -> None:
    gate = TrainingGate(RULE)
    play(gate, "flat", alike=True, rewards=(1, 1))
    play(gate, "wrong", alike=True, rewards=(1, 0))
    play(gate, "mixed", alike=False, rewards=(1, 0))
    metrics = gate.meter.metrics()
    assert (metrics["gate/groups"], metrics["gate/cut"], metrics["gate/flat"]) == (3, 0, 1)
    assert (metrics["gate/steps"], metrics["gate/tokens"]) == (30, 300)
    assert (metrics["gate/steps_avoided"], metrics["gate/tokens_avoided"]) == (12, 120)
    assert "gate/steps_avoided_low" not in metrics
    assert metrics["gate/cut_rate"] == pytest.approx(2 / 3)
    assert metrics["gate/false_cut_rate"] == 0.5
    assert metrics["gate/wrong_cut_share"] == 0.5
    assert metrics["gate/efficiency"] == pytest.approx((1 - 0.5) / (1 - 12 / 30))
    assert metrics["gate/zero_advantage_share"] == pytest.approx(1 / 3)


def test_rollouts_that_broke_are_counted() -> None:
    gate = TrainingGate(RULE)
    group = gate.open("g", G)
    group.fail(0, "timeout")
    for rollout in range(1, G):
        group.finish(rollout)
    group.close((None, *[1] * (G - 1)))
    assert gate.meter.metrics()["gate/failed"] == 1


def test_without_audits_what_cuts_saved_is_unknown_and_left_out() -> None:
    gate = enforcing(0.0)
    play(gate, "kept", alike=False, rewards=(1, 0))
    assert gate.meter.metrics()["gate/steps_avoided"] == 0
    play(gate, "cut", alike=True, rewards=(1, 0))
    metrics = gate.meter.metrics()
    assert metrics["gate/cut"] == 1
    assert metrics["gate/gradient_factor"] == 2
    missing = ("steps_avoided", "tokens_avoided", "efficiency", "false_cut_rate", "wrong_cut_share")
    assert not [name for name in missing if f"gate/{name}" in metrics]


def test_audits_estimate_what_the_cuts_saved() -> None:
    gate = enforcing(0.5)
    for i in range(40):
        play(gate, f"g{i}", alike=True, rewards=(1, 1), length=4 + i % 2)
    meter = gate.meter
    assert meter.cut + meter.would_cut == 40
    assert meter.cut > 5 < meter.would_cut
    avoided = meter.avoided_steps
    assert avoided is not None
    assert avoided.interval is not None
    assert not avoided.measured
    assert avoided.interval.low < avoided.value < avoided.interval.high
    assert meter.cut * 4 <= avoided.value <= meter.cut * 6


def test_before_the_first_group_nothing_is_known() -> None:
    metrics = Meter(0.1).metrics()
    assert set(metrics) == {
        f"gate/{name}"
        for name in ("groups", "skipped", "cut", "flat", "failed", "steps", "tokens", "overrun")
    }


def test_tokens_nobody_counted_are_left_out() -> None:
    gate = TrainingGate(RULE)
    group = gate.open("g", 2)
    for step in range(3):
        for rollout in range(2):
            group.step(rollout, f"a{step}")
    group.close()
    metrics = gate.meter.metrics()
    assert metrics["gate/steps_avoided"] == 2
    assert not [name for name in metrics if "tokens" in name or name == "gate/overrun"]


KINDS = st.lists(
    st.tuples(st.booleans(), st.sampled_from([(1, 1), (1, 0), (None, 1)]), st.integers(1, 5)), max_size=12
)


@given(left=KINDS, right=KINDS, rate=st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=60)
def test_totals_of_two_workers_are_those_of_one(left: list, right: list, rate: float) -> None:  # type: ignore[type-arg]
    def run(groups: list) -> Meter:  # type: ignore[type-arg]
        gate = enforcing(rate)
        for name, (alike, rewards, length) in groups:
            play(gate, name, alike=alike, rewards=rewards, length=length)
        return gate.meter

    named = [(f"g{i}", kind) for i, kind in enumerate([*left, *right])]
    whole, first, second = run(named), run(named[: len(left)]), run(named[len(left) :])
    first.merge(second)
    assert first.to_dict() == whole.to_dict()
    assert Meter.from_dict(json.loads(json.dumps(whole.to_dict()))).metrics() == whole.metrics()
