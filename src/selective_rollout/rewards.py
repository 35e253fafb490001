"""Rewards, and whether a group carries a signal.

A group whose scored rewards are all equal (zero variance) gives a group-centred advantage of zero and so no
gradient; any other group is signal-bearing. Unscored members are never read as 0: as long as they could flip
the label, the label is unknown.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from numbers import Real
from typing import Any, Final, Literal, TypeAlias

from selective_rollout.errors import RewardError
from selective_rollout.types import Group, Rollout, RolloutStatus

ZERO_VARIANCE_TOLERANCE: Final = 1e-6
"""Largest range of rewards that still counts as equal: rounding residue is no signal."""

GroupKind: TypeAlias = Literal["all_fail", "all_success", "mixed", "constant", "unknown"]


def parse_reward(value: Any, *, reward_key: str | None = None, where: str = "") -> float | None:
    """Read a reward; None means unscored.

    Args:
        value: a number, bool, numeric string, NumPy or PyTorch scalar, dict, None or NaN.
        reward_key: the key under which a dict holds its reward.
        where: the place of the value for error messages, such as "rollouts.jsonl:12".

    Raises:
        RewardError: the value is a dict without `reward_key`, is infinite, or is no single number.
    """
    place = f"{where}: " if where else ""
    if isinstance(value, Mapping):
        return parse_reward(_from_dict(value, reward_key, place), where=where)
    value = _scalar(value)
    number = _as_float(value)
    if number is None and value is not None:
        raise RewardError(f"{place}reward {reprlib.repr(value)} is not a number: give one number or null")
    if number is not None and math.isinf(number):
        raise RewardError(f"{place}reward is infinite: use a finite number, or null for unscored")
    return None if number is None or math.isnan(number) else number


def scored_only(rewards: Iterable[float | None]) -> list[float]:
    """Return the rewards that are known: neither None nor NaN."""
    return [float(reward) for reward in rewards if reward is not None and not math.isnan(reward)]


def zero_variance(rewards: Sequence[float | None], tolerance: float = ZERO_VARIANCE_TOLERANCE) -> bool | None:
    """Tell whether a group's rewards are all equal; None if that is not known.

    Args:
        rewards: `rewards[g]`, one per member; None or NaN is unscored.
        tolerance: largest range that counts as equal, in units of reward.

    Returns:
        False as soon as two scored members differ, True if all members are scored and equal, None if unscored
        members could still differ or if there are fewer than two members.
    """
    scored = scored_only(rewards)
    if len(rewards) < 2:
        return None
    if scored and max(scored) - min(scored) > tolerance:
        return False
    return True if len(scored) == len(rewards) else None


@dataclass(frozen=True, slots=True)
class GroupLabel:
    """What the rewards of one group say.

    Attributes:
        zero_variance: all rewards equal; None if not known.
        members: rollouts the label is about: those that infrastructure lost are not among them.
        scorable: members with a reward.
        failed: rollouts lost to infrastructure, kept apart from behaviour.
        cut: members stopped by the gate; they are unscored.
        kind: "all_fail" if the equal rewards are at most 0, "all_success" if they reach the highest reward,
            "constant" if they are equal in between; "mixed" or "unknown" otherwise.
    """

    zero_variance: bool | None
    members: int
    scorable: int
    failed: int
    cut: int
    kind: GroupKind

    @property
    def singleton(self) -> bool:
        """True if fewer than two members are left, so that no variance can exist."""
        return self.members < 2


def group_label(
    group: Group, *, highest_reward: float = 1.0, tolerance: float = ZERO_VARIANCE_TOLERANCE
) -> GroupLabel:
    """Label a group.

    Failed rollouts are no members. Rollouts that were requested but never recorded are unscored members,
    since nobody knows how they ended. A reward on a cut rollout is not read.

    Args:
        group: the group as recorded.
        highest_reward: reward of a full success, which tells "all_success" from "constant".
        tolerance: largest range of rewards that counts as equal.
    """
    failed = sum(rollout.status is RolloutStatus.FAILED for rollout in group.rollouts)
    cut = sum(rollout.status is RolloutStatus.CUT for rollout in group.rollouts)
    members = [rollout for rollout in group.rollouts if rollout.status is not RolloutStatus.FAILED]
    missing = max(0, group.size - len(group.rollouts))
    rewards = [None if rollout.status is RolloutStatus.CUT else rollout.reward for rollout in members]
    rewards += [None] * missing
    equal = zero_variance(rewards, tolerance)
    scored = scored_only(rewards)
    kind: GroupKind = "unknown" if equal is None else "mixed"
    if equal:
        kind = _equal_kind(scored, highest_reward, tolerance)
    return GroupLabel(equal, len(rewards), len(scored), failed, cut, kind)


def centred(rewards: Sequence[float | None]) -> list[float | None]:
    """Return the group-centred advantages of one group: reward minus the mean of the scored members.

    Unscored members stay None and do not enter the mean; a lone scored member is centred at 0.
    """
    scored = scored_only(rewards)
    mean = math.fsum(scored) / len(scored) if scored else 0.0
    return [None if reward is None or math.isnan(reward) else float(reward) - mean for reward in rewards]


def last_attempts(attempts: Iterable[tuple[Hashable, Rollout]]) -> tuple[Rollout, ...]:
    """Keep one rollout per id where a queue started some of them again.

    Args:
        attempts: (rollout id, rollout) of one group in the order they ran.

    Returns:
        For each id its last attempt that ended normally, or its last one if none did; ids in the order they
        first appeared, with `index` renumbered from 0.
    """
    kept: dict[Hashable, Rollout] = {}
    for rollout_id, rollout in attempts:
        before = kept.get(rollout_id)
        if before is None or rollout.status.ended_normally or not before.status.ended_normally:
            kept[rollout_id] = rollout
    return tuple(replace(rollout, index=index) for index, rollout in enumerate(kept.values()))


def _equal_kind(scored: Sequence[float], highest_reward: float, tolerance: float) -> GroupKind:
    if min(scored) >= highest_reward - tolerance:
        return "all_success"
    return "all_fail" if max(scored) <= tolerance else "constant"


def _from_dict(value: Mapping[Any, Any], reward_key: str | None, place: str) -> Any:
    keys = ", ".join(map(str, value)) or "none"
    if reward_key is None:
        raise RewardError(f"{place}reward is a dict (keys: {keys}): name the one to use with reward_key")
    if reward_key not in value:
        raise RewardError(f"{place}reward has no key {reward_key!r} (keys: {keys}): correct reward_key")
    return value[reward_key]


def _scalar(value: Any) -> Any:
    """Return the only element of an array or tensor without dimensions, None where it is masked."""
    item: Callable[[], Any] | None = getattr(value, "item", None)
    if not callable(item) or getattr(value, "shape", None) != ():
        return value
    return None if getattr(value, "mask", False) else item()


def _as_float(value: Any) -> float | None:
    """Return a single number as float; None if the value is none."""
    if isinstance(value, str):
        return _number_in(value)
    if not isinstance(value, Real | Decimal):
        return None
    if isinstance(value, Decimal) and value.is_nan():  # a signalling one has no float
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _number_in(text: str) -> float | None:
    if "_" in text:  # Python's spelling of digits, no data file's
        return None
    try:
        return float(text)
    except ValueError:
        return None
