"""The hook for a config file: no code at all, settings from the environment."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Mapping
from typing import Final

from verifiers.v1 import Trace

from selective_rollout.engine.training import TrainingGate
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.verifiers.keyed import KeyedGroups
from selective_rollout.integrations.verifiers.seat import seat_of
from selective_rollout.trace.recorder import Recorder

_PREFIX: Final = "SELECTIVE_ROLLOUT_"


async def group_gate(trace: Trace) -> bool:
    """Stop hook for `TaskConfig.stops`; the entry must be named `group_gate`, too.

    Groups are told apart as `KeyedGroups` does. Variables: SELECTIVE_ROLLOUT_GROUP_SIZE, required;
    SELECTIVE_ROLLOUT_GATE, a gate.toml (without one: the default rule); SELECTIVE_ROLLOUT_MODE, observe or
    enforce; SELECTIVE_ROLLOUT_AUDIT_RATE; SELECTIVE_ROLLOUT_TRACE, a folder to record into.

    Raises:
        ConfigError: a variable is missing or wrong, or this process serves a part of each group only.
    """
    seat = seat_of(trace)
    return await (seat.refuses() if seat is not None else _groups().group_gate(trace))


def groups_from(environment: Mapping[str, str]) -> tuple[KeyedGroups, Recorder | None]:
    """Read the settings.

    Raises:
        ConfigError: a variable is missing or wrong.
    """
    mode = environment.get(f"{_PREFIX}MODE", "observe")
    if mode not in ("observe", "enforce"):
        raise ConfigError(f"{_PREFIX}MODE must be observe or enforce, not {mode!r}")
    size = int(_number(environment, "GROUP_SIZE", None))
    audit_rate = _number(environment, "AUDIT_RATE", 0.0)
    path = environment.get(f"{_PREFIX}TRACE")
    recorder = Recorder(path) if path else None
    gate = TrainingGate(
        environment.get(f"{_PREFIX}GATE") or GateConfig(),
        mode="enforce" if mode == "enforce" else "observe",
        audit_rate=audit_rate,
        recorder=recorder,
    )
    return KeyedGroups(gate, size), recorder


@functools.cache
def _groups() -> KeyedGroups:
    groups, recorder = groups_from(os.environ)
    if recorder is not None:
        atexit.register(recorder.close)
    atexit.register(groups.close)
    return groups


def _number(environment: Mapping[str, str], name: str, default: float | None) -> float:
    text = environment.get(_PREFIX + name)
    if text is None and default is not None:
        return default
    try:
        return float(text or "")
    except ValueError:
        needs = "the number of rollouts per task" if name == "GROUP_SIZE" else "a number"
        raise ConfigError(f"group_gate: set {_PREFIX}{name} to {needs}, not {text!r}") from None
