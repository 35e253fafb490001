"""OpenRLHF's own loss and advantages, without what the packages around them import for other things."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from types import ModuleType

import openrlhf

_models = ModuleType("openrlhf.models")
_models.__path__ = [str(Path(openrlhf.__file__).parent / "models")]
_launcher = ModuleType("openrlhf.trainer.ray.launcher")
_launcher.RayActorGroup = object  # type: ignore[attr-defined]
for _module in (ModuleType("deepspeed"), _models, _launcher):
    sys.modules.setdefault(_module.__name__, _module)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch, of itself, when it compiles
    _loss = importlib.import_module("openrlhf.models.loss")
    _maker = importlib.import_module("openrlhf.trainer.ppo_utils.experience_maker")
    _norm = importlib.import_module("openrlhf.utils.loss_utils")

PolicyLoss = _loss.PolicyLoss
masked_mean = _loss.masked_mean
Experience = _maker.Experience
RemoteExperienceMaker = _maker.RemoteExperienceMaker
optimizer_step_loss_norm = _norm._optimizer_step_loss_norm
