"""Where groups have to lie for a process to see them converge, and how long they have to be."""

from __future__ import annotations

import warnings
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


def warn_of_too_few_turns(trainer: Any) -> None:
    """Say that the gate can never fire, if rollouts are over by its first check; skips need no check."""
    if trainer.gate.skip_probability:
        return
    rollouts, args = trainer.rollout_func, trainer.args
    if rollouts is not None:
        turns, limit = rollouts.max_steps, f"max_steps={rollouts.max_steps}"
    elif trainer.tools:
        calls = args.max_tool_calling_iterations
        if calls is None:
            return
        turns, limit = calls + 1, f"max_tool_calling_iterations={calls}"
    else:
        turns, limit = 1, "without tools or environments a rollout is one turn"
    start_step = trainer.gate.rule.start_step
    if turns <= start_step:
        warnings.warn(
            f"the gate looks at step {start_step}, when rollouts are over ({limit}): it can never fire",
            stacklevel=4,
        )
