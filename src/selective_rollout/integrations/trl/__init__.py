"""A gate for GRPO training with TRL (extra `trl`).

    trainer = GatedGRPOTrainer(                     # was: GRPOTrainer(
        gate=TrainingGate("gate.toml", mode="enforce", audit_rate=0.1),
        ...                                         # everything else as before

Gates TRL's tool loop (`tools`, `environment_factory`), and any text environment through
`rollout_func=gated_rollout_func(environment)`. `GroupGateMixin` does the same for a trainer class of one's
own; `async_grpo` holds the loop for TRL's asynchronous trainer.
"""

from __future__ import annotations

import warnings

from selective_rollout.errors import MissingExtraError

try:
    import trl
except ModuleNotFoundError as error:
    raise MissingExtraError("trl", "trl") from error

if not trl.__version__.startswith("1.16."):
    warnings.warn(
        f"the gate overrides private methods of TRL 1.16, and this is {trl.__version__}; they may differ. "
        'Run: pip install "selective-rollout[trl]"',
        stacklevel=2,
    )

from selective_rollout.engine.training import TrainingGate
from selective_rollout.integrations.trl.losses import Denominator, Lossless, NotLosslessWarning, lossless
from selective_rollout.integrations.trl.mixin import GatedGRPOTrainer, GroupGateMixin
from selective_rollout.integrations.trl.rewards import environment_reward
from selective_rollout.integrations.trl.rollout import BrokenRolloutWarning, GatedRollouts, gated_rollout_func

__all__ = [
    "BrokenRolloutWarning",
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
