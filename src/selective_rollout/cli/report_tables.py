"""The report on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from selective_rollout.analysis.prices import money_text
from selective_rollout.analysis.report import words
from selective_rollout.analysis.report.collect import ReportData
from selective_rollout.analysis.report.diff import Change
from selective_rollout.analysis.report.enforced import AuditEstimates, Enforced
from selective_rollout.analysis.report.html import Extras
from selective_rollout.analysis.report.inference import AnswerTotals
from selective_rollout.analysis.report.inside import InsideSteps
from selective_rollout.analysis.report.quantities import Quantity
from selective_rollout.analysis.report.vote_rows import vote_rows
from selective_rollout.cli.console import facts_table, number, percent, rate, stdout, table
from selective_rollout.cli.summary import accounting_table
from selective_rollout.gate.audit import AuditedRate
from selective_rollout.types import RolloutStatus


def show_report(data: ReportData, extras: Extras, files: Sequence[Path]) -> None:
    """Print everything, in the order of the page."""
    console = stdout()
    console.print(_recorded(data))
    console.print(_kinds(data))
    for gate, account in zip(data.gates, data.population.accounts, strict=True):
        console.print(accounting_table(f"{gate.name}: {words.rule_text(gate.rule)}", account))
    if data.enforced is not None:
        for shown in _enforced(data.enforced):
            console.print(shown)
    for inside in data.inside:
        console.print(_inside(inside))
    if data.population.answers.seen:
        console.print(_answers(data.population.answers))
    if data.population.answers.groups:
        console.print(_votes(data.population.answers))
    if extras.changes:
        console.print(_changes(extras.baseline, extras.changes))
    sentences = [*words.lead(data), *words.certificate_sentences(extras.certificate or {})]
    for sentence in sentences:
        console.print(sentence, markup=False)
    for caveat in words.caveats(data):
        console.print(f"Note: {caveat}", markup=False)
    console.print(f"\nThe page: {files[0]}", markup=False, soft_wrap=True)


def _recorded(data: ReportData) -> Table:
    overview = data.overview
    lost = ", ".join(f"{kind} {count}" for kind, count in overview.failures.most_common())
    failed = overview.statuses[RolloutStatus.FAILED.value]
    sizes = ", ".join(f"{size}" for size in sorted(overview.sizes))
    facts = [
        ("groups / tasks", f"{overview.groups:,} / {len(overview.tasks):,}"),
        ("group size", sizes),
        ("rollouts", number(overview.rollouts)),
        ("  lost to failures", f"{failed:,} ({lost})" if failed else "0"),
        ("  ran into a limit", number(overview.statuses[RolloutStatus.TRUNCATED.value])),
        ("steps", number(overview.steps)),
        ("tokens that became no step", number(overview.lost_tokens)),
    ]
    return facts_table("Recorded", "counted", facts)


def _kinds(data: ReportData) -> Table:
    """The waste: how groups, steps and tokens divide over the labels."""
    kinds = data.population.kinds
    shown = table("Where the steps went", "label", "groups", "steps", "share of steps", "tokens")
    steps = sum(totals.steps for totals in kinds.values())
    for kind, name in words.KIND_WORDS.items():
        if kind in kinds:
            totals = kinds[kind]
            share = percent(totals.steps / steps if steps else None)
            shown.add_row(
                name, number(totals.groups), number(totals.steps), share, number(totals.known_tokens)
            )
    return shown


def _enforced(enforced: Enforced) -> list[Table]:
    """What was measured and what is estimated, each in a table of its own."""
    how = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(enforced.cuts.items()))
    facts = [
        ("groups in enforce mode", number(enforced.groups)),
        ("stopped", f"{enforced.stopped:,} ({how})" if how else "0"),
        *((("  inside a step", number(enforced.inside_steps)),) if enforced.inside_steps else ()),
        ("drawn for an audit", number(enforced.drawn)),
        ("late vetoes", number(enforced.late_vetoes)),
        ("steps / tokens generated", f"{enforced.spent.steps:,} / {number(enforced.spent.known_tokens)}"),
        *((("money spent", money_text(enforced.money)),) if enforced.prices is not None else ()),
        ("tokens that arrived after a cut", number(enforced.overrun)),
    ]
    return [
        facts_table("What the gate really did", "measured", facts),
        facts_table("What its cuts were worth", "estimated from audits", _worth(enforced.estimates)),
    ]


def _worth(estimates: AuditEstimates | None) -> list[tuple[str, str]]:
    if estimates is None:
        return [("anything", "unknown: no would-be cut was audited")]
    return [
        ("would-be cuts that ran on", number(estimates.audited)),
        ("signal-bearing groups cut", _audited(estimates.false_cut_rate)),
        ("cuts that are signal-bearing", _audited(estimates.wrong_cut_share)),
        ("steps not generated, lossless", _estimated(estimates.lossless)),
        ("steps not generated, lossy", _estimated(estimates.lossy)),
        *((quantity.words, _estimated_money(quantity)) for quantity in estimates.money or ()),
    ]


def _inside(account: InsideSteps) -> Table:
    unknown = f", {account.unknown} of them with unknown label" if account.unknown else ""
    facts = [
        ("groups that ran on", number(account.groups) + unknown),
        ("  never compared", number(account.never_checked)),
        ("zero variance (base rate)", rate(account.base_rate)),
        ("cuts: right / wrong", f"{account.right} / {account.wrong}"),
        ("precision of the cuts", rate(account.precision)),
        ("signal-bearing groups lost", rate(account.loss)),
        (f"{account.unit} not generated, lossless", _not_generated(account, "lossless")),
        (f"{account.unit} not generated, lossy", _not_generated(account, "lossy")),
        ("groups really cut, in enforce mode", number(account.carried_out)),
    ]
    return facts_table(f"Inside steps: {account.title}", "measured", facts)


def _not_generated(account: InsideSteps, part: str) -> str:
    amount, (share, interval) = account.avoided(part), account.share(part)
    if share is None:
        return number(amount)
    return f"{number(amount)} ({percent(share)}; 95% {words.interval_text(interval, True)})"


def _answers(answers: AnswerTotals) -> Table:
    left_out = f"; {answers.left_out:,} left out, since it is not known there" if answers.left_out else ""
    facts = [
        ("groups whose full vote is known", f"{answers.groups:,}{left_out}"),
        ("survivor agrees, in the groups cut", rate(answers.in_cuts)),
        ("survivor agrees, in all groups (base rate)", rate(answers.base)),
        ("cut, and answered differently", rate(answers.risk)),
    ]
    return facts_table("If one survivor answers", "measured", facts)


def _votes(answers: AnswerTotals) -> Table:
    """No gate, the survivor and the exact rule side by side."""
    priced = answers.prices is not None
    columns = ("groups stopped", "steps not generated", "tokens", *(("money",) if priced else ()), "time")
    shown = table("If the vote stops early", "measured", *columns)
    for row in vote_rows(answers):
        cells = (row.stopped, row.steps, row.tokens, *((row.money,) if priced else ()), row.time)
        shown.add_row(row.name, *map(str, cells))
    return shown


def _changes(baseline: str, changes: Sequence[Change]) -> Table:
    shown = table(f"Against {baseline}", "quantity", "before", "now", "difference", "95% interval")
    for change in changes:
        difference, interval = words.change_text(change)
        shown.add_row(
            change.now.words,
            words.value_text(change.before),
            words.value_text(change.now),
            difference,
            interval,
        )
    return shown


def _audited(value: AuditedRate | None) -> str:
    if value is None:
        return "unknown"
    return f"{percent(value.value)} (95% {words.interval_text(value.interval, True)})"


def _estimated_money(quantity: Quantity) -> str:
    return f"{money_text(quantity.value)} ({words.interval_text(quantity.interval, False)})"


def _estimated(quantity: Quantity) -> str:
    assert quantity.value is not None
    return f"{quantity.value:,.0f} ({words.interval_text(quantity.interval, False)})"
