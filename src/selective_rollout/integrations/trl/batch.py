"""The groups of one generation batch on one rank, and which of its rows belong to whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.training import TrainingGate, TrainingGroup
from selective_rollout.errors import ConfigError, GroupError
from selective_rollout.types import SamplingInfo

Row = dict[str, Any]
"""One row of the dataset, as the trainer hands it on."""

ROW_NUMBER: Final = "selective_rollout_row"
"""Column that tells rows apart where the dataset has none for it; nobody's functions get to see it."""


def visible(row: Mapping[str, Any]) -> Row:
    """A copy of a row as the user's functions know it."""
    return {name: value for name, value in row.items() if name != ROW_NUMBER}


@dataclass(slots=True)
class Slot:
    """The place of one group: G rows, one after the other."""

    first: int
    size: int
    group: TrainingGroup | None
    """None: the prompt was skipped, and nothing is generated for it."""
    failed: set[int] = field(default_factory=set)
    """Members that infrastructure broke: no behaviour of the policy."""
    outcome: GroupOutcome | None = None

    @property
    def rows(self) -> range:
        """Their places in the rank's batch."""
        return range(self.first, self.first + self.size)

    @property
    def dropped(self) -> bool:
        """Whether the group as a whole teaches nothing: skipped, or cut."""
        return self.group is None or self.group.stopped

    def weight(self, audit_rate: float) -> float:
        """Gradient weight that makes up for the groups cut: 1/audit_rate for a would-be cut that ran on."""
        outcome = self.outcome
        if outcome is None or not outcome.audited or outcome.would_cut_at is None:
            return 1.0
        return 1.0 / audit_rate


class GateBatch:
    """Opens the groups of a rank's batch, and closes them whatever happens.

    Args:
        gate: the run's gate.
        inputs: the rank's rows; the groups lie one after the other, `size` rows each.
        size: rollouts of a group.
        name: prefix of the group ids, unique over the run.
        run: tells this run's groups from those of an earlier one in the same trace; None: nothing does.
        task_column: column of the prompt's own identity; None: every group is its own task.
        temperature: declared sampling temperature.
        may_skip: whether prompts may be skipped.

    Raises:
        ConfigError: the rows are no whole groups, or there is no such column.
        GroupError: rows of one group belong to different tasks.
    """

    def __init__(
        self,
        gate: TrainingGate,
        inputs: Sequence[Mapping[str, Any]],
        size: int,
        *,
        name: str,
        run: str | None = None,
        task_column: str | None,
        temperature: float | None = None,
        may_skip: bool = True,
    ) -> None:
        if len(inputs) % size:
            raise ConfigError(
                f"{len(inputs)} rows are no whole groups of {size}: a group straddles processes"
            )
        self.gate = gate
        self.inputs = [visible(row) for row in inputs]
        """The rows as everybody else sees them; those of a replaced group are changed in place."""
        self.name = name
        self._run = run
        self._size = size
        self._task_column = task_column
        self._sampling = [SamplingInfo(temperature=temperature)] * size
        self._extra = 0
        self.slots: list[Slot] = []
        for index, first in enumerate(range(0, len(inputs), size)):
            slot = Slot(first, size, None)
            self.slots.append(slot)
            self._begin(slot, f"{name}-{index}", inputs[first : first + size], may_skip)
        self.new_prompts: dict[int, Any] = {}
        """Prompts of the rows whose group was replaced."""

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.inputs)

    def members(self) -> Iterator[tuple[int, Slot, int]]:
        """Every row with its slot and the rollout's index in it."""
        for slot in self.slots:
            for member, row in enumerate(slot.rows):
                yield row, slot, member

    def kept(self) -> list[bool]:
        """Which rows may teach: their group was neither skipped nor cut, and they did not break."""
        return [not slot.dropped and member not in slot.failed for _, slot, member in self.members()]

    def weights(self, audit_rate: float) -> list[float]:
        """Weights of the rows, see `Slot.weight`; ask after the groups were closed."""
        return [slot.weight(audit_rate) for _, slot, _ in self.members()]

    def is_under_way(self, row: Mapping[str, Any]) -> bool:
        """Whether a group of this row's task is in the batch."""
        if self._task_column is None:
            return False
        task_id = str(row[self._task_column])
        return any(slot.group is not None and slot.group.task_id == task_id for slot in self.slots)

    def replace(self, slot: Slot, row: Mapping[str, Any]) -> bool:
        """Give a dropped group's place to a fresh prompt; False: that one is to be skipped too."""
        if slot.group is not None:
            slot.group.close()
        self._extra += 1
        slot.failed.clear()
        self._begin(slot, f"{self.name}-x{self._extra}", [row] * slot.size, may_skip=True)
        if slot.group is None:
            return False
        for place in slot.rows:
            self.inputs[place].clear()
            self.inputs[place].update(visible(row))
            self.new_prompts[place] = row["prompt"]
        return True

    def close(self, rewards: Sequence[float | None] | None = None) -> None:
        """End the groups; rewards[i] of row i."""
        for slot in self.slots:
            if slot.group is not None and slot.outcome is None:
                given = None if rewards is None else [rewards[row] for row in slot.rows]
                slot.outcome = slot.group.close(given)

    def _begin(self, slot: Slot, group_id: str, rows: Sequence[Mapping[str, Any]], may_skip: bool) -> None:
        task_id = self._task_of(group_id, rows)
        slot.group = None
        if may_skip and self.gate.skips(task_id, group_id):
            return
        slot.group = self.gate.open(
            group_id,
            self._size,
            task_id=task_id,
            recorded_as=None if self._run is None else f"{group_id}@{self._run}",
            sampling=self._sampling,
        )

    def _task_of(self, group_id: str, rows: Sequence[Mapping[str, Any]]) -> str:
        if self._task_column is None:
            return group_id
        if self._task_column not in rows[0]:
            raise ConfigError(f"the dataset has no column {self._task_column!r}, which names the tasks")
        tasks = {str(row[self._task_column]) for row in rows}
        if len(tasks) > 1:
            raise GroupError(
                f"the rows of group {group_id!r} belong to {len(tasks)} tasks: {sorted(tasks)[:3]}"
            )
        return tasks.pop()
