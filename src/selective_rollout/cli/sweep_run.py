"""Carrying out a sweep and showing what it found; needs the `analysis` extra."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from selective_rollout.analysis.accounting import Accounting
from selective_rollout.analysis.prices import Prices, money_text
from selective_rollout.analysis.split import Split
from selective_rollout.analysis.sweep import sweep_traces
from selective_rollout.analysis.sweep_files import require_free, write_sweep
from selective_rollout.analysis.sweep_grid import SweepGrid
from selective_rollout.analysis.sweep_history import SKIP_PROBABILITY, HistoryStudy
from selective_rollout.analysis.sweep_result import RankedSignal, RuleResult, SweepResult, SweepVerdict
from selective_rollout.cli.console import number, percent, print_json, progress, remark, stdout, table
from selective_rollout.cli.summary import accounting_table
from selective_rollout.trace.reader import ReadReport, trace_files

_MOST_RULES: Final = 10
_WORTH: Final = ("right", "wrong", "signal lost", "steps saved", "efficiency")
_MONEY: Final = ("unspent, lossless", "lossy")
"""Columns where tokens have prices."""


def run_sweep(
    traces: Sequence[Path],
    grid: SweepGrid,
    split: Split | None,
    *,
    seed: int,
    highest_reward: float,
    prices: Prices | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Sweep traces, write what is to be written and print the rest.

    Raises:
        ConfigError: the folder holds a sweep already, or there is no group to look at.
        TraceError: a trace cannot be read.
    """
    if out is not None:
        require_free(out)
    report = ReadReport()
    with _reading(traces) as on_bytes:
        result = sweep_traces(
            traces,
            grid,
            split=split,
            seed=seed,
            highest_reward=highest_reward,
            prices=prices,
            report=report,
            on_bytes=on_bytes,
        )
    document = {"traces": [str(path) for path in traces], **result.to_dict()}
    files = [] if out is None else write_sweep(out, result, document)
    if as_json:
        print_json(document)
    else:
        stdout().print(render(result))
    for line in (*report.problems, *(f"warning: {warning}" for warning in result.warnings)):
        remark(line)
    if split is None:
        remark("all tasks were looked at: to certify a gate, record fresh groups")
    for path in files:
        remark(f"wrote {path}")


@contextmanager
def _reading(traces: Sequence[Path]) -> Iterator[Callable[[int], None]]:
    total = sum(file.stat().st_size for file in trace_files(traces))
    begun = time.monotonic()
    with progress("bytes read", total) as bar:

        def reach(now: int) -> None:
            seconds = time.monotonic() - begun
            bar.reach(now, note=f"{now / 1e6 / seconds:.1f} MB/s" if seconds else "")

        yield reach


def render(result: SweepResult) -> RenderableType:
    """A sweep for people."""
    account = result.nothing
    looked_at = "all tasks" if result.split is None else f"{result.split.choose_share:.0%} of the tasks"
    parts: list[RenderableType] = [
        Text(result.words, style="bold"),
        Text(
            f"\n{account.groups:,} groups of {result.tasks:,} tasks looked at ({looked_at}): "
            f"{account.all_fail:,} all fail, {account.all_success:,} all succeed, "
            f"{account.signal:,} signal-bearing, {account.unknown:,} unknown; "
            f"zero variance {percent(account.base_rate.value)}."
        ),
    ]
    if result.ranked and result.verdict is not SweepVerdict.ONE_CLASS:
        parts += [_signal_table(result), *_notes(result)]
    if result.grid.is_single:
        tried = result.rules[0] if result.rules else None
        title = "This gate, replayed" if tried is None else f"{tried.name}, replayed"
        parts.append(accounting_table(title, account if tried is None else tried.accounting))
    else:
        parts.append(_rule_table(result))
    if result.history is not None:
        parts.append(_history_table(result.history))
    parts += _next(result)
    return Group(*parts)


def _signal_table(result: SweepResult) -> RenderableType:
    steps = sorted({ranked.step for ranked in result.ranked})
    shown = table("AUROC for zero variance (95% interval)", "signal", *(f"step {step}" for step in steps))
    names = dict.fromkeys(ranked.measure.name for ranked in result.ranked)
    cells = {(ranked.measure.name, ranked.step): ranked for ranked in result.ranked}
    limit = None if result.chance is None else result.chance.p95
    for name in names:
        shown.add_row(name, *(_cell(cells.get((name, step)), limit) for step in steps))
    return shown


def _cell(ranked: RankedSignal | None, limit: float | None) -> str:
    if ranked is None or ranked.area.value is None:
        return "unknown"
    area, interval = ranked.area.value, ranked.area.interval
    star = "*" if limit is not None and area > limit else " "
    held = "" if interval is None else f" ({interval.low:.2f}-{interval.high:.2f})"
    return f"{area:.2f}{held}{star}"


def _notes(result: SweepResult) -> list[RenderableType]:
    notes = []
    if result.chance is not None:
        notes.append(
            f"* above {result.chance.p95:.2f}, which the best of all reaches by chance in one case of 20."
        )
    names = dict.fromkeys(ranked.measure.name for ranked in result.ranked if ranked.is_reversed)
    if names:
        listed = ", ".join(names)
        notes.append(f"Pointing the other way here: {listed}. A fitted score finds the signs by itself.")
    return [Text("\n".join(notes) + "\n")]


def _rule_table(result: SweepResult) -> RenderableType:
    worth_it = [rule for rule in result.front if round(_efficiency(rule), 2) > 1]
    front = sorted(worth_it, key=_efficiency, reverse=True)[:_MOST_RULES]
    if not result.rules:
        return Text("No rule cuts anything.\n")
    if not front:
        found = len(result.rules)
        none = (
            "The one rule that cuts anything is not"
            if found == 1
            else f"None of {found:,} rules that cut anything is"
        )
        return Text(f"{none} worth more than fresh prompts (efficiency above 1).\n")
    title = f"Most efficient of the Pareto front of {len(result.rules):,} rules"
    shown = table(title, "rule", *_worth_columns(result.nothing))
    for rule in sorted(front, key=lambda rule: rule.accounting.loss.value or 0.0):
        shown.add_row(rule.name, *_worth(rule.accounting))
    best = percent(result.nothing.oracle_saved)
    step = result.nothing.start_step
    return Group(shown, Text(f"Without errors, {best} of the steps could be saved at step {step}.\n"))


def _history_table(history: HistoryStudy) -> RenderableType:
    area = history.predictor
    held = "" if area.interval is None else f" ({area.interval.low:.2f} to {area.interval.high:.2f})"
    value = "unknown" if area.value is None else f"{area.value:.2f}{held}"
    title = f"The prompts' own past: AUROC {value} among {history.with_past:,} groups that came again"
    accounts = [rule.accounting for rule in history.rules]
    shown = table(title, "rule", *_worth_columns(*accounts[:1]))
    for rule in history.rules:
        shown.add_row(rule.name, *_worth(rule.accounting))
    gate = history.gate
    plain = f"Plain gate: distance < {gate.tau:g} at {gate.start_step}. " if gate is not None else ""
    return Group(shown, Text(f"{plain}Groups are skipped with probability {SKIP_PROBABILITY:g}.\n"))


def _worth_columns(*accounts: Accounting) -> tuple[str, ...]:
    priced = any(account.prices is not None for account in accounts)
    return (*_WORTH, *(_MONEY if priced else ()))


def _worth(account: Accounting) -> tuple[str, ...]:
    efficiency = "unknown" if account.efficiency is None else f"{account.efficiency:.2f}"
    counts = number(account.right), number(account.wrong)
    money = account.money
    unspent = () if money is None else (money_text(money.lossless), money_text(money.lossy))
    return (*counts, percent(account.loss.value), percent(account.saved), efficiency, *unspent)


def _next(result: SweepResult) -> list[RenderableType]:
    """The command that comes next, if anything is worth it."""
    gates = [rule for rule in result.front if rule.measure.name == "distance" and _efficiency(rule) > 1]
    worth_it = result.verdict is SweepVerdict.BETTER_THAN_CHANCE and gates
    if not worth_it or result.split is None or result.let_through:
        return []
    best = max(gates, key=_efficiency)
    again = f" --check-every {best.check_every}" if best.check_every is not None else ""
    return [Text(f"Next: calibrate with --start-step {best.start_step}{again}, on the tasks not looked at.")]


def _efficiency(rule: RuleResult) -> float:
    return rule.accounting.efficiency or 0.0
