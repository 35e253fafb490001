"""`PromptHistory`: what a prompt's earlier groups were rewarded, the best free predictor of the next one.

A prompt that was all-fail or all-success before is likely to be so again. The history feeds a veto (fire only
if the last H rewards were all equal too), a skip before the first step with a probability below 1, and the
fitted score. It holds for the policy that produced it, so visits carry a policy version and fade.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from selective_rollout.draws import stable_fraction
from selective_rollout.errors import ConfigError
from selective_rollout.gate.priors import BetaPrior, fit_beta_prior
from selective_rollout.rewards import ZERO_VARIANCE_TOLERANCE, scored_only

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, order=True)
class Visit:
    """The rewards of one earlier group of a prompt."""

    policy_version: int
    order: int
    """Counts up within one recording history; ties between merged histories are broken by group id."""
    group_id: str
    rewards: tuple[float, ...]
    """Scored rewards in rollout order; members that failed or are unscored are left out."""


class PromptHistory:
    """Rewards of earlier groups per task_id, newest last.

    Args:
        half_life: visits after which an old group counts half in `p_zero_variance`.
        keep: visits remembered per task.
        max_version_gap: visits more than this many policy versions behind the task's newest are dropped;
            None keeps them.
        success_above: a reward above this counts as a success in `p_zero_variance`.
    """

    def __init__(
        self,
        *,
        half_life: float = 3.0,
        keep: int = 16,
        max_version_gap: int | None = None,
        success_above: float = 0.5,
    ) -> None:
        if not half_life > 0:
            raise ConfigError(f"history.half_life must be above 0, not {half_life!r}")
        if keep < 1:
            raise ConfigError(f"history.keep must be at least 1, not {keep!r}")
        self.half_life = half_life
        self.keep = keep
        self.max_version_gap = max_version_gap
        self.success_above = success_above
        self._visits: dict[str, tuple[Visit, ...]] = {}
        self._counts: dict[str, tuple[float, float]] = {}
        """Decayed trials and successes of each task."""
        self._fitted: BetaPrior | None = None
        self._count = 0

    def __len__(self) -> int:
        """Number of tasks with at least one visit."""
        return len(self._visits)

    def empty(self) -> PromptHistory:
        """A history of the same settings without a visit; what it records counts on from this one."""
        history = PromptHistory(
            half_life=self.half_life,
            keep=self.keep,
            max_version_gap=self.max_version_gap,
            success_above=self.success_above,
        )
        history._count = self._count
        return history

    def record(
        self,
        task_id: str,
        group_id: str,
        rewards: Iterable[float | None],
        *,
        was_cut: bool = False,
        policy_version: int = 0,
    ) -> None:
        """Remember a group's rewards. Rewards of cut groups never enter, nor do unscored members."""
        scored = tuple(scored_only(rewards))
        if was_cut or not scored:
            return
        self._count += 1
        self._add(task_id, [Visit(policy_version, self._count, group_id, scored)])

    def last(self, task_id: str, n: int) -> tuple[float, ...]:
        """The prompt's last rewards, newest last; at most n, fewer if fewer are known."""
        rewards = [reward for visit in self._visits.get(task_id, ()) for reward in visit.rewards]
        return tuple(rewards[-n:]) if n > 0 else ()

    def p_zero_variance(self, task_id: str, group_size: int) -> float | None:
        """Probability that the next group of this prompt has equal binary rewards; None without history.

        Beta-binomial with decayed counts; the prior is fitted to all prompts by the method of moments.
        """
        visits = self._visits.get(task_id)
        if not visits:
            return None
        return self._prior().p_zero_variance(group_size, *self._counts[task_id])

    def should_skip(
        self, task_id: str, group_id: str, *, last: int, probability: float, seed: object = 0
    ) -> bool:
        """Whether to skip this group before its first step.

        True with the given probability if the prompt's last rewards, `last` of them, were all equal. The draw
        depends on seed and group_id alone. The probability must stay below 1, or the prompt would never be
        looked at again.

        Raises:
            ConfigError: probability outside [0, 1), or last below 1.
        """
        if last < 1:
            raise ConfigError(f"history: a skip looks at 1 reward or more, not {last!r}")
        if not 0.0 <= probability < 1.0:
            raise ConfigError(f"history: the skip probability must be in [0, 1), not {probability!r}")
        rewards = self.last(task_id, last)
        if len(rewards) < last or max(rewards) - min(rewards) > ZERO_VARIANCE_TOLERANCE:
            return False
        return stable_fraction("skip", seed, group_id) < probability

    def merge(self, other: PromptHistory) -> None:
        """Take over the visits of another history; a group known to both counts once, in any merge order."""
        self._count = max(self._count, other._count)
        for task_id, visits in other._visits.items():
            self._add(task_id, visits)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the inverse of `from_dict`."""
        return {
            "history_version": _FORMAT,
            "half_life": self.half_life,
            "keep": self.keep,
            "max_version_gap": self.max_version_gap,
            "success_above": self.success_above,
            "tasks": {
                task_id: [[v.policy_version, v.order, v.group_id, list(v.rewards)] for v in visits]
                for task_id, visits in self._visits.items()
            },
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "history") -> PromptHistory:
        """Read a history back.

        Raises:
            ConfigError: the data has another format.
        """
        try:
            if values["history_version"] != _FORMAT:
                raise ConfigError(f"{where}: history_version {values['history_version']!r} is not {_FORMAT}")
            history = cls(
                half_life=values["half_life"],
                keep=values["keep"],
                max_version_gap=values["max_version_gap"],
                success_above=values["success_above"],
            )
            for task_id, rows in values["tasks"].items():
                visits = [Visit(int(v), int(o), str(g), tuple(map(float, r))) for v, o, g, r in rows]
                history._add(task_id, visits)
                history._count = max(history._count, *(visit.order for visit in visits))
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{where}: not a prompt history ({error})") from None
        return history

    def save(self, path: Path) -> None:
        """Write the history as JSON; the old file stays intact until the new one is complete.

        Raises:
            ConfigError: the file cannot be written.
        """
        partial = path.with_name(path.name + ".partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(self.to_dict()), encoding="utf-8")
            os.replace(partial, path)
        except OSError as error:
            raise ConfigError(f"{path}: cannot write the prompt history ({error.strerror})") from None

    @classmethod
    def load(cls, path: Path) -> PromptHistory:
        """Read a saved history.

        Raises:
            ConfigError: the file is no prompt history.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot read the prompt history ({error})") from None
        return cls.from_dict(values, where=str(path))

    def _add(self, task_id: str, visits: Sequence[Visit]) -> None:
        by_group: dict[str, Visit] = {}
        for visit in sorted((*self._visits.get(task_id, ()), *visits)):
            by_group.setdefault(visit.group_id, visit)
        ordered = list(by_group.values())
        if self.max_version_gap is not None:
            oldest = ordered[-1].policy_version - self.max_version_gap
            ordered = [visit for visit in ordered if visit.policy_version >= oldest]
        self._visits[task_id] = tuple(ordered[-self.keep :])
        self._counts[task_id] = self._decayed(self._visits[task_id])
        self._fitted = None

    def _decayed(self, visits: Sequence[Visit]) -> tuple[float, float]:
        """Trials and successes, each visit halved per `half_life` later visits."""
        trials = successes = 0.0
        for age, visit in enumerate(reversed(visits)):
            weight = math.exp2(-age / self.half_life)
            trials += weight * len(visit.rewards)
            successes += weight * sum(reward > self.success_above for reward in visit.rewards)
        return trials, successes

    def _prior(self) -> BetaPrior:
        if self._fitted is None:
            self._fitted = fit_beta_prior(list(self._counts.values()))
        return self._fitted
