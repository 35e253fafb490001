"""Looking at everything at once: which signal, step and threshold would serve on this workload, if any.

A sweep chooses, it proves nothing: it looks at the *choose* part of the tasks only, so that `calibrate` has
others to certify on, and it says what the best of so many configurations reaches by chance alone. Needs the
`analysis` extra.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from selective_rollout.analysis.accounting import was_stopped
from selective_rollout.analysis.prices import Prices
from selective_rollout.analysis.ranking import Chance, ResampledAreas, best_by_chance, rank_correlation
from selective_rollout.analysis.reach import Reach
from selective_rollout.analysis.split import Split, mark_swept
from selective_rollout.analysis.sweep_grid import Measure, SweepGrid
from selective_rollout.analysis.sweep_history import study_history
from selective_rollout.analysis.sweep_result import RankedSignal, RuleResult, SweepResult, pareto
from selective_rollout.analysis.sweep_table import (
    SIGNAL,
    UNKNOWN,
    ZERO_VARIANCE,
    SweepCollector,
    SweepTable,
    with_cuts,
)
from selective_rollout.errors import ConfigError, MissingExtraError
from selective_rollout.gate.config import GateConfig
from selective_rollout.trace.reader import ReadReport, read_groups
from selective_rollout.types import Group

try:
    import numpy as np
    from numpy.typing import NDArray
except ImportError:
    raise MissingExtraError("analysis", "numpy") from None

_KNOWN_SHARE: Final = 0.5


def sweep_traces(
    paths: Sequence[Path | str],
    grid: SweepGrid,
    *,
    split: Split | None,
    seed: int = 0,
    highest_reward: float = 1.0,
    prices: Prices | None = None,
    report: ReadReport | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> SweepResult:
    """Sweep recorded traces, and mark them as looked at.

    Args:
        paths: files and folders.
        grid: what to look at.
        split: look at its *choose* part; None: at everything, after which no task is left to certify on.
        seed: of the resampling.
        highest_reward: reward of a full success, which tells the two kinds of zero variance apart.
        prices: what tokens cost, if the accounts are to show money.
        report: collects what the reader repaired or skipped.
        on_bytes: told how many bytes have been read.

    Raises:
        ConfigError: no group is left to look at, or a mark cannot be written.
        TraceError: a trace cannot be read.
    """
    collector = SweepCollector(grid, highest_reward=highest_reward, prices=prices)
    reach, let_through = Reach(), 0
    for recorded in read_groups(paths, report=report, on_bytes=on_bytes):
        if split is None or split.part(recorded.group.task_id) == "choose":
            reach.add(recorded)
            let_through += recorded.is_gated and not was_stopped(recorded.group)
            collector.add(recorded.group)
    table = collector.table()
    mark_swept(paths, split)
    result = sweep_table(table, split=split, seed=seed)
    warnings = (_selection(let_through), *result.warnings) if let_through else result.warnings
    return replace(result, reach=reach, let_through=let_through, warnings=warnings)


def _selection(count: int) -> str:
    return (
        f"{count} groups are those that an enforcing gate let through: a selection, on which no signal can "
        "be judged; sweep groups recorded in observe mode"
    )


def sweep(
    groups: Iterable[Group], grid: SweepGrid | None = None, *, seed: int = 0, highest_reward: float = 1.0
) -> SweepResult:
    """Sweep groups at hand, all of them; what they show must not be certified on them as well.

    Raises:
        ConfigError: there is no group that ran to its own end.
    """
    collector = SweepCollector(grid or SweepGrid(), highest_reward=highest_reward)
    for group in groups:
        collector.add(group)
    return sweep_table(collector.table(), split=None, seed=seed)


def sweep_table(table: SweepTable, *, split: Split | None, seed: int) -> SweepResult:
    """What a collected table shows.

    Raises:
        ConfigError: the table is empty.
    """
    if not table.groups:
        stopped = f" ({table.stopped} were stopped by a gate)" if table.stopped else ""
        raise ConfigError(f"sweep: no group ran to its own end{stopped}; record groups in observe mode")
    resampled = ResampledAreas([group.task_id for group in table.groups], seed=seed)
    rules = _rules(table)
    history = study_history(table, _plain_gate(table.grid, rules), resampled, seed=seed)
    return SweepResult(
        grid=table.grid,
        split=split,
        nothing=table.accounting(table.grid.start_steps[0]),
        tasks=table.tasks,
        ranked=tuple(_ranked(table, resampled)),
        chance=_chance(table, seed),
        rules=tuple(rules),
        history=history,
        warnings=tuple(_warnings(table)),
    )


def _ranked(table: SweepTable, resampled: ResampledAreas) -> list[RankedSignal]:
    labels = np.array([group.label for group in table.groups])
    kinds = np.array([group.kind for group in table.groups])
    variance = np.array([np.nan if g.variance is None else g.variance for g in table.groups])
    zero_variance, signal = labels == ZERO_VARIANCE, labels == SIGNAL
    all_fail, all_success = kinds == "all_fail", kinds == "all_success"
    found = []
    for measure in table.measures:
        for place, step in enumerate(table.grid.start_steps):
            compared = table.compared[measure.name][:, place]
            if not _known_enough(table, measure.name)[place]:
                continue
            found.append(
                RankedSignal(
                    measure,
                    step,
                    area=resampled.area(-compared, zero_variance, labels != UNKNOWN),
                    all_fail=resampled.area(-compared, zero_variance, signal | all_fail),
                    all_success=resampled.area(-compared, zero_variance, signal | all_success),
                    spearman=rank_correlation(-measure.direction * compared, variance),
                )
            )
    return found


def _known_enough(table: SweepTable, measure: str) -> NDArray[np.bool_]:
    """At which start_steps the measure is known in enough groups to be judged."""
    enough: NDArray[np.bool_] = (~np.isnan(table.compared[measure])).mean(axis=0) >= _KNOWN_SHARE
    return enough


def _chance(table: SweepTable, seed: int) -> Chance | None:
    labels = np.array([group.label for group in table.groups])
    known = labels != UNKNOWN
    columns = [
        -column[known]
        for name, values in table.compared.items()
        for column in values[:, _known_enough(table, name)].T
    ]
    if not columns or not known.any():
        return None
    tasks = [group.task_id for group, use in zip(table.groups, known, strict=True) if use]
    return best_by_chance(np.stack(columns, axis=1), labels[known] == ZERO_VARIANCE, tasks, seed=seed)


def _rules(table: SweepTable) -> list[RuleResult]:
    measures = {measure.name: measure for measure in table.measures}
    nothing = {start: table.accounting(start) for start in table.grid.start_steps}
    held_out = np.array([g.held_out for g in table.groups if g.held_out is not None])
    rules = []
    for (name, start, every), sums in table.cuts.items():
        before = np.zeros_like(sums[0])
        for i, tau in enumerate(table.grid.taus):
            if sums[i, :, 0].any() and (sums[i] != before).any():
                count, total = table.held_out_cut[name, start, every][i]
                kept = (held_out.sum() - total) / (len(held_out) - count) if len(held_out) > count else None
                account = with_cuts(nothing[start], sums[i])
                rules.append(RuleResult(measures[name], start, every, tau, account, kept))
            before = sums[i]
    return _with_fronts(rules)


def _with_fronts(rules: Sequence[RuleResult]) -> list[RuleResult]:
    against_loss: list[tuple[float, float] | None] = []
    against_held_out: list[tuple[float, float] | None] = []
    for rule in rules:
        saved, loss = rule.accounting.saved, rule.accounting.loss.value
        against_loss.append((saved, -loss) if saved and loss is not None else None)
        against_held_out.append((saved, rule.held_out) if saved and rule.held_out is not None else None)
    fronts = zip(rules, pareto(against_loss), pareto(against_held_out), strict=True)
    return [replace(rule, on_front=a, on_held_out_front=b) for rule, a, b in fronts]


def _plain_gate(grid: SweepGrid, rules: Sequence[RuleResult]) -> GateConfig | None:
    """The most efficient gate that looks once at the distance of recorded actions; else the widest one."""
    once = [rule for rule in rules if _is_plain(rule.measure) and rule.check_every is None]
    if once:
        best = max(once, key=lambda rule: rule.accounting.efficiency or 0.0)
        return best.measure.gate(best.tau, best.start_step, None)
    measure = next((measure for measure in grid.measures() if _is_plain(measure)), None)
    return None if measure is None else measure.gate(grid.taus[-1], grid.start_steps[0], None)


def _is_plain(measure: Measure) -> bool:
    return measure.padding is not None and measure.name == measure.signal


def _warnings(table: SweepTable) -> list[str]:
    found = []
    groups, unknown = len(table.groups), table.count(UNKNOWN) - table.singletons
    if table.stopped:
        found.append(f"{table.stopped} groups left out: a gate stopped them, so their outcome is unknown")
    if table.singletons == groups:
        found.append("every group has a single member: no reward can vary, check how rollouts are grouped")
    if unknown:
        found.append(f"{unknown} of {groups} groups have no label: unscored members could flip it")
    late = [
        step
        for place, step in enumerate(table.grid.start_steps)
        if not table.amounts_after[:, place, 1].any()
    ]
    if late:
        steps = ", ".join(map(str, late))
        found.append(f"no rollout goes beyond step {steps}: a check there saves nothing; look earlier")
    silent = [name for name in table.compared if not _known_enough(table, name).any()]
    if silent:
        found.append(f"unknown in most groups, since nobody recorded what they need: {', '.join(silent)}")
    return found
