"""Groups of a loop that says nothing about groups: told apart by the task's key and by time."""

from __future__ import annotations

import multiprocessing
import uuid
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Final

from verifiers.v1 import Trace
from verifiers.v1.serve.pool import serve_env

from selective_rollout.actions import DEFAULT_OPTIONS, ActionOptions
from selective_rollout.engine.training import TrainingGate, TrainingGroup
from selective_rollout.errors import ConfigError
from selective_rollout.integrations.verifiers.seat import Seat, sampling_info, seat_of

_WORKER_ADDRESS: Final = "ipc://"
"""A pool's workers listen there, and nobody else does."""


class AmbiguousGroupWarning(UserWarning):
    """More rollouts of one task run at once than its group has; the gate is off for that task."""


def task_key(trace: Trace) -> str:
    """Return verifiers' own key of the task: the hash of its data, unless the task says otherwise."""
    return str(trace.task.key or trace.task.hash)


class KeyedGroups:
    """Seats rollouts of the same key together, in the order in which they make their first model call.

    The rollouts of one group overlap in time: once all that have come are over, the next one of that key
    begins another group. A rollout that comes while a full group of its key still runs makes it impossible
    to say who belongs where, so the group is let run, and so is every later one of that key. `run_group`
    has no such limits.

    Args:
        gate: the run's gate.
        size: rollouts of each group.
        key: tells a group by a trace, if the loop puts an identity of its own into the task's data.
        actions: how messages become actions.
        max_open: most groups open at once; beyond it the oldest is let run.

    Raises:
        ConfigError: size or max_open is below 1.
    """

    def __init__(
        self,
        gate: TrainingGate,
        size: int,
        *,
        key: Callable[[Trace], str] = task_key,
        actions: ActionOptions = DEFAULT_OPTIONS,
        max_open: int = 4096,
    ) -> None:
        if size < 1 or max_open < 1:
            raise ConfigError(f"size and max_open must be at least 1, not {size} and {max_open}")
        self.gate = gate
        self.size = size
        self._key = key
        self._options = actions
        self._max_open = max_open
        self._run = uuid.uuid4().hex[:8]
        self._tables: dict[str, _Table] = {}
        self._visits: Counter[str] = Counter()
        self._ambiguous: set[str] = set()

    async def group_gate(self, trace: Trace) -> bool:
        """The stop hook: name it in `TaskConfig.stops` by its import path.

        Raises:
            ConfigError: this process is a worker of an environment server's pool, which sees parts of groups.
        """
        seat = seat_of(trace) or self._join(trace)
        return seat is not None and await seat.refuses()

    def close(self) -> None:
        """Close the groups still open; their rollouts run on."""
        for key in list(self._tables):
            self._close(key)

    def _join(self, trace: Trace) -> Seat | None:
        _refuse_pool()
        key = self._key(trace)
        if key in self._ambiguous:
            return None
        table = self._tables.get(key)
        if table is not None and table.over:
            self._close(key)
            table = None
        elif table is not None and len(table.seats) == self.size:
            self._give_up(key, table)
            return None
        if table is None:
            table = self._open(key, trace)
        seat = Seat(table.group, len(table.seats), trace, self._options, table.settle)
        table.seats.append(seat)
        return seat

    def _open(self, key: str, trace: Trace) -> _Table:
        for other, table in list(self._tables.items()):
            if table.settled:
                self._close(other)
        if len(self._tables) >= self._max_open:
            self._close(next(iter(self._tables)))
        visit, self._visits[key] = self._visits[key], self._visits[key] + 1
        group = self.gate.open(
            f"{key}-{visit}",
            self.size,
            task_id=key,
            recorded_as=f"{key}-{visit}@{self._run}",
            sampling=[sampling_info(trace.agent.config.sampling)] * self.size,
        )
        table = self._tables[key] = _Table(group, lambda: self._close(key, only=table))
        return table

    def _give_up(self, key: str, table: _Table) -> None:
        self._ambiguous.add(key)
        came_too_late = (
            " It had been cut: check what its rollouts were used for." if table.group.stopped else ""
        )
        self._close(key)
        warnings.warn(
            f"more than {self.size} rollouts of task {key!r} run at once, so group {table.group.id!r} cannot "
            f"be told from the next one; the gate is off for this task.{came_too_late} Use run_group, or "
            "tell groups apart by KeyedGroups(key=...)",
            AmbiguousGroupWarning,
            stacklevel=4,
        )

    def _close(self, key: str, only: _Table | None = None) -> None:
        table = self._tables.get(key)
        if table is not None and only in (None, table):
            del self._tables[key]
            table.close()


class _Table:
    """A group and those of its members that have come."""

    def __init__(self, group: TrainingGroup, on_settled: Callable[[], None]) -> None:
        self.group = group
        self.seats: list[Seat] = []
        self._on_settled = on_settled

    @property
    def over(self) -> bool:
        """Whether all that have come have ended."""
        return all(seat.ended for seat in self.seats)

    @property
    def settled(self) -> bool:
        """Whether all that have come have ended, and are scored as far as they will be."""
        return all(seat.settled for seat in self.seats)

    def settle(self) -> None:
        """Close the group if nothing more is to come."""
        if self.settled:
            self._on_settled()

    def close(self) -> None:
        """Close the group, whatever its members do."""
        rewards = [seat.reward if seat.settled else None for seat in self.seats]
        self.group.close([*rewards, *[None] * (self.group.size - len(rewards))])
        for seat in self.seats:
            seat.leave()


def _refuse_pool() -> None:
    """Refuse to work in one of several processes that share out the rollouts of a group."""
    process = multiprocessing.current_process()
    address = getattr(process, "_kwargs", {}).get("address")
    if getattr(process, "_target", None) is serve_env and str(address).startswith(_WORKER_ADDRESS):
        raise ConfigError(
            "group_gate: this environment server runs a pool of workers, which split each group among them; "
            "serve the environment with max_workers=1, or take the hook out of the task's stops"
        )
