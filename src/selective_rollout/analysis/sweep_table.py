"""What a sweep keeps of recorded groups: one pass, some numbers per group, sums per rule.

The groups themselves are let go batch by batch, so that memory grows by a few numbers a group. Needs the
`analysis` extra.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final, TypeAlias

from selective_rollout.analysis.accounting import Accounting, Amount, was_stopped
from selective_rollout.analysis.open_checks import open_positions
from selective_rollout.analysis.prices import Prices
from selective_rollout.analysis.sweep_grid import Measure, SweepGrid
from selective_rollout.analysis.sweep_values import Floats, MeasureReader
from selective_rollout.errors import MissingExtraError
from selective_rollout.gate.config import GateConfig
from selective_rollout.rewards import GroupKind, GroupLabel, group_label, parse_reward
from selective_rollout.types import Group, Usage

try:
    import numpy as np
    from numpy.typing import NDArray
except ImportError:
    raise MissingExtraError("analysis", "numpy") from None

Counts: TypeAlias = NDArray[np.int64]
RuleKey: TypeAlias = tuple[str, int, int | None]
"""(measure, start_step, check_every)."""

ZERO_VARIANCE, SIGNAL, UNKNOWN = range(3)
"""Places of the labels in sums."""
AMOUNTS: Final = len(fields(Amount))
"""What is summed: the fields of an `Amount`, in their order."""

_NOT_COUNTED: Final = Usage()
_BATCH_CELLS: Final = 20_000
"""Groups times positions worked on together."""
_HELD_OUT_KEY: Final = "held_out_reward"


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One group, as far as the order of groups, tasks and rewards is concerned."""

    id: str
    task_id: str
    size: int
    label: int
    """`ZERO_VARIANCE`, `SIGNAL` or `UNKNOWN`."""
    kind: GroupKind
    rewards: tuple[float | None, ...]
    variance: float | None
    """Population variance of the rewards; None if a member is unscored."""
    held_out: float | None
    """The group's `held_out_reward`, if its metadata has one: a reward that no gate and no training saw."""


@dataclass(slots=True)
class SweepTable:
    """The groups that ran to their own end."""

    grid: SweepGrid
    measures: list[Measure]
    groups: list[GroupFacts] = field(default_factory=list)
    compared: dict[str, Floats] = field(default_factory=dict)
    """`compared[measure][group, start_step]`, what would be held against tau; NaN is unknown."""
    open_at: NDArray[np.bool_] = field(default_factory=lambda: np.empty((0, 0), np.bool_))
    """`open_at[group, start_step]`: whether a gate may fire there, whatever the distance."""
    amounts_after: Counts = field(default_factory=lambda: np.empty((0, 0, AMOUNTS), np.int64))
    """`amounts_after[group, start_step]`: what cutting there leaves ungenerated; the last one: at step 0."""
    cuts: dict[RuleKey, Counts] = field(default_factory=dict)
    """`cuts[rule][tau, label]`: summed amounts that the rule's cuts leave ungenerated."""
    held_out_cut: dict[RuleKey, Floats] = field(default_factory=dict)
    """`held_out_cut[rule][tau]`: number and sum of the held-out rewards of the cut groups."""
    stopped: int = 0
    """Groups that a gate stopped, left out: nobody knows what they would have become."""
    singletons: int = 0
    failed_rollouts: int = 0
    prices: Prices | None = None
    """What tokens cost, for the accounts."""

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len({group.task_id for group in self.groups})

    def count(self, label: int) -> int:
        """Number of groups with a label."""
        return sum(group.label == label for group in self.groups)

    def accounting(self, start_step: int) -> Accounting:
        """The account of a gate that looks first at this step and cuts nothing."""
        place = self.grid.start_steps.index(start_step)
        labels = np.array([group.label for group in self.groups], np.intp)
        everything = np.zeros((3, AMOUNTS), np.int64)
        np.add.at(everything, labels, self.amounts_after[:, place])
        kinds = [group.kind for group in self.groups]
        return Accounting(
            start_step=start_step,
            prices=self.prices,
            spent=Amount(*self.amounts_after[:, -1].sum(axis=0).tolist()),
            all_fail=kinds.count("all_fail"),
            all_success=kinds.count("all_success"),
            zero_variance=self.count(ZERO_VARIANCE),
            signal=self.count(SIGNAL),
            unknown=self.count(UNKNOWN),
            singletons=self.singletons,
            failed_rollouts=self.failed_rollouts,
            oracle=Amount(*everything[ZERO_VARIANCE].tolist()),
            everything=Amount(*everything.sum(axis=0).tolist()),
        )


def with_cuts(nothing: Accounting, cut: Counts) -> Accounting:
    """The account of a gate whose cuts leave `cut[label]` ungenerated."""
    right, wrong, unknown = (Amount(*cut[label].tolist()) for label in (ZERO_VARIANCE, SIGNAL, UNKNOWN))
    return replace(
        nothing,
        lossless=right,
        lossy=wrong,
        unlabelled=unknown,
        right=right.groups,
        wrong=wrong.groups,
        unknown_cuts=unknown.groups,
    )


class SweepCollector:
    """Takes recorded groups one by one.

    Args:
        grid: what to look at.
        highest_reward: reward of a full success, which tells the two kinds of zero variance apart.
        prices: what tokens cost, if the accounts are to show money.
    """

    def __init__(self, grid: SweepGrid, *, highest_reward: float = 1.0, prices: Prices | None = None) -> None:
        self._table = SweepTable(grid, grid.measures(), prices=prices)
        self._reader = MeasureReader(self._table.measures, grid.start_steps)
        self._rule = GateConfig()
        self._highest_reward = highest_reward
        self._pending: list[Group] = []
        self._longest = 0
        self._compared: dict[str, list[Floats]] = {measure.name: [] for measure in self._table.measures}
        self._open: list[NDArray[np.bool_]] = []
        self._after: list[Counts] = []

    def add(self, group: Group) -> None:
        """Take one group; groups that a gate stopped are counted and left out."""
        if was_stopped(group):
            self._table.stopped += 1
            return
        longest = max((len(rollout.steps) for rollout in group.rollouts), default=0)
        if (len(self._pending) + 1) * max(self._longest, longest) > _BATCH_CELLS:
            self._work_off()
        self._pending.append(group)
        self._longest = max(self._longest, longest)

    def table(self) -> SweepTable:
        """What was kept of all groups."""
        self._work_off()
        table, starts = self._table, len(self._table.grid.start_steps)
        table.compared = {
            name: np.concatenate([np.empty((0, starts)), *parts]) for name, parts in self._compared.items()
        }
        table.open_at = np.concatenate([np.empty((0, starts), np.bool_), *self._open])
        table.amounts_after = np.concatenate([np.empty((0, starts + 1, AMOUNTS), np.int64), *self._after])
        return table

    def _work_off(self) -> None:
        groups, self._pending, self._longest = self._pending, [], 0
        if not groups:
            return
        table = self._table
        facts = [self._facts(group) for group in groups]
        table.groups += facts
        opened = _padded([open_positions(group, self._rule) for group in groups], False)
        batch = _Batch(facts, opened, _amounts_after(groups, opened.shape[1]), table.grid)
        for measure, curves, at_starts in self._reader.read(groups):
            self._compared[measure.name].append(at_starts)
            batch.add_cuts(table, measure, curves, at_starts)
        starts = [min(k, opened.shape[1]) for k in table.grid.start_steps]
        self._open.append(batch.open_at_starts)
        self._after.append(batch.after[:, [*starts, 0]])

    def _facts(self, group: Group) -> GroupFacts:
        label = group_label(group, highest_reward=self._highest_reward)
        self._table.singletons += label.singleton
        self._table.failed_rollouts += label.failed
        rewards = tuple(rollout.reward for rollout in group.rollouts)
        held_out = group.metadata.get(_HELD_OUT_KEY)
        where = f"group {group.id!r}, metadata {_HELD_OUT_KEY!r}"
        return GroupFacts(
            id=group.id,
            task_id=group.task_id,
            size=group.size,
            label=_place_of(label),
            kind=label.kind,
            rewards=rewards,
            variance=_variance(rewards) if 0 < label.scorable == label.members else None,
            held_out=parse_reward(held_out, where=where),
        )


class _Batch:
    """Some groups at once, with all positions side by side."""

    def __init__(
        self, facts: Sequence[GroupFacts], opened: NDArray[np.bool_], after: Counts, grid: SweepGrid
    ) -> None:
        self.after = after
        """`after[group, k]`: what cutting at k leaves ungenerated."""
        self._opened = opened
        self._grid = grid
        self._labels = np.array([group.label for group in facts], np.intp)
        held_out = [np.nan if group.held_out is None else group.held_out for group in facts]
        self._held_out = np.array(held_out)
        columns = [self._open_at(k) for k in grid.start_steps]
        self.open_at_starts = np.stack(columns, axis=1)

    def add_cuts(self, table: SweepTable, measure: Measure, curves: Floats | None, at_starts: Floats) -> None:
        """Add up what each rule of this measure would cut."""
        longest = self._opened.shape[1]
        for place, start in enumerate(self._grid.start_steps):
            for every in self._grid.check_everys if curves is not None else (None,):
                checks = np.arange(start, longest + 1, every) if every is not None else np.array([start])
                checks = checks[checks <= longest]
                if every is None or curves is None:
                    values = at_starts[:, place : place + 1][:, : len(checks)]
                else:
                    values = curves[:, checks - 1]
                self._add_rule(table, (measure.name, start, every), checks, values)

    def _add_rule(self, table: SweepTable, key: RuleKey, checks: Counts, values: Floats) -> None:
        taus = self._grid.taus
        sums = table.cuts.setdefault(key, np.zeros((len(taus), 3, AMOUNTS), np.int64))
        held = table.held_out_cut.setdefault(key, np.zeros((len(taus), 2)))
        usable = self._opened[:, checks - 1] & ~np.isnan(values)
        lowest = np.minimum.accumulate(np.where(usable, values, np.inf), axis=1)
        for i, tau in enumerate(taus):
            first = (lowest >= tau).sum(axis=1)
            cut = np.flatnonzero(first < len(checks))
            np.add.at(sums[i], self._labels[cut], self.after[cut, checks[first[cut]]])
            rewards = self._held_out[cut]
            known = rewards[~np.isnan(rewards)]
            held[i] += len(known), known.sum()

    def _open_at(self, k: int) -> NDArray[np.bool_]:
        inside = k <= self._opened.shape[1]
        return self._opened[:, k - 1] if inside else np.zeros(len(self._opened), np.bool_)


def _amounts_after(groups: Sequence[Group], longest: int) -> Counts:
    """`[group, k, amount]` for k = 0 .. longest."""
    at = np.zeros((len(groups), longest + 1, AMOUNTS), np.int64)
    for i, group in enumerate(groups):
        at[i, :longest] = _amounts_at(group, longest)
    after = np.cumsum(at[:, ::-1], axis=1)[:, ::-1]
    after[:, :, 0] = 1
    return after


def _amounts_at(group: Group, longest: int) -> Counts:
    """`[k - 1, amount]` of a group's steps k, in the order of the fields of an `Amount`."""
    places = np.concatenate([np.arange(len(rollout.steps)) for rollout in group.rollouts] or [np.arange(0)])
    usages = [step.usage or _NOT_COUNTED for rollout in group.rollouts for step in rollout.steps]
    columns = [np.zeros(longest), np.bincount(places, minlength=longest)]
    for counts in (
        [usage.completion for usage in usages],
        [usage.prompt for usage in usages],
        [usage.cached for usage in usages],
    ):
        known = np.array([-1 if count is None else count for count in counts], np.int64)
        columns.append(np.bincount(places, np.maximum(known, 0), minlength=longest))
        columns.append(np.bincount(places, known < 0, minlength=longest))
    return np.stack(columns, axis=1).astype(np.int64)


def _padded(rows: Sequence[Sequence[bool]], fill: bool) -> NDArray[np.bool_]:
    padded = np.full((len(rows), max(map(len, rows))), fill)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


def _place_of(label: GroupLabel) -> int:
    if label.zero_variance is None:
        return UNKNOWN
    return ZERO_VARIANCE if label.zero_variance else SIGNAL


def _variance(rewards: Sequence[float | None]) -> float:
    scored = [reward for reward in rewards if reward is not None]
    mean = sum(scored) / len(scored)
    return sum((reward - mean) ** 2 for reward in scored) / len(scored)
