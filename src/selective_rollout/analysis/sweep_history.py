"""What a prompt's earlier groups are worth: as a predictor, as a veto of cuts, and as a reason not to start.

Groups are gone through in recorded order, and a decision knows only what came before. A group that the rule
cuts or skips leaves no rewards behind, as it would not live. Needs the `analysis` extra.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from selective_rollout.analysis.accounting import Accounting
from selective_rollout.analysis.ranking import Area, ResampledAreas
from selective_rollout.analysis.sweep_table import (
    AMOUNTS,
    UNKNOWN,
    ZERO_VARIANCE,
    Counts,
    GroupFacts,
    SweepTable,
    with_cuts,
)
from selective_rollout.draws import stable_fraction
from selective_rollout.errors import MissingExtraError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory

try:
    import numpy as np
except ImportError:
    raise MissingExtraError("analysis", "numpy") from None

LASTS: Final = (2, 4, 8)
"""Earlier rewards that must be equal for a veto to be lifted or a group to be skipped."""
SKIP_PROBABILITY: Final = 0.8
"""Share of such groups that are skipped; the others keep the history fresh."""

_WORK: Final = 200_000
"""Predictions times tasks: each one fits a prior to all tasks, so that of many tasks a part must do."""


@dataclass(frozen=True, slots=True)
class HistoryRule:
    """A way to use the history, and what it saves and costs."""

    name: str
    last: int
    """Earlier rewards looked at; 0: none, the plain gate."""
    skips: bool
    """Whether groups are skipped before their first step, without any gate."""
    accounting: Accounting

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON output."""
        return {
            "name": self.name,
            "last": self.last,
            "skips": self.skips,
            "skip_probability": SKIP_PROBABILITY if self.skips else None,
            **self.accounting.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class HistoryStudy:
    """The worth of the prompts' pasts."""

    with_past: int
    """Groups whose prompt had come before."""
    predictor: Area
    """AUROC of `PromptHistory.p_zero_variance` among those; of many tasks a part is looked at."""
    gate: GateConfig | None
    """The plain gate beside which the rules stand; None if no distance was swept."""
    rules: tuple[HistoryRule, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON output."""
        return {
            "groups_with_past": self.with_past,
            "predictor": self.predictor.to_dict(),
            "gate": None if self.gate is None else self.gate.to_dict(),
            "rules": [rule.to_dict() for rule in self.rules],
        }


def study_history(
    table: SweepTable, gate: GateConfig | None, resampled: ResampledAreas, *, seed: int = 0
) -> HistoryStudy | None:
    """Study the history beside a gate that looks once at the distance of actions; None if no prompt recurs.

    Args:
        table: the groups in recorded order; the gate's start_step and measure are in its grid.
        gate: the plain gate; None: study the history alone.
        resampled: resamples of the table's tasks.
        seed: draws the skips.
    """
    seen: set[str] = set()
    past = []
    for group in table.groups:
        past.append(group.task_id in seen)
        seen.add(group.task_id)
    if not any(past):
        return None
    rules = [] if gate is None else _gate_rules(table, gate)
    nothing = table.accounting(table.grid.start_steps[0] if gate is None else gate.start_step)
    for last in LASTS:
        account = with_cuts(nothing, _sums(table, None, _skipped(table.groups, last, seed)))
        rules.append(HistoryRule(f"skip, if the last {last} rewards were equal", last, True, account))
    return HistoryStudy(sum(past), _predictor(table.groups, past, resampled), gate, tuple(rules))


def _gate_rules(table: SweepTable, gate: GateConfig) -> list[HistoryRule]:
    nothing = table.accounting(gate.start_step)
    cuts = _gate_cuts(table, gate)
    rules = [HistoryRule("plain gate", 0, False, with_cuts(nothing, _sums(table, gate.start_step, cuts)))]
    for last in LASTS:
        vetoed = _vetoed(table.groups, cuts, gate, last)
        account = with_cuts(nothing, _sums(table, gate.start_step, vetoed))
        rules.append(HistoryRule(f"gate, if the last {last} rewards were equal", last, False, account))
    return rules


def _gate_cuts(table: SweepTable, gate: GateConfig) -> list[bool]:
    measure = next(m.name for m in table.measures if m.padding == gate.padding and m.name == m.signal)
    place = table.grid.start_steps.index(gate.start_step)
    below = table.compared[measure][:, place] < gate.tau
    return [bool(cut) for cut in below & table.open_at[:, place]]


def _vetoed(groups: Sequence[GroupFacts], cuts: Sequence[bool], gate: GateConfig, last: int) -> list[bool]:
    """The gate's cuts that its `history_mixed` veto leaves."""
    left = []
    history = PromptHistory(keep=max(16, last))
    for group, cut in zip(groups, cuts, strict=True):
        past = history.last(group.task_id, last)
        stays = cut and len(past) == last and max(past) - min(past) <= gate.reward_tolerance
        history.record(group.task_id, group.id, group.rewards, was_cut=stays)
        left.append(stays)
    return left


def _skipped(groups: Sequence[GroupFacts], last: int, seed: int) -> list[bool]:
    skipped = []
    history = PromptHistory(keep=max(16, last))
    for group in groups:
        skip = history.should_skip(
            group.task_id, group.id, last=last, probability=SKIP_PROBABILITY, seed=seed
        )
        history.record(group.task_id, group.id, group.rewards, was_cut=skip)
        skipped.append(skip)
    return skipped


def _sums(table: SweepTable, start_step: int | None, cuts: Sequence[bool]) -> Counts:
    """What the cuts leave ungenerated, by label; start_step None: the groups are never started."""
    place = -1 if start_step is None else table.grid.start_steps.index(start_step)
    sums = np.zeros((3, AMOUNTS), np.int64)
    for group, cut, amounts in zip(table.groups, cuts, table.amounts_after[:, place], strict=True):
        if cut:
            sums[group.label] += amounts
    return sums


def _predictor(groups: Sequence[GroupFacts], past: Sequence[bool], resampled: ResampledAreas) -> Area:
    among = _some_tasks(groups)
    values = np.full(len(groups), np.nan)
    history = PromptHistory()
    for i, group in enumerate(groups):
        if group.task_id not in among:
            continue
        p = history.p_zero_variance(group.task_id, group.size) if past[i] else None
        values[i] = np.nan if p is None else p
        history.record(group.task_id, group.id, group.rewards)
    labels = np.array([group.label for group in groups])
    return resampled.area(values, labels == ZERO_VARIANCE, labels != UNKNOWN)


def _some_tasks(groups: Sequence[GroupFacts]) -> set[str]:
    """Tasks drawn by their ids, all of them if their pasts can be gone through in seconds."""
    visits = Counter(group.task_id for group in groups)
    drawn: set[str] = set()
    predictions = 0
    for task_id in sorted(visits, key=lambda task_id: stable_fraction("predictor", task_id)):
        predictions += visits[task_id] - 1
        if predictions * (len(drawn) + 1) > _WORK and predictions > visits[task_id]:
            break
        drawn.add(task_id)
    return drawn
