"""The audits' alarm over the groups of a process that runs each of them on its own."""

from __future__ import annotations

import threading
from dataclasses import replace

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.rule import AcceptedRule, warn_of_alarm
from selective_rollout.gate.audit import Seen
from selective_rollout.trace.seen import seen_of_group


def seen_of(outcome: GroupOutcome, tolerance: float) -> Seen:
    """What became of a group of an enforcing run, for its alarm.

    Args:
        outcome: what came of it.
        tolerance: rewards closer than this are equal.
    """
    return seen_of_group(
        outcome.group,
        tolerance,
        cut_as=outcome.cut_as,
        would_cut_at=outcome.would_cut_at,
        audited=outcome.audited,
        late_veto=outcome.late_veto,
    )


class AuditWatch:
    """Tells an alarm of groups in the order begun, and how groups that begin now are to be run.

    It may be used from any thread. Without a certificate, audits or an enforcing run there is no alarm, and
    nothing changes.
    """

    def __init__(self, accepted: AcceptedRule, config: RunConfig) -> None:
        self._alarm = accepted.alarm(config)
        self._tolerance = accepted.rule.reward_tolerance
        self._lock = threading.Lock()
        self._begun = 0

    @property
    def rung(self) -> bool:
        """Whether audits contradict the certificate, so that groups are only observed from here on."""
        return self._alarm is not None and self._alarm.rung

    def begin(self, config: RunConfig) -> int | None:
        """Number a group that begins under these settings; `end` must be told of each.

        None: run like this, it says nothing about what the alarm watches.
        """
        alarm = self._alarm
        if alarm is None or config.mode != "enforce" or config.audit_rate != alarm.audit_rate:
            return None
        with self._lock:
            self._begun += 1
            return self._begun - 1

    def end(self, place: int | None, outcome: GroupOutcome | None) -> None:
        """Take in what came of a group; None if it broke, or is not over."""
        if self._alarm is None or place is None:
            return
        seen = None if outcome is None else seen_of(outcome, self._tolerance)
        with self._lock:
            had_rung = self._alarm.rung
            rings = self._alarm.note(place, seen) and not had_rung
        if rings:
            warn_of_alarm(self._alarm, stacklevel=3)


def observing(config: RunConfig) -> RunConfig:
    """The same settings for a group that runs after the alarm."""
    return replace(config, mode="observe")
