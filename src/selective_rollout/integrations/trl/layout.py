"""Where groups have to lie for a process to see them converge."""

from __future__ import annotations

from typing import Any

from selective_rollout.errors import ConfigError
from selective_rollout.integrations.trl.rollout import GatedRollouts


def require_layout(trainer: Any) -> None:
    """Refuse what no gate can work with.

    Raises:
        ConfigError: groups straddle processes, processes share a vLLM, or the turns cannot be followed.
    """
    args = trainer.args
    rows = args.per_device_train_batch_size * args.steps_per_generation
    if rows % trainer.num_generations:
        raise ConfigError(
            f"per_device_train_batch_size * steps_per_generation = {rows} is no multiple of "
            f"num_generations = {trainer.num_generations}: a group would straddle processes, and none "
            "could see when it converges. Raise steps_per_generation (gradient_accumulation_steps), or "
            "change the batch size"
        )
    shared = trainer.use_vllm and (trainer.vllm_mode == "server" or trainer.vllm_tensor_parallel_size > 1)
    if shared and trainer.accelerator.num_processes > 1:
        raise ConfigError(
            "several processes ask one vLLM: TRL hands out its answers by equal shares, and rows that leave "
            'a turn loop early mix them up. Use vllm_mode="colocate" and vllm_tensor_parallel_size=1, or '
            "the asynchronous trainer"
        )
    rollouts = trainer.rollout_func
    if rollouts is not None and not isinstance(rollouts, GatedRollouts):
        raise ConfigError(
            "the trainer cannot look into a rollout_func of your own: use gated_rollout_func(environment)"
        )
    if rollouts is not None and trainer.tools:
        raise ConfigError("tools and a rollout_func are two loops: pass one of them")
