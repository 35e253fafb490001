"""What a training run has spent and saved so far, in numbers that a trainer can log.

What the gate saved is kept apart by stage: *skipped* groups were never begun, *cut* groups were stopped on
the way, *flat* ones ran to their end and had zero variance all the same, which any filter after the fact
would find. In enforce mode nobody knows what a cut group would have become: savings and errors are estimates
from audited would-be cuts, and without audits they are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.gate.audit import AuditCounts, AuditedRate, Seen
from selective_rollout.rewards import group_label
from selective_rollout.stats import Interval
from selective_rollout.types import RolloutStatus


@dataclass(slots=True)
class Rest:
    """What members did after a would-be cut that ran on, added up over such groups."""

    groups: int = 0
    total: int = 0
    squares: int = 0

    def add(self, count: int) -> None:
        """Add one group's count."""
        self.groups += 1
        self.total += count
        self.squares += count * count

    def merge(self, other: Rest) -> None:
        """Add the groups of another worker."""
        self.groups += other.groups
        self.total += other.total
        self.squares += other.squares


@dataclass(frozen=True, slots=True)
class Avoided:
    """Steps or tokens that were not generated."""

    value: float
    interval: Interval | None
    """95%, normal, over the would-be cuts that it was estimated from; None below two of them, and where the
    value was measured."""
    measured: bool
    """True where the very groups that would have been cut ran on, and while nothing has been cut."""


@dataclass(slots=True)
class Meter:
    """Running totals over the groups of a training run.

    Args of the constructor: `audit_rate`, the probability with which a would-be cut ran on; 1 in observe
    mode, where all of them did; None if cuts are carried out without audits.
    """

    audit_rate: float | None
    skipped: int = 0
    """Groups never begun."""
    groups: int = 0
    """Groups begun and ended."""
    cut: int = 0
    would_cut: int = 0
    """Groups on which the gate fired, and that ran on."""
    signal: int = 0
    """Groups that ran to their end and had rewards that differ."""
    flat: int = 0
    """Groups that ran to their end with zero variance."""
    unlabelled: int = 0
    """Groups that ran to their end, and whose rewards do not tell."""
    failed: int = 0
    """Rollouts that infrastructure broke."""
    steps: int = 0
    tokens: int = 0
    """Completion tokens whose count is known."""
    unknown_tokens: int = 0
    """Steps whose tokens nobody counted."""
    overrun: int = 0
    """Completion tokens that arrived after the cut."""
    steps_after: Rest = field(default_factory=Rest)
    tokens_after: Rest = field(default_factory=Rest)
    """Over the groups all of whose tokens are known."""
    counts: AuditCounts | None = field(init=False)
    """What audits say of the gate's errors; None if there are none."""

    def __post_init__(self) -> None:
        self.counts = AuditCounts(self.audit_rate) if self.audit_rate is not None else None

    def add(self, outcome: GroupOutcome, tolerance: float, *, as_planned: bool = True) -> Seen:
        """Book one group that has ended.

        Args:
            outcome: what came of it.
            tolerance: rewards closer than this are equal.
            as_planned: False for a group that ran on whatever the audit rate, because the gate was off by
                then; it says nothing that could be scaled by that rate.

        Returns:
            What became of it, for an alarm.
        """
        label = None
        self.groups += 1
        self.failed += sum(rollout.status is RolloutStatus.FAILED for rollout in outcome.group.rollouts)
        self.steps += sum(len(rollout.steps) for rollout in outcome.group.rollouts)
        self.tokens += outcome.ledger.completion
        self.unknown_tokens += outcome.ledger.unknown_requests
        self.overrun += outcome.ledger.overrun
        if outcome.cut_as is not None:
            self.cut += 1
        else:
            label = group_label(outcome.group, tolerance=tolerance).zero_variance
            self.signal += label is False
            self.flat += label is True
            self.unlabelled += label is None
        fired = outcome.would_cut_at if not outcome.late_veto else None
        if fired is not None:
            self.would_cut += 1
            self._add_rest(outcome, fired)
        seen = Seen(cut=outcome.cut_as is not None, would_cut=fired is not None, zero_variance=label)
        if self.counts is not None and as_planned:
            self.counts.add(seen)
        return seen

    def merge(self, other: Meter) -> None:
        """Add the totals of another worker, whose groups are others."""
        for name in _TOTALS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.steps_after.merge(other.steps_after)
        self.tokens_after.merge(other.tokens_after)
        if self.counts is not None and other.counts is not None:
            for name in _COUNTS:
                setattr(self.counts, name, getattr(self.counts, name) + getattr(other.counts, name))

    @property
    def cut_rate(self) -> float | None:
        """Share of the groups begun on which the gate fired, whether or not they ran on."""
        return (self.cut + self.would_cut) / self.groups if self.groups else None

    @property
    def zero_advantage_share(self) -> float | None:
        """Share of zero variance among the labelled groups that reached the gradient."""
        return self.flat / (self.flat + self.signal) if self.flat + self.signal else None

    @property
    def gradient_factor(self) -> float | None:
        """Growth of the gradient by dropping the cuts, groups begun over groups kept.

        Exact for a loss that averages over the kept rows; 1 for one that divides by the rows sampled.
        """
        kept = self.groups - self.cut
        return self.groups / kept if kept else None

    @property
    def avoided_steps(self) -> Avoided | None:
        """Steps that the cuts left ungenerated; in observe mode, would have left."""
        return self._avoided(self.steps_after)

    @property
    def avoided_tokens(self) -> Avoided | None:
        """Completion tokens that the cuts left ungenerated; in observe mode, would have left."""
        return self._avoided(self.tokens_after)

    @property
    def efficiency(self) -> float | None:
        """Signal-bearing groups per generated step relative to no gate: (1 - loss) / (1 - saved)."""
        loss, avoided = self.counts.false_cut_rate if self.counts else None, self.avoided_steps
        if loss is None or avoided is None or not self.steps:
            return None
        without_gate = self.steps if avoided.measured else self.steps + avoided.value
        saved = avoided.value / without_gate
        return (1 - loss.value) / (1 - saved) if saved < 1 else None

    def metrics(self) -> dict[str, float]:
        """Flat numbers for a trainer's logger; what is not known is left out, never 0."""
        known: dict[str, float | None] = {
            "groups": self.groups,
            "skipped": self.skipped,
            "cut": self.cut,
            "flat": self.flat,
            "failed": self.failed,
            "cut_rate": self.cut_rate,
            "zero_advantage_share": self.zero_advantage_share,
            "gradient_factor": self.gradient_factor,
            "efficiency": self.efficiency,
            "steps": self.steps,
            "tokens": None if self.unknown_tokens else self.tokens,
            "overrun": None if self.unknown_tokens else self.overrun,
        }
        counts = self.counts
        known.update(_bounds("false_cut_rate", counts.false_cut_rate if counts is not None else None))
        known.update(_bounds("wrong_cut_share", counts.wrong_cut_share if counts is not None else None))
        known.update(_bounds("steps_avoided", self.avoided_steps))
        known.update(_bounds("tokens_avoided", self.avoided_tokens))
        return {f"gate/{name}": float(value) for name, value in known.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the inverse of `from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Meter:
        """Read totals back."""
        meter = cls(
            values["audit_rate"],
            **{name: values[name] for name in _TOTALS},
            steps_after=Rest(**values["steps_after"]),
            tokens_after=Rest(**values["tokens_after"]),
        )
        if values["counts"] is not None:
            meter.counts = AuditCounts(**values["counts"])
        return meter

    def _add_rest(self, outcome: GroupOutcome, k: int) -> None:
        rest = [step for rollout in outcome.group.rollouts for step in rollout.steps[k:]]
        tokens = [step.usage.completion if step.usage is not None else None for step in rest]
        self.steps_after.add(len(rest))
        if all(count is not None for count in tokens):
            self.tokens_after.add(sum(count or 0 for count in tokens))

    def _avoided(self, rest: Rest) -> Avoided | None:
        """The sum of the rests where every would-be cut ran on, else cuts times their mean."""
        if not self.groups:
            return None
        if self.audit_rate == 1.0:
            return Avoided(rest.total, None, measured=True) if rest.groups == self.would_cut else None
        if not self.cut:
            return Avoided(0, None, measured=True)
        if not rest.groups:
            return None
        mean = rest.total / rest.groups
        interval = None
        if rest.groups > 1:
            variance = max(0.0, rest.squares - rest.groups * mean * mean) / (rest.groups - 1)
            half = _NORMAL_95 * math.sqrt(variance / rest.groups)
            interval = Interval(self.cut * max(0.0, mean - half), self.cut * (mean + half))
        return Avoided(self.cut * mean, interval, measured=False)


_NORMAL_95: Final = 1.959964

_TOTALS: Final = (
    "skipped",
    "groups",
    "cut",
    "would_cut",
    "signal",
    "flat",
    "unlabelled",
    "failed",
    "steps",
    "tokens",
    "unknown_tokens",
    "overrun",
)
_COUNTS: Final = ("kept_signal", "audited_signal", "audited_zero_variance", "audited_unknown", "unobserved")


def _bounds(name: str, estimate: AuditedRate | Avoided | None) -> dict[str, float | None]:
    if estimate is None:
        return {}
    rows: dict[str, float | None] = {name: estimate.value}
    if estimate.interval is not None:
        rows |= {f"{name}_low": estimate.interval.low, f"{name}_high": estimate.interval.high}
    return rows
