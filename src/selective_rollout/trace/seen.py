"""What a group of an enforcing run tells the audits, live and from a trace."""

from __future__ import annotations

from selective_rollout.gate.audit import Seen
from selective_rollout.gate.config import GateConfig
from selective_rollout.rewards import group_label
from selective_rollout.trace.reader import RecordedGroup
from selective_rollout.types import Group, Outcome


def seen_of_group(
    group: Group,
    tolerance: float,
    *,
    cut_as: Outcome | None,
    would_cut_at: int | None,
    audited: bool,
    late_veto: bool,
) -> Seen:
    """What became of a group of an enforcing run.

    Whatever stopped it, also a cut inside a step or a vote that was decided, left it unobserved: how it would
    have ended is not known, so its rewards count neither for nor against the rule.

    Args:
        group: the group, at its end.
        tolerance: rewards closer than this are equal.
        cut_as: how it was stopped; None if every member ran to its own end.
        would_cut_at: where the rule fired without stopping it.
        audited: it was drawn for an audit.
        late_veto: what arrived late kept it.
    """
    if cut_as is not None:
        return Seen(cut=True, would_cut=False, zero_variance=None)
    return Seen(
        cut=False,
        would_cut=audited and would_cut_at is not None and not late_veto,
        zero_variance=group_label(group, tolerance=tolerance).zero_variance,
    )


def seen_of(recorded: RecordedGroup, rule: GateConfig) -> Seen | None:
    """What became of a recorded group; None if it is unfinished or was not recorded in enforce mode.

    Args:
        recorded: the group.
        rule: says which rewards count as equal.
    """
    begin, end = recorded.begin, recorded.end
    if begin.mode != "enforce" or end is None:
        return None
    return seen_of_group(
        recorded.group,
        rule.reward_tolerance,
        cut_as=end.outcome,
        would_cut_at=end.would_cut_at,
        audited=bool(begin.audit),
        late_veto=end.late_veto,
    )
