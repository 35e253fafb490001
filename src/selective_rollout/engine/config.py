"""How groups are run: everything that is not the decision rule itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from selective_rollout.actions import ActionOptions
from selective_rollout.draws import sampling_seed
from selective_rollout.errors import ConfigError
from selective_rollout.gate.streaming import StreamRule
from selective_rollout.types import Hold, Mode, Outcome, SamplingInfo, Stop


@dataclass(frozen=True, slots=True)
class RunConfig:
    """How the rollouts of a group are run.

    Raises:
        ConfigError: a field is out of range; the message names it.
    """

    group_size: int = 8
    max_steps: int = 30
    mode: Mode = "observe"
    """observe: record what the gate would do, never hold or stop anything. enforce: carry its cuts out."""
    hold: Hold | None = None
    """Who waits at a check for the slower members; None: `all` for drop, `followers` for survivor."""
    stop: Stop = "safe"
    """What a cut may interrupt: safe: requests, never a running tool; drain: nothing, the step completes;
    cancel: both."""
    concurrency: int = 16
    """Requests in flight at once, over all groups."""
    audit_rate: float = 0.0
    """Share of groups, drawn by id, whose would-be cut runs on."""
    hold_timeout_s: float = 120.0
    """A longer hold releases everybody and switches the gate off for the group."""
    stop_timeout_s: float = 5.0
    """Longest wait for stopped work (a request, a tool, a judge) to end; whatever comes later is ignored."""
    rollout_timeout_s: float | None = None
    """A rollout that takes longer fails; time spent held does not count."""
    seed: int = 0
    """Base of the sampling seeds, which differ by group and rollout, and of audit draws."""
    temperature: float | None = None
    """Declared sampling temperature; 0 means that siblings are copies, and no group is cut."""
    stream: StreamRule | None = None
    """Also watch the completions while they are generated, and cut inside a step; see `gate.streaming`."""
    actions: ActionOptions = field(default_factory=ActionOptions)

    def __post_init__(self) -> None:
        if self.group_size < 2:
            raise ConfigError(f"run.group_size must be at least 2, not {self.group_size}")
        if self.max_steps < 1:
            raise ConfigError(f"run.max_steps must be at least 1, not {self.max_steps}")
        if self.concurrency < 1:
            raise ConfigError(f"run.concurrency must be at least 1, not {self.concurrency}")
        if not 0.0 <= self.audit_rate <= 1.0:
            raise ConfigError(f"run.audit_rate must be in [0, 1], not {self.audit_rate!r}")
        for name in ("hold_timeout_s", "stop_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"run.{name} must be above 0, not {getattr(self, name)!r}")
        for name, value, kind in (("mode", self.mode, Mode), ("stop", self.stop, Stop)):
            if value not in get_args(kind):
                raise ConfigError(f"run.{name} must be one of {', '.join(get_args(kind))}, not {value!r}")
        if self.hold is not None and self.hold not in get_args(Hold):
            raise ConfigError(f"run.hold must be one of {', '.join(get_args(Hold))}, not {self.hold!r}")

    def hold_for(self, outcome: Outcome) -> Hold:
        """The hold in force: as set, else `all` in training and `followers` at inference."""
        if self.hold is not None:
            return self.hold
        return "all" if outcome == "drop" else "followers"

    def sampling_of(self, group_id: str) -> list[SamplingInfo]:
        """How each rollout of a group is sampled, as declared: with a seed of its own."""
        return [
            SamplingInfo(seed=sampling_seed(self.seed, group_id, i), temperature=self.temperature)
            for i in range(self.group_size)
        ]

    @property
    def open_groups(self) -> int:
        """Most groups under way at once: enough to fill the slots, and depth first."""
        return max(1, self.concurrency // self.group_size) + 1
