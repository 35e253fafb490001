"""A gate for GRPO training with TRL (extra `trl`).

    trainer = GatedGRPOTrainer(                     # was: GRPOTrainer(
        gate=TrainingGate("gate.toml", mode="enforce", audit_rate=0.1),
        ...                                         # everything else as before

Gates TRL's tool loop (`tools`, `environment_factory`), and any text environment through
`rollout_func=gated_rollout_func(environment)`. `GroupGateMixin` does the same for a trainer class of one's
own; `async_grpo` holds the loop for TRL's asynchronous trainer.
"""

from __future__ import annotations

from selective_rollout.errors import MissingExtraError

try:
    import trl  # noqa: F401 - only to know that it is there
except ModuleNotFoundError as error:
    raise MissingExtraError("trl", "trl") from error

from selective_rollout.engine.training import TrainingGate
from selective_rollout.integrations.trl.losses import Denominator, Lossless, NotLosslessWarning, lossless
from selective_rollout.integrations.trl.mixin import GatedGRPOTrainer, GroupGateMixin
from selective_rollout.integrations.trl.rewards import environment_reward
from selective_rollout.integrations.trl.rollout import GatedRollouts, gated_rollout_func

__all__ = [
    "Denominator",
    "GatedGRPOTrainer",
    "GatedRollouts",
    "GroupGateMixin",
    "Lossless",
    "NotLosslessWarning",
    "TrainingGate",
    "environment_reward",
    "gated_rollout_func",
    "lossless",
]
