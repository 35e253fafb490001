"""What an import read, repaired and left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final

MAX_LISTED: Final = 50
"""Problems listed one by one; all of them are counted."""


@dataclass(slots=True)
class ImportReport:
    """Counts of one import; every record that was not taken over as it stood is in one of them.

    Attributes:
        records: records in the files, one or several rollouts each.
        groups: groups written; `zero_variance + signal_bearing + unknown` of them.
        rollouts: rollouts written, one per member of a group; `steps` is their total.
        unscored: rollouts that ended normally without a reward.
        failed: rollouts lost to infrastructure; their rewards are left out (`rewards_left_out`).
        truncated: rollouts that ran into a limit.
        cut: rollouts that a gate of the source had stopped.
        running: rollouts whose end the source had not seen.
        without_actions: rollouts that ended normally without a step.
        superseded: earlier attempts of rollouts that were started again.
        retried_steps: repeated calls with the id and the arguments of an earlier one, counted once.
        ghost_turns: turns after one that its token limit had cut off, left out.
        late_rewards: rewards taken from the rewards file.
        skipped: records left out altogether.
        sizes: number of groups by group size.
        warnings: what the user should know before trusting a statistic, one line each.
        problems: repaired and skipped records, one line each with file:line; the first `MAX_LISTED`.
        problem_count: all of them.
    """

    format: str
    files: int = 0
    bytes: int = 0
    records: int = 0
    groups: int = 0
    zero_variance: int = 0
    signal_bearing: int = 0
    unknown: int = 0
    rollouts: int = 0
    steps: int = 0
    unscored: int = 0
    failed: int = 0
    truncated: int = 0
    cut: int = 0
    running: int = 0
    without_actions: int = 0
    superseded: int = 0
    retried_steps: int = 0
    ghost_turns: int = 0
    rewards_left_out: int = 0
    late_rewards: int = 0
    skipped: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    problem_count: int = 0

    def note(self, where: str, problem: str) -> None:
        """Count a repaired or skipped record, and list it while there is room."""
        self.problem_count += 1
        if len(self.problems) < MAX_LISTED:
            self.problems.append(f"{where}: {problem}")

    def skip(self, where: str, reason: str) -> None:
        """Count a record that is left out."""
        self.skipped += 1
        self.note(where, f"skipped: {reason}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a JSON document."""
        return {**asdict(self), "sizes": {str(size): n for size, n in sorted(self.sizes.items())}}
