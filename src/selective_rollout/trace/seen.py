"""What a recorded group tells the audits of its run."""

from __future__ import annotations

from selective_rollout.gate.audit import Seen
from selective_rollout.gate.config import GateConfig
from selective_rollout.rewards import group_label
from selective_rollout.trace.reader import RecordedGroup


def seen_of(recorded: RecordedGroup, rule: GateConfig) -> Seen | None:
    """What became of a recorded group; None if it is unfinished or was not recorded in enforce mode.

    Args:
        recorded: the group.
        rule: says which rewards count as equal.
    """
    begin, end = recorded.begin, recorded.end
    if begin.mode != "enforce" or end is None:
        return None
    fired = end.would_cut_at is not None and not end.late_veto
    return Seen(
        cut=end.cut_at is not None,
        would_cut=bool(begin.audit) and fired,
        zero_variance=group_label(recorded.group, tolerance=rule.reward_tolerance).zero_variance,
    )
