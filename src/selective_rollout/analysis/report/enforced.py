"""What an enforcing gate really did, and what only its audits let one estimate.

The two never share a type: `Enforced` holds counts of what happened, `AuditEstimates` what is inferred for
the groups that were stopped and have no ending of their own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from selective_rollout.analysis.accounting import Amount, survivor_of
from selective_rollout.analysis.prices import Prices
from selective_rollout.analysis.report.quantities import Quantity, Sums, TaskBootstrap
from selective_rollout.gate.audit import AuditCounts, AuditedRate
from selective_rollout.rewards import GroupLabel
from selective_rollout.trace.reader import RecordedGroup

_PARTS: Final = (
    "audited",
    *(
        f"{part}{unit}{whose}"
        for part in ("lossless", "lossy")
        for unit in ("", "_money")
        for whose in ("", "_of_survivor")
    ),
)


@dataclass(frozen=True, slots=True)
class AuditEstimates:
    """Estimates from audited would-be cuts, which are drawn at random among all would-be cuts."""

    audit_rate: float
    """Share of the groups drawn for an audit, as realised in the trace."""
    audited: int
    """Would-be cuts that ran on: what everything here rests on."""
    false_cut_rate: AuditedRate | None
    """P(cut | signal-bearing)."""
    wrong_cut_share: AuditedRate | None
    """P(signal-bearing | cut)."""
    lossless: Quantity
    """Steps that the cuts left ungenerated in zero-variance groups."""
    lossy: Quantity
    """The same in signal-bearing groups."""
    money: tuple[Quantity, Quantity] | None
    """What the two would have cost; None without prices, or if a count that matters is unknown."""

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON output."""
        false_cut_rate, wrong_cut_share = self.false_cut_rate, self.wrong_cut_share
        return {
            "audit_rate": self.audit_rate,
            "audited_would_be_cuts": self.audited,
            "false_cut_rate": None if false_cut_rate is None else false_cut_rate.to_dict(),
            "wrong_cut_share": None if wrong_cut_share is None else wrong_cut_share.to_dict(),
            "steps_not_generated_lossless": self.lossless.to_dict(),
            "steps_not_generated_lossy": self.lossy.to_dict(),
            "money_not_spent": None
            if self.money is None
            else {quantity.name: quantity.to_dict() for quantity in self.money},
        }


@dataclass(slots=True)
class Enforced:
    """Running totals over the groups that ran in enforce mode. Everything here was measured."""

    prices: Prices | None = None
    groups: int = 0
    cuts: Counter[str] = field(default_factory=Counter)
    """Groups that were stopped, by what became of them: drop, survivor, vote."""
    inside_steps: int = 0
    """Of these, those that a stream rule cut inside a step."""
    drawn: int = 0
    """Groups drawn for an audit."""
    late_vetoes: int = 0
    spent: Amount = field(default_factory=Amount)
    """All that was generated in groups that have ended."""
    overrun: int = 0
    """Completion tokens that arrived after the cut."""
    rules: Counter[str] = field(default_factory=Counter)
    """Groups by fingerprint of the rule that watched them."""
    kept_signal: int = 0
    """Signal-bearing groups that the gate let through."""
    audited: Counter[bool | None] = field(default_factory=Counter)
    """Audited would-be cuts by zero variance."""
    resampled: TaskBootstrap = field(default_factory=lambda: TaskBootstrap(_PARTS))
    after: Counter[str] = field(default_factory=Counter)
    is_priced: bool = True
    """Whether the cost of every audited would-be cut is known."""

    def add(self, recorded: RecordedGroup, label: GroupLabel) -> None:
        """Book one group of an enforcing run that has ended."""
        begin, end = recorded.begin, recorded.end
        assert end is not None
        self.groups += 1
        self.drawn += bool(begin.audit)
        self.late_vetoes += end.late_veto
        self.overrun += recorded.overrun
        self.rules[begin.gate or "unknown"] += 1
        if end.outcome is not None:
            self.cuts[end.outcome] += 1
        self.inside_steps += end.stream_cut_at is not None
        self.spent.add(recorded.group, 0)
        audited_cut = end.would_cut_at if begin.audit and not end.late_veto else None
        if audited_cut is not None:
            self._add_audited(recorded, label, audited_cut)
        elif end.outcome is None:
            self.kept_signal += label.zero_variance is False

    def _add_audited(self, recorded: RecordedGroup, label: GroupLabel, cut_at: int) -> None:
        self.audited[label.zero_variance] += 1
        values: dict[str, float] = {"audited": 1}
        if label.zero_variance is not None:
            part = "lossless" if label.zero_variance else "lossy"
            everything, survivors = Amount(), Amount()
            everything.add(recorded.group, cut_at)
            survivor = survivor_of(recorded.group)
            survivors.add_steps(survivor.steps[cut_at:] if survivor is not None else ())
            for amount, name in ((everything, ""), (survivors, "_of_survivor")):
                cost = None if self.prices is None else amount.cost(self.prices)
                values[f"{part}{name}"] = amount.steps
                values[f"{part}_money{name}"] = cost or 0.0
                self.is_priced &= cost is not None
        self.after.update(values)
        self.resampled.add(recorded.group.task_id, values)

    @property
    def stopped(self) -> int:
        """Groups that were stopped."""
        return sum(self.cuts.values())

    @property
    def money(self) -> float | None:
        """What was spent; None without prices, or if a count that matters is unknown."""
        return None if self.prices is None else self.spent.cost(self.prices)

    @property
    def estimates(self) -> AuditEstimates | None:
        """What the audits tell; None without an audited would-be cut."""
        audited = self.audited.total()
        if not audited:
            return None
        audit_rate = self.drawn / self.groups
        counts = AuditCounts(
            audit_rate,
            kept_signal=self.kept_signal,
            audited_signal=self.audited[False],
            audited_zero_variance=self.audited[True],
        )
        return AuditEstimates(
            audit_rate=audit_rate,
            audited=audited,
            false_cut_rate=counts.false_cut_rate,
            wrong_cut_share=counts.wrong_cut_share,
            lossless=self._scaled("lossless", "steps not generated, lossless"),
            lossy=self._scaled("lossy", "steps not generated, lossy"),
            money=(
                self._scaled("lossless_money", "money not spent, lossless"),
                self._scaled("lossy_money", "money not spent, lossy"),
            )
            if self.prices is not None and self.is_priced
            else None,
        )

    def _scaled(self, part: str, words: str) -> Quantity:
        """The mean over audited would-be cuts, times the number of cuts between steps.

        Where a survivor answers, its own steps are generated after all.
        """
        stopped, survives = self.stopped - self.inside_steps, float(self.cuts["survivor"] > 0)

        def total(sums: Sums) -> Any:
            return stopped * (sums[part] - survives * sums[f"{part}_of_survivor"]) / sums["audited"]

        return Quantity(part, words, float(total(self.after)), self.resampled.interval(total), is_share=False)

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON output; what was measured and what is estimated stay apart."""
        estimates = self.estimates
        return {
            "measured": {
                "groups": self.groups,
                "cut": dict(sorted(self.cuts.items())),
                "cut_inside_a_step": self.inside_steps,
                "drawn_for_audit": self.drawn,
                "late_vetoes": self.late_vetoes,
                "steps": self.spent.steps,
                "tokens": self.spent.known_tokens,
                "money": self.money,
                "overrun_tokens": self.overrun,
                "rules": dict(sorted(self.rules.items())),
            },
            "estimated_from_audits": None if estimates is None else estimates.to_dict(),
        }
