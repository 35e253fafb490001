"""The watch over groups that a process runs one by one."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
from tests.certified import claim_of

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.ledger import Ledger
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.rule import AcceptedRule, AuditAlarmWarning
from selective_rollout.engine.watch import AuditWatch, observing, seen_of
from selective_rollout.gate.audit import Seen
from selective_rollout.gate.config import GateConfig
from selective_rollout.types import Group, Rollout, RolloutStatus

RULE = GateConfig(start_step=2)
ENFORCE = RunConfig(mode="enforce", audit_rate=0.5)
CLAIM = claim_of(RULE, alpha=0.05)
CERTIFIED = AcceptedRule(RULE, CLAIM, certified=True)


def outcome(rewards: tuple[float | None, ...] = (0.0, 1.0), **fields: Any) -> GroupOutcome:
    rollouts = tuple(
        Rollout(i, (), RolloutStatus.FINISHED, reward, answer=None, failure=None)
        for i, reward in enumerate(rewards)
    )
    group = Group(id="g", size=len(rewards), rollouts=rollouts, task_id="t", metadata={})
    return GroupOutcome(group=group, decisions=(), ledger=Ledger(), **fields)


WRONG = outcome(would_cut_at=2, audited=True)


@pytest.mark.parametrize(
    ("ended", "seen"),
    [
        (WRONG, Seen(cut=False, would_cut=True, zero_variance=False)),
        (outcome((1.0, 1.0), would_cut_at=2, audited=True), Seen(False, True, True)),
        (outcome((1.0, None), would_cut_at=2, audited=True), Seen(False, True, None)),
        (outcome(would_cut_at=2, audited=True, late_veto=True), Seen(False, False, False)),
        (outcome(), Seen(False, False, False)),
    ],
)
def test_what_became_of_a_group(ended: GroupOutcome, seen: Seen) -> None:
    assert seen_of(ended, 0.0) == seen


def test_it_rings_in_the_order_begun_and_tells_once() -> None:
    watch = AuditWatch(CERTIFIED, ENFORCE)
    first, second, third, fourth = (watch.begin(ENFORCE) for _ in range(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.end(second, WRONG)
        watch.end(third, WRONG)
        assert not watch.rung, "the first is still out"
    with pytest.warns(AuditAlarmWarning, match="the gate is off from here on: alarm at e-value 20"):
        watch.end(first, None)
    assert watch.rung
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.end(fourth, WRONG)


@pytest.mark.parametrize(
    ("accepted", "config"),
    [
        (AcceptedRule(RULE, certified=True), ENFORCE),
        (CERTIFIED, replace(ENFORCE, audit_rate=0.0)),
        (CERTIFIED, observing(ENFORCE)),
    ],
    ids=["vouched for", "no audits", "observing"],
)
def test_without_a_claim_that_audits_could_contradict_there_is_no_alarm(
    accepted: AcceptedRule, config: RunConfig
) -> None:
    watch = AuditWatch(accepted, config)
    for _ in range(9):
        watch.end(watch.begin(config), WRONG)
    assert not watch.rung


def test_groups_under_other_settings_say_nothing_about_the_claim() -> None:
    watch = AuditWatch(CERTIFIED, ENFORCE)
    settings = [ENFORCE, observing(ENFORCE), replace(ENFORCE, audit_rate=0.1), ENFORCE]
    assert [watch.begin(config) for config in settings] == [0, None, None, 1]
