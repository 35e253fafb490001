"""A gate for the rollouts of verifiers 0.4 environments (extra `verifiers`): one stop hook.

    gate = TrainingGate("gate.toml", mode="enforce", audit_rate=0.1)
    async with env.serving():
        result = await run_group(gate, env, task, ctx, group_id=f"{step}/{task.key}", size=8)
    if result.trainable: ...                        # else drop all of its episodes

A loop that cannot be changed, such as that of `vf-eval`, names `group_gate` among the stops of its config, or
its tasks get `GatedTask`; then groups are told by the task's key, see `KeyedGroups`. A rollout that is cut
has `trace.stop_condition == "group_gate"`.
"""

from __future__ import annotations

from selective_rollout.errors import MissingExtraError

try:
    import verifiers.v1  # noqa: F401 - only to know that it is there
except ModuleNotFoundError as error:
    raise MissingExtraError("verifiers", "verifiers") from error

from selective_rollout.engine.training import TrainingGate
from selective_rollout.integrations.verifiers.keyed import AmbiguousGroupWarning, KeyedGroups
from selective_rollout.integrations.verifiers.plug import group_gate
from selective_rollout.integrations.verifiers.run import GroupResult, run_group
from selective_rollout.integrations.verifiers.seat import STOP_CONDITION
from selective_rollout.integrations.verifiers.task import GatedTask

__all__ = [
    "STOP_CONDITION",
    "AmbiguousGroupWarning",
    "GatedTask",
    "GroupResult",
    "KeyedGroups",
    "TrainingGate",
    "group_gate",
    "run_group",
]
