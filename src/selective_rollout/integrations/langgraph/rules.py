"""What decides about the groups of a `GroupRunner`, and who keeps their records."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.past import past_of
from selective_rollout.engine.rule import AcceptedRule
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.gate.signals import signal
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Rollout

Aggregate: TypeAlias = Callable[[Sequence[Rollout]], Any]
"""Makes the group's answer of the rollouts that ended normally; may be a coroutine function."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The gate and what it reads beside the rollouts."""

    accepted: AcceptedRule
    aggregate: Aggregate | None = None
    recorder: Recorder | None = None
    history: PromptHistory | None = None

    @property
    def gate(self) -> GateConfig:
        """The decision rule."""
        return self.accepted.rule

    def check(self, config: RunConfig) -> None:
        """Refuse, or warn of, what cannot work.

        Raises:
            ConfigError: settings that contradict each other.
        """
        gate = self.gate
        if self.aggregate is not None and gate.outcome == "vote" and config.mode == "enforce":
            raise ConfigError(
                'gate.outcome "vote" stops once a majority is decided, and an aggregate of your own needs '
                'every answer: use outcome "survivor", or mode "observe"'
            )
        for name in gate.score.features if gate.score is not None else ():
            late = sorted(signal(name).needs & {"observations", "errors"})
            if late:
                raise ConfigError(
                    f"gate.score reads {' and '.join(late)} ({name}), which are not known yet where this "
                    "runner decides, before the tools of a step run: fit a score without it"
                )
        if gate.history_mixed and self.history is None:
            warnings.warn(
                "gate.history_mixed needs a PromptHistory: without one this gate can never fire", stacklevel=4
            )

    def facts_about(self, task_id: str, metadata: Mapping[str, Any], group_size: int) -> dict[str, Any]:
        """What the rule reads of a prompt when its group opens; fields of `record.Identity`."""
        past = past_of(self.history, self.gate, task_id, group_size)
        return {
            "tau": self.accepted.tau_for(metadata),
            "past": past.rewards,
            "past_p": past.p_zero_variance,
        }
