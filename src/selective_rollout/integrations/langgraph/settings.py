"""The settings of one run of the graph: those it was built with, and what its context changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from langgraph.types import RetryPolicy

from selective_rollout.engine.config import RunConfig
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.langgraph.state import GroupFacts, Plain
from selective_rollout.types import Level, Mode, Outcome, Padding


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupContext:
    """Settings that a run may change; None keeps what the graph was built with.

    They are read when a group opens and recorded in its state, so a resumed run needs no context.
    """

    group_size: int | None = None
    max_steps: int | None = None
    mode: Mode | None = None
    """observe: record what the gate would do; enforce: carry it out."""
    outcome: Outcome | None = None
    """What becomes of a cut group: drop, survivor or vote."""
    start_step: int | None = None
    """First step after which the group is checked."""
    tau: float | None = None
    """The group fires if distance < tau."""
    check_every: int | None = None
    level: Level | None = None
    padding: Padding | None = None
    min_members: int | None = None
    """Fewest members that must be present at a check."""
    vetoes: tuple[str, ...] | None = None
    """Facts that keep a group whatever its distance; any sequence of names."""
    reward_tolerance: float | None = None
    """Rewards within this range are equal."""
    separator: str | None = None
    """Joins action texts at level char."""
    audit_rate: float | None = None
    rollout_timeout_s: float | None = None
    max_attempts: int | None = None
    """How often a step that broke is tried, the first time included."""
    seed: int | None = None
    temperature: float | None = None

    @classmethod
    def read(cls, context: Any) -> GroupContext:
        """Take the context that a run was given: nothing, a dict, or an instance.

        Raises:
            ConfigError: unknown settings (named, with the known ones), or something else.
        """
        if context is None:
            return cls()
        if isinstance(context, cls):
            return context
        if not isinstance(context, Mapping):
            raise ConfigError(f"context must be a dict or a GroupContext, not {type(context).__name__}")
        unknown = sorted(map(str, set(context) - set(SETTINGS)))
        if unknown:
            raise ConfigError(
                f"context: unknown setting {', '.join(unknown)}; known are {', '.join(SETTINGS)}"
            )
        return cls(**context)

    def apply(self, gate: GateConfig, config: RunConfig) -> tuple[GateConfig, RunConfig]:
        """The settings in force.

        Raises:
            ConfigError: a value is out of range, or contradicts another.
        """
        given = {name: value for name in SETTINGS if (value := getattr(self, name)) is not None}
        run = {name: value for name, value in given.items() if name in _RUN}
        rule = {name: value for name, value in given.items() if name not in (*_RUN, _OF_THE_RUN)}
        return replace(gate, **rule), replace(config, **run)

    def retry(self, built: RetryPolicy | None) -> RetryPolicy | None:
        """How steps that broke are tried again.

        Raises:
            ConfigError: max_attempts is below 1.
        """
        if self.max_attempts is None:
            return built
        if self.max_attempts < 1:
            raise ConfigError(f"context: max_attempts must be at least 1, not {self.max_attempts}")
        return (built or RetryPolicy())._replace(max_attempts=self.max_attempts)


SETTINGS: Final = tuple(field.name for field in fields(GroupContext))
"""Names of the settings that a context may hold."""

_RECORDED: Final = ("max_steps", "mode", "seed", "temperature", "audit_rate", "rollout_timeout_s")
_OF_THE_RUN: Final = "max_attempts"
"""Of one run, and no matter of the group's: a resumed group may be given another."""
_RUN: Final = ("group_size", *_RECORDED)


def record(gate: GateConfig, config: RunConfig) -> Plain:
    """The settings as the state keeps them."""
    return {**{name: getattr(config, name) for name in _RECORDED}, "gate": gate.to_dict()}


def restore(group: GroupFacts, context: GroupContext, built: RunConfig) -> tuple[GateConfig, RunConfig]:
    """The settings that a group was opened with, also if another run goes on with it.

    Args:
        group: the group's facts in the state.
        context: what the run was given.
        built: holds what is no data, such as how actions are read.

    Raises:
        ConfigError: the context contradicts what the group was opened with.
    """
    run = {name: group["settings"][name] for name in _RECORDED}
    config = replace(built, group_size=group["group_size"], **run)
    gate = GateConfig.from_dict(group["settings"]["gate"], "state.settings.gate")
    for name in SETTINGS:
        given = getattr(context, name)
        if given is None or name == _OF_THE_RUN:
            continue
        kept = getattr(config if name in _RUN else gate, name)
        if (tuple(given) if name == "vetoes" else given) != kept:
            raise ConfigError(
                f"context: {name} {given!r} differs from the {kept!r} that group {group['group_id']!r} was "
                "opened with; a resumed group keeps its settings"
            )
    return gate, config
