"""A gate for agent training with verl, put on in the file of `rollout.agent.agent_loop_config_path`.

    - name: gated_tool_agent
      _target_: selective_rollout.integrations.verl.GatedToolAgentLoop
      gate: /data/gate.toml
      mode: enforce
      audit_rate: 0.1

`GatedToolAgentLoop` is verl's tool loop; `GroupGateMixin` does the same for an agent loop of one's own.
"""

from __future__ import annotations

from selective_rollout.errors import MissingExtraError

try:
    import verl  # noqa: F401 - only to know that it is there
except ModuleNotFoundError as error:
    raise MissingExtraError("verl", "verl") from error

from selective_rollout.engine.training import TrainingGate
from selective_rollout.integrations.verl.mixin import GatedToolAgentLoop, GroupGateMixin, NotEvictedWarning
from selective_rollout.integrations.verl.output import STAND_IN_REWARD
from selective_rollout.integrations.verl.which import NotGatedWarning

__all__ = [
    "STAND_IN_REWARD",
    "GatedToolAgentLoop",
    "GroupGateMixin",
    "NotEvictedWarning",
    "NotGatedWarning",
    "TrainingGate",
]
