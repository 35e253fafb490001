"""Cuts inside a step, counted apart from the rule over steps: one account for each stream rule of a trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from selective_rollout.analysis.rates import CutCounts
from selective_rollout.analysis.report.quantities import Sums, TaskBootstrap
from selective_rollout.analysis.stream_cuts import describe_rule, look_at, rule_of
from selective_rollout.gate.streaming import StreamRule
from selective_rollout.stats import Interval
from selective_rollout.trace.reader import RecordedGroup

_PARTS: Final = ("symbols", "lossless", "lossy")


@dataclass(slots=True)
class InsideSteps(CutCounts):
    """Running totals of one stream rule.

    Shares and savings are measured on the groups that ran on whatever the rule said: observed or audited.
    """

    rule: StreamRule
    carried_out: int = 0
    """Groups that were really cut inside a step."""
    groups: int = 0
    """Groups that ran on."""
    never_checked: int = 0
    """Groups whose streams ended before the first position, or were not compared."""
    counted: bool = True
    """Whether it is known of every group how much it generated."""
    sums: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_PARTS, 0))
    resampled: TaskBootstrap = field(default_factory=lambda: TaskBootstrap(_PARTS))

    def add(self, recorded: RecordedGroup, survives: bool) -> None:
        """Book one group that was watched with this rule."""
        self.carried_out += recorded.end is not None and recorded.end.stream_cut_at is not None
        look = look_at(recorded, survives=survives)
        if look is None:
            return
        self.groups += 1
        self.never_checked += not look.was_checked
        self.count(look.zero_variance, look.cut_at is not None)
        self.counted &= look.symbols is not None
        values = {"symbols": look.symbols or 0}
        if look.zero_variance is not None:
            values["lossless" if look.zero_variance else "lossy"] = look.avoided or 0
        for name, value in values.items():
            self.sums[name] += value
        self.resampled.add(look.task_id, values)

    @property
    def title(self) -> str:
        """The rule in a few words."""
        return describe_rule(self.rule)

    @property
    def unit(self) -> str:
        """What was not generated is counted in these."""
        return "tokens" if self.rule.level == "token" else "characters"

    def avoided(self, part: str) -> int | None:
        """Symbols that cuts would have left ungenerated, "lossless" or "lossy"; None if that is unknown."""
        return self.sums[part] if self.counted else None

    def share(self, part: str) -> tuple[float | None, Interval | None]:
        """The same as a share of all that was generated, with a 95% interval over tasks."""
        if not self.counted or not self.sums["symbols"]:
            return None, None

        def ratio(sums: Sums) -> Any:
            return sums[part] / sums["symbols"]

        return self.sums[part] / self.sums["symbols"], self.resampled.interval(ratio)

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON output; unknown is null."""
        document: dict[str, object] = {
            "rule": self.rule.to_dict(),
            "cut_in_enforce_mode": self.carried_out,
            "groups": self.groups,
            "unknown_label": self.unknown,
            "never_checked": self.never_checked,
            "right": self.right,
            "wrong": self.wrong,
            "unknown_cuts": self.unknown_cuts,
            "base_rate": self.base_rate.to_dict(),
            "precision": self.precision.to_dict(),
            "loss": self.loss.to_dict(),
            "unit": self.unit,
        }
        for part in ("lossless", "lossy"):
            share, interval = self.share(part)
            document[f"{part}_not_generated"] = self.avoided(part)
            document[f"{part}_share"] = share
            document[f"{part}_interval_95"] = None if interval is None else [interval.low, interval.high]
        return document


def book(rules: dict[StreamRule, InsideSteps], recorded: RecordedGroup, survives: bool) -> None:
    """Add a group to the account of its stream rule; does nothing for a group without one."""
    rule = rule_of(recorded)
    if rule is not None:
        rules.setdefault(rule, InsideSteps(rule)).add(recorded, survives)
