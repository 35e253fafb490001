"""One pass over traces, in memory that does not grow with them, to everything a report says.

Totals are running sums. Of the groups themselves a bounded sample is kept, wrong cuts first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from selective_rollout.analysis.prices import Prices
from selective_rollout.analysis.reach import Reach
from selective_rollout.analysis.replay import replay
from selective_rollout.analysis.report.enforced import Enforced
from selective_rollout.analysis.report.inside import InsideSteps, book
from selective_rollout.analysis.report.population import Basis, NamedGate, Population
from selective_rollout.analysis.report.quantities import Quantity
from selective_rollout.analysis.report.rows import GroupRow, group_row, group_tree, is_selected
from selective_rollout.analysis.report.sample import BoundedSample
from selective_rollout.analysis.report.timeline import Timeline, can_serve, timelines
from selective_rollout.analysis.report.tree import Branch
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.gate.sampling import sampling_is_unknown
from selective_rollout.gate.streaming import StreamRule
from selective_rollout.rewards import GroupLabel, group_label
from selective_rollout.trace.reader import ReadReport, RecordedGroup, read_events, read_groups, trace_files
from selective_rollout.trace.schema import HeaderEvent
from selective_rollout.types import Group, RolloutStatus

MOST_ROWS: Final = 10_000
"""Groups listed on the page."""
MOST_EXTRA_ROWS: Final = 1_000
"""Groups that a gate cuts, listed although the draw left them out."""
MOST_TREES: Final = 1_000
"""Groups whose actions are embedded."""
MOST_CELLS: Final = 200_000
"""Actions embedded in all."""
_BATCH_STEPS: Final = 20_000
"""Steps of the groups worked on together."""


@dataclass(slots=True)
class Overview:
    """What was recorded, counted over all groups."""

    groups: int = 0
    unfinished: int = 0
    """Groups without an end on record: an interrupted run."""
    tasks: set[str] = field(default_factory=set)
    sizes: Counter[int] = field(default_factory=Counter)
    rollouts: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    """Rollouts lost to infrastructure, by kind."""
    singletons: int = 0
    unknown: int = 0
    """Groups whose unscored members could flip the label; groups that a gate stopped are not among them."""
    stopped: int = 0
    """Groups that a gate stopped."""
    sampling_unknown: int = 0
    """Groups that declare nothing about their sampling."""
    steps: int = 0
    estimated_steps: int = 0
    """Steps whose tokens were estimated: neither the server nor the client counted them."""
    lost_tokens: int = 0
    """Completion tokens that became no step."""
    abandoned_tokens: int = 0
    """Completion tokens of earlier attempts."""

    def add(self, recorded: RecordedGroup, label: GroupLabel) -> None:
        """Count one group."""
        group = recorded.group
        self.groups += 1
        self.unfinished += recorded.end is None
        self.tasks.add(group.task_id)
        self.sizes[group.size] += 1
        self.rollouts += len(group.rollouts)
        self.singletons += label.singleton
        self.stopped += label.cut > 0
        self.unknown += label.zero_variance is None and not label.cut
        self.sampling_unknown += sampling_is_unknown(group.sampling)
        self.lost_tokens += recorded.lost
        self.abandoned_tokens += recorded.abandoned
        for rollout in group.rollouts:
            self.steps += len(rollout.steps)
            self.estimated_steps += sum(
                step.usage is not None and step.usage.source == "estimated" for step in rollout.steps
            )
            self.statuses[rollout.status.value] += 1
            if rollout.status is RolloutStatus.FAILED:
                self.failures[rollout.failure.kind if rollout.failure is not None else "unknown"] += 1

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON output."""
        return {
            "groups": self.groups,
            "tasks": len(self.tasks),
            "group_sizes": {str(size): count for size, count in sorted(self.sizes.items())},
            "unfinished_groups": self.unfinished,
            "stopped_groups": self.stopped,
            "unknown_label": self.unknown,
            "singletons": self.singletons,
            "sampling_unknown": self.sampling_unknown,
            "rollouts": dict(sorted(self.statuses.items())),
            "failures": dict(sorted(self.failures.items())),
            "steps": self.steps,
            "steps_of_estimated_tokens": self.estimated_steps,
            "lost_tokens": self.lost_tokens,
            "abandoned_tokens": self.abandoned_tokens,
        }


@dataclass(slots=True)
class ReportData:
    """Everything a report says, as plain data."""

    sources: tuple[str, ...]
    headers: tuple[Mapping[str, Any], ...]
    """Metadata that the writers of the files put down, such as the model's name."""
    read: ReadReport
    gates: tuple[NamedGate, ...]
    """The first one is what the page's controls start from."""
    overview: Overview
    reach: Reach
    population: Population
    basis: Basis
    enforced: Enforced | None
    inside: tuple[InsideSteps, ...]
    """Cuts inside a step, by stream rule; empty: no streams were watched."""
    rows: tuple[GroupRow, ...]
    """A fair draw of the groups, or all of them."""
    extra_rows: tuple[GroupRow, ...]
    """Cuts that the draw left out, wrong ones first."""
    trees: Mapping[str, Branch]
    """By group id; the groups whose actions the page shows."""

    @property
    def quantities(self) -> list[Quantity]:
        """Named numbers of the first gate."""
        return self.population.quantities()

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON output; unknown is null."""
        population = self.population
        return {
            "sources": list(self.sources),
            "problems": self.read.problems,
            "overview": self.overview.to_dict(),
            "basis": self.basis,
            "reach": self.reach.to_dict(self.gates[0].rule.start_step),
            "kinds": {
                kind: {"groups": totals.groups, "steps": totals.steps, "tokens": totals.known_tokens}
                for kind, totals in sorted(population.kinds.items())
            },
            "gates": [
                {
                    "name": gate.name,
                    "rule": gate.rule.to_dict(),
                    "fingerprint": gate.rule.fingerprint(),
                    "accounting": population.accounts[i].to_dict(),
                    "quantities": {q.name: q.to_dict() for q in population.quantities(i)},
                }
                for i, gate in enumerate(self.gates)
            ],
            "answers": population.answers.to_dict() if population.answers.seen else None,
            "enforced": None if self.enforced is None else self.enforced.to_dict(),
            "inside_steps": [account.to_dict() for account in self.inside],
        }


def collect(
    paths: Sequence[Path | str],
    gates: Sequence[NamedGate],
    *,
    on_group: Callable[[int], None] | None = None,
    most_rows: int = MOST_ROWS,
    most_trees: int = MOST_TREES,
    prices: Prices | None = None,
) -> ReportData:
    """Read traces once and add up what a report says.

    Args:
        paths: trace files and folders.
        gates: the rules to account for, at least one; the first one is the report's own.
        on_group: called with the number of bytes read so far, after each group.
        most_rows: groups kept for the list on the page.
        most_trees: groups kept with their actions.
        prices: what tokens cost, if money is to be shown.

    Raises:
        TraceError: a trace cannot be read, or holds no group.
        ConfigError: no gate, or a rule that compares tokens, which no trace records.
    """
    if not gates:
        raise ConfigError("report: name at least one gate to account for")
    collector = _Collector(tuple(gates), most_rows, most_trees, prices)
    report = ReadReport()
    for recorded in read_groups(paths, report=report):
        collector.add(recorded)
        if on_group is not None:
            on_group(report.bytes)
    if not collector.overview.groups:
        raise ConfigError(f"{', '.join(map(str, paths))}: no group is recorded there")
    return collector.data(tuple(map(str, paths)), _headers(paths), report)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A group that has been read, with what its prompt's past said at that time."""

    recorded: RecordedGroup
    label: GroupLabel
    history: Sequence[float] | None
    history_p: float | None


class _Collector:
    def __init__(
        self, gates: tuple[NamedGate, ...], most_rows: int, most_trees: int, prices: Prices | None
    ) -> None:
        self.overview = Overview()
        self._reach = Reach()
        self._gates = gates
        self._untouched = Population(gates, prices)
        self._kept = Population(gates, prices)
        self._enforced = Enforced(prices)
        self._inside: dict[StreamRule, InsideSteps] = {}
        self._history = PromptHistory()
        self._pending: list[_Waiting] = []
        self._pending_steps = 0
        self._rows: BoundedSample[GroupRow] = BoundedSample(most_rows)
        self._cut_rows: BoundedSample[GroupRow] = BoundedSample(MOST_EXTRA_ROWS)
        self._trees: BoundedSample[tuple[str, Branch]] = BoundedSample(most_trees, MOST_CELLS)

    def add(self, recorded: RecordedGroup) -> None:
        group = recorded.group
        label = group_label(group)
        self.overview.add(recorded, label)
        if recorded.end is not None:
            self._reach.add(recorded)
        self._pending.append(_Waiting(recorded, label, self._history_of(recorded), self._history_p_of(group)))
        self._pending_steps += sum(len(rollout.steps) for rollout in group.rollouts)
        if recorded.begin.mode == "enforce" and recorded.end is not None:
            self._enforced.add(recorded, label)
        book(self._inside, recorded, survives=self._gates[0].rule.outcome != "drop")
        if recorded.end is not None and not label.cut:
            rewards = [rollout.reward for rollout in group.rollouts]
            self._history.record(group.task_id, group.id, rewards)
        if self._pending_steps > _BATCH_STEPS:
            self._work_off()

    def _work_off(self) -> None:
        waiting, self._pending, self._pending_steps = self._pending, [], 0
        groups = [each.recorded.group for each in waiting]
        lines = timelines(groups, self._gates[0].rule, [each.history for each in waiting])
        for each, line in zip(waiting, lines, strict=True):
            cuts = tuple(self._cut_at(gate.rule, each, line) for gate in self._gates)
            if each.recorded.end is not None and not each.label.cut:
                self._population_of(each.recorded).add(each.recorded.group, each.label, cuts)
            self._keep(each.recorded, each.label, line, cuts)

    def data(self, sources: tuple[str, ...], headers: Any, report: ReadReport) -> ReportData:
        self._work_off()
        basis: Basis = "untouched" if self._untouched.groups or not self._kept.groups else "kept"
        rows = tuple(self._rows.items())
        drawn = {row.id for row in rows}
        extra = tuple(row for row in self._cut_rows.items() if row.id not in drawn)
        listed = drawn | {row.id for row in extra}
        return ReportData(
            sources=sources,
            headers=headers,
            read=report,
            gates=self._gates,
            overview=self.overview,
            reach=self._reach,
            population=self._untouched if basis == "untouched" else self._kept,
            basis=basis,
            enforced=self._enforced if self._enforced.groups else None,
            inside=tuple(self._inside.values()),
            rows=rows,
            extra_rows=extra,
            trees={group_id: tree for group_id, tree in self._trees.items() if group_id in listed},
        )

    def _population_of(self, recorded: RecordedGroup) -> Population:
        return self._kept if is_selected(recorded) else self._untouched

    def _history_of(self, recorded: RecordedGroup) -> Sequence[float] | None:
        """The rewards that the live rule was given, or those of earlier groups of the trace."""
        needed = max(gate.rule.history_mixed for gate in self._gates)
        if recorded.begin.history is not None:
            return recorded.begin.history
        return self._history.last(recorded.group.task_id, needed) if needed else None

    def _history_p_of(self, group: Group) -> float | None:
        scores = [gate.rule.score for gate in self._gates if gate.rule.score is not None]
        if not any(score.reads_history for score in scores):
            return None
        return self._history.p_zero_variance(group.task_id, group.size)

    def _cut_at(self, rule: GateConfig, each: _Waiting, line: Timeline) -> int | None:
        if line.whole and can_serve(rule, self._gates[0].rule):
            return line.fires_at(rule)
        replayed = replay(each.recorded.group, rule, history=each.history, history_p=each.history_p)
        return replayed.fires_at(rule.tau)

    def _keep(
        self,
        recorded: RecordedGroup,
        label: GroupLabel,
        line: Timeline,
        cuts: tuple[int | None, ...],
    ) -> None:
        group = recorded.group
        rank = _rank(label, cuts)
        if self._rows.would_keep(0, group.id) or rank < 2:
            row = group_row(recorded, label, line, cuts)
            self._rows.offer(0, group.id, row)
            if rank < 2:
                self._cut_rows.offer(rank, group.id, row)
        if self._trees.would_keep(rank, group.id):
            tree = group_tree(group)
            self._trees.offer(rank, group.id, (group.id, tree), cost=tree.size)


def _rank(label: GroupLabel, cuts: Sequence[int | None]) -> int:
    """Wrong cuts first, then what a gate cut or would cut, then the rest."""
    is_cut = any(cut is not None for cut in cuts)
    if is_cut and label.zero_variance is False:
        return 0
    return 1 if is_cut or label.cut else 2


def _headers(paths: Sequence[Path | str]) -> tuple[Mapping[str, Any], ...]:
    found = []
    for path in trace_files(paths):
        first = next(read_events(path), None)
        if first is not None and isinstance(first[1], HeaderEvent):
            found.append(first[1].metadata)
    return tuple(found)
