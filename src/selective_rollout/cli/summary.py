"""What came out of a run, for people and for programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten

from rich.table import Table

from selective_rollout.analysis.accounting import Accounting
from selective_rollout.analysis.curve import GroupLine, distance_curve
from selective_rollout.analysis.prices import money_text
from selective_rollout.cli.console import facts_table, number, percent, rate, remark
from selective_rollout.engine.ledger import Ledger
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.reconcile import Reconciliation
from selective_rollout.errors import MissingExtraError
from selective_rollout.gate.config import GateConfig
from selective_rollout.rewards import group_label
from selective_rollout.trace.reader import RecordedGroup
from selective_rollout.types import RolloutStatus, Usage

MOST_LINES = 2000
"""Groups drawn in a picture; more would be one grey block."""


@dataclass(slots=True)
class RunSummary:
    """Running totals over the groups of a run."""

    gate: GateConfig
    accounting: Accounting = field(init=False)
    """Of the groups that ran to their own end: what the gate would have done, measured."""
    ledger: Ledger = field(default_factory=Ledger)
    groups: int = 0
    cut: int = 0
    cut_inside: int = 0
    """Of the cuts, those that a stream rule made inside a step."""
    would_cut_inside: int = 0
    """Groups that the stream rule would have cut, and that ran on."""
    audited: int = 0
    late_vetoes: int = 0
    answered: int = 0
    steps: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    """Of environments, servers and scorers, by kind."""
    examples: dict[str, str] = field(default_factory=dict)
    """The first message of each kind."""
    lines: list[GroupLine] = field(default_factory=list)
    server: Reconciliation | None = None
    """The tokens of this run beside the server's own count; None if it shows none."""

    def __post_init__(self) -> None:
        self.accounting = Accounting(self.gate.start_step, self.gate.outcome)

    def add(self, outcome: GroupOutcome) -> None:
        """Book one group."""
        self.groups += 1
        self.cut += outcome.cut_as is not None
        self.cut_inside += outcome.stream_cut_at is not None
        self.would_cut_inside += outcome.stream_would_cut_at is not None
        self.audited += outcome.audited
        self.late_vetoes += outcome.late_veto
        self.answered += outcome.answer is not None
        self.ledger.merge(outcome.ledger)
        for rollout in outcome.group.rollouts:
            self.steps += len(rollout.steps)
            self.statuses[rollout.status.value] = self.statuses.get(rollout.status.value, 0) + 1
            if rollout.failure is not None:
                self.failures[rollout.failure.kind] += 1
                self.examples.setdefault(rollout.failure.kind, rollout.failure.message)
        if outcome.cut_as is None:
            self.accounting.add(outcome.group, outcome.would_cut_at)
        if len(self.lines) < MOST_LINES:
            cut_at = outcome.cut_at if outcome.cut_at is not None else outcome.would_cut_at
            kind = group_label(outcome.group).kind
            self.lines.append(GroupLine(distance_curve(outcome.group, self.gate.padding), kind, cut_at))

    def add_recorded(self, recorded: RecordedGroup) -> None:
        """Book a group of an earlier part of this run from its trace."""
        end, group = recorded.end, recorded.group
        assert end is not None
        ledger = Ledger(abandoned=recorded.abandoned)
        for step in (step for rollout in group.rollouts for step in rollout.steps):
            ledger.add(step.usage or Usage())
        ledger.completion += recorded.lost
        ledger.overrun += recorded.overrun
        self.add(
            GroupOutcome(
                group=group,
                decisions=recorded.decisions,
                ledger=ledger,
                cut_as=end.outcome,
                cut_at=end.cut_at,
                would_cut_at=end.would_cut_at,
                stream_cut_at=end.stream_cut_at,
                stream_would_cut_at=end.stream_would_cut_at,
                audited=bool(recorded.begin.audit),
                late_veto=end.late_veto,
                survivor=end.survivor,
                answer=end.answer,
            )
        )

    def picture(self, folder: Path, title: str) -> Path | None:
        """Draw distance over steps into the run's folder; None, with a remark, without matplotlib."""
        try:
            from selective_rollout.analysis.plots import plot_distances  # noqa: PLC0415 (an extra)
        except MissingExtraError as missing:
            remark(f"no picture: {missing}")
            return None
        path = folder / "distance.png"
        return plot_distances(
            self.lines, tau=self.gate.tau, start_step=self.gate.start_step, title=title, path=path
        )

    def to_dict(self) -> dict[str, object]:
        """Plain data for metrics.json and --json."""
        return {
            "groups": self.groups,
            "rollouts": dict(sorted(self.statuses.items())),
            "failures": dict(self.failures.most_common()),
            "steps": self.steps,
            "cut": self.cut,
            "cut_inside_a_step": self.cut_inside,
            "would_cut_inside_a_step": self.would_cut_inside,
            "audited": self.audited,
            "late_vetoes": self.late_vetoes,
            "answered": self.answered,
            "tokens": self.ledger.to_dict(),
            "server": self.server.to_dict() if self.server else None,
            "gate": self.gate.to_dict(),
            "gate_fingerprint": self.gate.fingerprint(),
            "measured_on_groups_that_ran_to_their_end": self.accounting.to_dict(),
        }


def accounting_table(title: str, accounting: Accounting) -> Table:
    """What the gate would have done, on groups that ran to their own end."""
    unknown = accounting.unknown
    rows = [
        (
            "groups",
            number(accounting.groups) + (f", {unknown} of them with unknown label" if unknown else ""),
        ),
        ("zero variance (base rate)", rate(accounting.base_rate)),
        ("  all fail / all succeed", f"{accounting.all_fail} / {accounting.all_success}"),
        ("cuts: right / wrong / missed", f"{accounting.right} / {accounting.wrong} / {accounting.missed}"),
        ("precision of the cuts", rate(accounting.precision)),
        ("signal-bearing groups lost", rate(accounting.loss)),
        ("steps not generated, lossless", _steps(accounting.lossless.steps, accounting.steps)),
        ("steps not generated, lossy", _steps(accounting.lossy.steps, accounting.steps)),
        ("  a gate without errors", percent(accounting.oracle_saved)),
        ("  as many cuts at random", percent(accounting.random_saved)),
        ("efficiency (1.00 = worthless)", number(accounting.efficiency)),
        *_money_rows(accounting),
    ]
    return facts_table(title, "measured", rows)


def _money_rows(accounting: Accounting) -> list[tuple[str, str]]:
    """Tokens and money, where prices were given."""
    money = accounting.money
    if money is None:
        return []
    amounts = [
        ("spent: tokens generated / money", accounting.spent, money.spent),
        ("not spent, lossless", accounting.lossless, money.lossless),
        ("not spent, lossy", accounting.lossy, money.lossy),
    ]
    if accounting.unknown_cuts:
        amounts.append(("not spent, unknown label", accounting.unlabelled, money.unlabelled))
    return [(name, f"{number(amount.known_tokens)} / {money_text(cost)}") for name, amount, cost in amounts]


def ledger_rows(ledger: Ledger) -> list[tuple[str, str]]:
    """Tokens of a run, with what is unknown said so."""
    unknown = f" in {ledger.requests - ledger.unknown_requests} requests"
    unknown += f"; {ledger.unknown_requests} requests unknown" if ledger.unknown_requests else ""
    if ledger.estimated_requests:
        unknown += f", {ledger.estimated_requests} of them about {ledger.estimated:,} by their text"
    rows = [("completion tokens", number(ledger.completion) + unknown)]
    known_prompts = ledger.requests - ledger.unknown_prompts
    rows.append(("prompt tokens", number(ledger.prompt if known_prompts else None)))
    rows.append(("overrun after cuts", number(ledger.overrun)))
    if ledger.wasted or ledger.abandoned:
        rows.append(("wasted by failures / abandoned", f"{ledger.wasted:,} / {ledger.abandoned:,}"))
    return rows


def run_table(title: str, summary: RunSummary) -> Table:
    """What was done in a run."""
    rows = [
        ("groups", number(summary.groups)),
        ("cut / audited / late vetoes", f"{summary.cut} / {summary.audited} / {summary.late_vetoes}"),
    ]
    if summary.cut_inside or summary.would_cut_inside:
        inside = f"{summary.cut_inside} / {summary.would_cut_inside}"
        rows.append(("cut inside a step / would have been", inside))
    rows += [
        ("rollouts failed", number(summary.statuses.get(RolloutStatus.FAILED.value, 0))),
        *(
            (f"  {kind}, {count:,} times, such as", shorten(summary.examples[kind], 160))
            for kind, count in summary.failures.most_common(3)
        ),
        ("steps", number(summary.steps)),
        *ledger_rows(summary.ledger),
    ]
    if summary.server is not None:
        rows.append(("the server's own count", summary.server.describe()))
    return facts_table(title, "done", rows)


def _steps(part: int, whole: int) -> str:
    return f"{part:,} ({percent(part / whole if whole else None)} of {whole:,})"
