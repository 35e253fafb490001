"""A gate for agent training with OpenRLHF, put on in the file of `--train.agent_func_path`.

    class AgentExecutor(GatedMultiTurnExecutor):    # was: AgentExecutor(MultiTurnAgentExecutor)
        def __init__(self):
            super().__init__(
                AgentInstance,
                gate=TrainingGate("gate.toml", mode="enforce", audit_rate=0.1),
                group_size=8,                       # --rollout.n_samples_per_prompt
                dynamic_filtering=True,             # --algo.dynamic_filtering_enable
            )

`GroupGateMixin` does the same for an executor class of one's own.
"""

from __future__ import annotations

from selective_rollout.errors import MissingExtraError

try:
    import openrlhf  # noqa: F401 - only to know that it is there
except ModuleNotFoundError as error:
    raise MissingExtraError("openrlhf", "openrlhf") from error

from selective_rollout.engine.training import TrainingGate
from selective_rollout.integrations.openrlhf.mixin import GatedMultiTurnExecutor, GroupGateMixin
from selective_rollout.integrations.openrlhf.rows import DROPPED_SCORE
from selective_rollout.integrations.openrlhf.which import NotGatedWarning

__all__ = [
    "DROPPED_SCORE",
    "GatedMultiTurnExecutor",
    "GroupGateMixin",
    "NotGatedWarning",
    "TrainingGate",
]
