"""Reading rewards and labelling groups."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from selective_rollout.errors import RewardError
from selective_rollout.rewards import (
    ZERO_VARIANCE_TOLERANCE,
    GroupKind,
    centred,
    group_label,
    parse_reward,
    zero_variance,
)
from selective_rollout.types import Group, Rollout, RolloutStatus

FINISHED, FAILED, CUT = RolloutStatus.FINISHED, RolloutStatus.FAILED, RolloutStatus.CUT
RUNNING, TRUNCATED = RolloutStatus.RUNNING, RolloutStatus.TRUNCATED


class TensorScalar:
    """What a one-number tensor looks like from outside."""

    shape = ()

    def item(self) -> float:
        return 0.5


class TestParsing:
    @pytest.mark.parametrize(
        ("value", "reward"),
        [
            (1, 1.0),
            (-0.5, -0.5),
            (True, 1.0),
            (False, 0.0),
            (" 0.25 ", 0.25),
            ("1e-3", 0.001),
            (Decimal("0.1"), 0.1),
            (Fraction(1, 4), 0.25),
            (np.float32(0.5), 0.5),
            (np.int64(3), 3.0),
            (np.bool_(True), 1.0),
            (np.array(2.0), 2.0),
            (TensorScalar(), 0.5),
        ],
    )
    def test_numbers(self, value: Any, reward: float) -> None:
        parsed = parse_reward(value)
        assert parsed == reward
        assert type(parsed) is float

    @pytest.mark.parametrize(
        "value",
        [
            None,
            math.nan,
            "NaN",
            "nan",
            np.float64("nan"),
            Decimal("NaN"),
            Decimal("sNaN"),
            np.array(None),
            np.ma.masked,
        ],
    )
    def test_unscored(self, value: Any) -> None:
        assert parse_reward(value) is None
        assert parse_reward({"score": value}, reward_key="score") is None

    @pytest.mark.parametrize(
        "value", ["", "good", "true", "1_000", [1.0], (1.0,), np.array([1.0]), b"1", 1j, object(), {1.0}]
    )
    def test_anything_else_names_the_place(self, value: Any) -> None:
        with pytest.raises(RewardError, match=r"^runs\.jsonl:7: reward .* is not a number"):
            parse_reward(value, where="runs.jsonl:7")

    @pytest.mark.parametrize("value", [math.inf, "-inf", np.float64("inf"), 10**400])
    def test_infinities(self, value: Any) -> None:
        with pytest.raises(RewardError, match="infinite"):
            parse_reward(value)

    def test_dicts(self) -> None:
        value = {"score": "0.5", "pred": "4"}
        assert parse_reward(value, reward_key="score") == 0.5
        with pytest.raises(RewardError, match=r"keys: score, pred\): name the one"):
            parse_reward(value)
        with pytest.raises(RewardError, match=r"no key 'acc' \(keys: score, pred\)"):
            parse_reward(value, reward_key="acc")
        with pytest.raises(RewardError, match="keys: a"):
            parse_reward({"score": {"a": 1}}, reward_key="score")
        with pytest.raises(RewardError, match="keys: none"):
            parse_reward({})

    def test_a_key_does_not_hinder_plain_numbers(self) -> None:
        assert parse_reward(1.0, reward_key="score") == 1.0

    def test_long_values_are_shortened_in_the_message(self) -> None:
        with pytest.raises(RewardError) as caught:
            parse_reward("x" * 10_000)
        assert len(str(caught.value)) < 200


class TestZeroVariance:
    @pytest.mark.parametrize(
        ("rewards", "expected"),
        [
            ([0.0, 0.0], True),
            ([0.0, 1.0], False),
            ([0.0, 1.0, None], False),
            ([0.0, 0.0, None], None),
            ([0.0, 0.0, math.nan], None),
            ([None, None], None),
            ([1.0], None),
            ([None], None),
            ([], None),
        ],
    )
    def test_labels(self, rewards: list[float | None], expected: bool | None) -> None:
        assert zero_variance(rewards) is expected

    def test_kinds_of_numbers_may_be_mixed(self) -> None:
        rewards: list[Any] = [Decimal("0.1"), 0.1, Fraction(1, 10), np.float32(0.1)]
        assert zero_variance(rewards) is True
        assert [type(advantage) for advantage in centred(rewards)] == [float] * 4

    def test_the_tolerance_is_on_the_range(self) -> None:
        chain = [0.6 * ZERO_VARIANCE_TOLERANCE * step for step in range(4)]
        assert zero_variance(chain[:2]) is True
        assert zero_variance(chain) is False
        assert zero_variance([0.0, 0.1], tolerance=0.1) is True


class TestGroupLabel:
    @staticmethod
    def group(*members: tuple[RolloutStatus, float | None], size: int | None = None) -> Group:
        rollouts = tuple(
            Rollout(i, status=status, reward=reward) for i, (status, reward) in enumerate(members)
        )
        return Group("g", len(rollouts) if size is None else size, rollouts, task_id="t")

    @pytest.mark.parametrize(
        ("rewards", "kind"),
        [
            ([0.0, 0.0], "all_fail"),
            ([-1.0, -1.0], "all_fail"),
            ([1.0, 1.0 - 1e-7], "all_success"),
            ([2.0, 2.0], "all_success"),
            ([0.3, 0.3], "constant"),
            ([0.0, 0.3], "mixed"),
            ([None, 0.3], "unknown"),
        ],
    )
    def test_kinds(self, rewards: list[float | None], kind: GroupKind) -> None:
        label = group_label(self.group(*((FINISHED, reward) for reward in rewards)))
        assert label.kind == kind

    def test_the_highest_reward_is_declared(self) -> None:
        group = self.group((FINISHED, 1.0), (TRUNCATED, 1.0))
        assert group_label(group).kind == "all_success"
        assert group_label(group, highest_reward=10.0).kind == "constant"

    def test_members_that_are_not_scored(self) -> None:
        label = group_label(self.group((FINISHED, 0.0), (CUT, 1.0), (FAILED, 1.0), (RUNNING, None)))
        assert (label.members, label.scorable, label.failed, label.cut) == (3, 1, 1, 1)
        assert label.zero_variance is None
        assert label.kind == "unknown"

    def test_members_never_recorded_could_flip_the_label(self) -> None:
        assert group_label(self.group((FINISHED, 0.0), (FINISHED, 0.0), size=3)).zero_variance is None
        assert group_label(self.group((FINISHED, 0.0), (FINISHED, 1.0), size=3)).zero_variance is False

    def test_one_member_left_by_failures_is_a_singleton(self) -> None:
        label = group_label(self.group((FINISHED, 0.0), (FAILED, None)))
        assert label.singleton
        assert label.zero_variance is None


def test_centred_leaves_unscored_members_out() -> None:
    assert centred([1.0, None, 0.0]) == [0.5, None, -0.5]
    assert centred([None, None]) == [None, None]
    assert centred([]) == []
