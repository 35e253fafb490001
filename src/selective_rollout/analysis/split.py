"""Honest splits: which tasks may be looked at to choose a rule, and which are kept to certify it.

The independent unit is the task. A task belongs to one part for good, by a hash of its id, so that recording
more groups later moves nothing from one part to the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Generic, Literal, TypeAlias, TypeVar

from selective_rollout.draws import stable_fraction
from selective_rollout.errors import ConfigError
from selective_rollout.trace.reader import trace_files

T = TypeVar("T")

Part: TypeAlias = Literal["choose", "certify"]

_MARK: Final = ".swept"


@dataclass(frozen=True, slots=True)
class Split:
    """How tasks are divided.

    Raises:
        ConfigError: the share is not in [0, 1).
    """

    choose_share: float = 0.4
    """Share of the tasks that a sweep may see; 0: nothing is set aside, the rule was fixed beforehand."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.choose_share < 1:
            raise ConfigError(
                f"split: the share of tasks to choose on must be in [0, 1), not {self.choose_share}"
            )

    def part(self, task_id: str) -> Part:
        """The part of a task."""
        return "choose" if stable_fraction("split", self.seed, task_id) < self.choose_share else "certify"


class OnePerTask(Generic[T]):
    """Draws one group per task, in one pass and whatever the order of the groups.

    Groups of one task are not independent: counted one by one, they would promise more than they can hold.

    Args:
        seed: another seed draws other groups.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._drawn: dict[str, tuple[float, str, T]] = {}

    def __len__(self) -> int:
        """Number of tasks."""
        return len(self._drawn)

    def offer(self, task_id: str, group_id: str, item: T) -> None:
        """Let a group take part in the draw of its task."""
        place = (stable_fraction("one per task", self._seed, task_id, group_id), group_id)
        drawn = self._drawn.get(task_id)
        if drawn is None or place < drawn[:2]:
            self._drawn[task_id] = (*place, item)

    @property
    def items(self) -> list[T]:
        """The drawn groups' items, ordered by task id."""
        return [self._drawn[task_id][2] for task_id in sorted(self._drawn)]


def mark_swept(paths: Iterable[Path | str], split: Split | None) -> None:
    """Leave a mark beside each trace file that a sweep looks at; every sweep does, with any split.

    Args:
        paths: files and folders, as given to the reader.
        split: the split whose *choose* part was seen; None: all tasks were (`sweep --all`).

    Raises:
        ConfigError: the mark cannot be written.
        TraceError: a path holds no trace.
    """
    line = json.dumps("all" if split is None else asdict(split))
    for file in trace_files(paths):
        mark = file.with_name(file.name + _MARK)
        try:
            seen = mark.read_text(encoding="utf-8").splitlines() if mark.exists() else []
            if line not in seen:
                mark.write_text("\n".join([*seen, line]) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{mark}: cannot mark the trace as swept ({error.strerror})") from None


def require_unseen(paths: Iterable[Path | str], split: Split) -> None:
    """Refuse traces of which a sweep has seen tasks that this split keeps to certify.

    Raises:
        ConfigError: names the file and what was seen of it.
        TraceError: a path holds no trace.
    """
    allowed = json.dumps(asdict(split))
    for file in trace_files(paths):
        mark = file.with_name(file.name + _MARK)
        if not mark.exists():
            continue
        for line in mark.read_text(encoding="utf-8").splitlines():
            if line == json.dumps("all"):
                raise ConfigError(
                    f"{file}: a sweep has looked at all of its tasks (--all), so none is left to certify on; "
                    "record fresh groups"
                )
            if line != allowed:
                raise ConfigError(
                    f"{file}: a sweep has looked at another part of its tasks ({line}) than this calibration "
                    "sets aside; use the same share and seed"
                )
