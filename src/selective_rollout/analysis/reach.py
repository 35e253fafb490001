"""How far recorded groups run: whether a check at a step can tell anything, and which step to try instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from selective_rollout.analysis.accounting import was_stopped
from selective_rollout.analysis.split import Split
from selective_rollout.trace.reader import RecordedGroup

_HARDLY_ANY: Final = 0.1
"""With a smaller share of the groups still running, a check there tells nothing."""
_MOST: Final = 0.75
"""Share of the groups that still run at a step which is suggested."""


@dataclass(slots=True)
class Reach:
    """Groups by the steps they took. A group still runs at step k if one of its members goes beyond it."""

    longest: Counter[int] = field(default_factory=Counter)
    """Groups by the steps of their longest rollout, without those that a gate stopped on the way."""
    free: Counter[int] = field(default_factory=Counter)
    """The same, of the groups that a step may be chosen on."""
    decided: Counter[int] = field(default_factory=Counter)
    """Groups by the step at which the gate that was on decided first."""

    def add(self, recorded: RecordedGroup, *, may_choose: bool = True) -> None:
        """Take one group; `may_choose` tells whether the suggested step may depend on it."""
        checks = [decision.step for decision in recorded.decisions if decision.step is not None]
        if checks:
            self.decided[min(checks)] += 1
        if not was_stopped(recorded.group):
            steps = max((len(rollout.steps) for rollout in recorded.group.rollouts), default=0)
            self.longest[steps] += 1
            if may_choose:
                self.free[steps] += 1

    def watch(self, groups: Iterable[RecordedGroup], split: Split) -> Iterator[RecordedGroup]:
        """Pass groups through, taking each; a step is chosen on the *choose* part alone."""
        for recorded in groups:
            self.add(recorded, may_choose=split.part(recorded.group.task_id) == "choose")
            yield recorded

    @property
    def groups(self) -> int:
        """Groups taken, without those that a gate stopped."""
        return self.longest.total()

    def running(self, k: int) -> int:
        """Groups that still run at step k."""
        return _beyond(self.longest, k)

    def is_too_late(self, k: int) -> bool:
        """Whether hardly any group still runs at step k."""
        return self.running(k) < _HARDLY_ANY * self.groups

    @property
    def suggested(self) -> int | None:
        """The step at which the recorded gate decided, else the last one that most groups go beyond.

        None if that would be no step at all, or nothing may be chosen on these groups.
        """
        for step, _ in self.decided.most_common(1):
            if 2 * self.running(step) >= self.groups:
                return step
        steps = (k for k in range(max(self.free, default=0), 0, -1))
        return next((k for k in steps if _beyond(self.free, k) >= _MOST * self.free.total()), None)

    def shortfall(self, k: int) -> str | None:
        """Why a check at step k tells little, and what to try; None if at least half of the groups run."""
        running, groups = self.running(k), self.groups
        if 2 * running >= groups:
            return None
        if self.is_too_late(k):
            found = (
                f"hardly any group ({running:,} of {groups:,}) still runs at step {k}, so nothing can be "
                "said about a check there"
            )
        else:
            found = (
                f"only {running:,} of {groups:,} groups still run at step {k}, and the others cannot be cut"
            )
        return f"{found}; {self._advice()}"

    def to_dict(self, k: int) -> dict[str, object]:
        """Plain data for JSON output, about a check at step k."""
        return {
            "step": k,
            "groups": self.groups,
            "still_running": self.running(k),
            "too_late": self.is_too_late(k),
            "try_start_step": self.suggested,
        }

    def _advice(self) -> str:
        step = self.suggested
        if step is None:
            return "look where the rollouts end, and check earlier"
        if step in self.decided:
            return f"try --start-step {step}, where the recorded gate decided"
        return f"try --start-step {step}, where {self.running(step):,} of {self.groups:,} still run"


def _beyond(longest: Counter[int], k: int) -> int:
    return sum(count for steps, count in longest.items() if steps > k)
