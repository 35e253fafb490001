"""What a gate saves and costs: counted, never blended."""

from __future__ import annotations

import json

import pytest

from selective_rollout.analysis.accounting import Accounting, was_stopped
from selective_rollout.types import Group, Rollout, RolloutStatus, Step, Usage


def group(
    rewards: list[float | None], lengths: list[int], tokens: int | None = 3, size: int | None = None
) -> Group:
    usage = Usage(completion=tokens, source="server") if tokens is not None else None
    rollouts = tuple(
        Rollout(i, tuple(Step(k, "a", usage=usage) for k in range(1, n + 1)), RolloutStatus.FINISHED, reward)
        for i, (reward, n) in enumerate(zip(rewards, lengths, strict=True))
    )
    return Group("g", size or len(rollouts), rollouts, "g")


FAIL, WIN, MIXED = [0.0, 0.0], [1.0, 1.0], [0.0, 1.0]


def test_right_wrong_and_missed_have_their_own_columns() -> None:
    account = Accounting(start_step=4)
    account.add(group(FAIL, [10, 10]), 4)
    account.add(group(WIN, [10, 10]), None)
    account.add(group(MIXED, [8, 10]), 4)
    account.add(group(MIXED, [10, 10]), None)
    assert (account.cuts, account.right, account.wrong, account.missed) == (2, 1, 1, 1)
    assert (account.all_fail, account.all_success) == (1, 1)
    assert (account.lossless.steps, account.lossless.tokens) == (12, 36)
    assert (account.lossy.steps, account.lossy.tokens) == (10, 30)
    assert account.base_rate.value == 0.5
    assert account.precision.value == 0.5
    assert account.loss.value == 0.5
    assert account.saved == pytest.approx(22 / 78)
    assert account.efficiency == pytest.approx(0.5 / (1 - 22 / 78))
    assert account.oracle_saved == pytest.approx(24 / 78)
    assert account.random_saved == pytest.approx(0.5 * 46 / 78)


def test_members_that_had_finished_save_nothing() -> None:
    account = Accounting(start_step=4)
    account.add(group(FAIL, [3, 9]), 4)
    assert account.lossless.steps == 5


def test_a_survivor_saves_nothing_either() -> None:
    account = Accounting(start_step=4, outcome="survivor")
    account.add(group(FAIL, [10, 10]), 4)
    assert account.lossless.steps == account.oracle.steps == account.everything.steps == 6


def test_groups_whose_label_is_unknown_are_counted_apart() -> None:
    account = Accounting(start_step=1)
    account.add(group([None, 1.0], [3, 3]), 1)
    assert (account.unknown, account.right, account.wrong) == (1, 0, 0)
    assert account.unlabelled.steps == 4
    assert account.base_rate.value is None
    assert account.efficiency is None


def test_unknown_tokens_are_unknown_not_zero() -> None:
    account = Accounting(start_step=1)
    account.add(group(FAIL, [3, 3], tokens=None), 1)
    account.add(group(FAIL, [3, 3]), 1)
    document = json.loads(json.dumps(account.to_dict()))
    assert document["lossless_tokens"] is None
    assert document["tokens"] is None
    assert document["lossless_steps"] == 8


def test_nothing_recorded_gives_no_rates() -> None:
    account = Accounting(start_step=1)
    values = (account.saved, account.efficiency, account.oracle_saved, account.random_saved, account.dilution)
    assert set(values) == {None}


def test_the_papers_operating_point_has_its_efficiency() -> None:
    """21 cuts, 4 of 61 signal-bearing groups, 11.93% of the steps: 1.06 (the authors' own tables)."""
    account = Accounting(start_step=10)
    account.signal, account.zero_variance, account.groups, account.steps = 61, 39, 100, 18_197
    account.lossy.groups, account.lossless.groups = 4, 17
    account.lossless.steps = 2170
    assert account.efficiency == pytest.approx(1.061, abs=5e-4)
    assert account.dilution == pytest.approx((57 / 79) / 0.61)


def test_a_group_that_was_stopped_has_no_counterfactual() -> None:
    whole = group(MIXED, [2, 2])
    stopped = Group("g", 2, (Rollout(0, status=RolloutStatus.CUT), whole.rollouts[1]), "g")
    assert not was_stopped(whole)
    assert was_stopped(stopped)
