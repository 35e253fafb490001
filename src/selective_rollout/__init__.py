"""Watch the parallel rollouts of one prompt and stop the group once going on is worthless.

The names below are the public face; each is loaded when it is first asked for, so that importing the package
costs nothing. Importers, analysis and integrations are in their own subpackages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from selective_rollout._version import __version__

if TYPE_CHECKING:
    from selective_rollout.actions import ActionOptions, canonicalise, from_message, from_messages
    from selective_rollout.distance import GroupDistance, mean_pairwise_distance, should_stop_group
    from selective_rollout.engine.batch import run_groups
    from selective_rollout.engine.config import RunConfig
    from selective_rollout.engine.outcome import GroupOutcome
    from selective_rollout.engine.runner import run_group
    from selective_rollout.errors import SelectiveRolloutError
    from selective_rollout.gate.config import GateConfig
    from selective_rollout.gate.decision import GateDecision
    from selective_rollout.gate.group import GroupGate
    from selective_rollout.gate.history import PromptHistory
    from selective_rollout.gate.registry import GateRegistry
    from selective_rollout.trace.reader import read_groups
    from selective_rollout.trace.recorder import Recorder
    from selective_rollout.types import Group, Rollout, SamplingInfo, Step, Task, Usage

_HOMES = {
    "ActionOptions": "actions",
    "GateConfig": "gate.config",
    "GateDecision": "gate.decision",
    "GateRegistry": "gate.registry",
    "Group": "types",
    "GroupDistance": "distance",
    "GroupGate": "gate.group",
    "GroupOutcome": "engine.outcome",
    "PromptHistory": "gate.history",
    "Recorder": "trace.recorder",
    "Rollout": "types",
    "RunConfig": "engine.config",
    "SamplingInfo": "types",
    "SelectiveRolloutError": "errors",
    "Step": "types",
    "Task": "types",
    "Usage": "types",
    "canonicalise": "actions",
    "from_message": "actions",
    "from_messages": "actions",
    "mean_pairwise_distance": "distance",
    "read_groups": "trace.reader",
    "run_group": "engine.runner",
    "run_groups": "engine.batch",
    "should_stop_group": "distance",
}

__all__ = [
    "ActionOptions",
    "GateConfig",
    "GateDecision",
    "GateRegistry",
    "Group",
    "GroupDistance",
    "GroupGate",
    "GroupOutcome",
    "PromptHistory",
    "Recorder",
    "Rollout",
    "RunConfig",
    "SamplingInfo",
    "SelectiveRolloutError",
    "Step",
    "Task",
    "Usage",
    "__version__",
    "canonicalise",
    "from_message",
    "from_messages",
    "mean_pairwise_distance",
    "read_groups",
    "run_group",
    "run_groups",
    "should_stop_group",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
