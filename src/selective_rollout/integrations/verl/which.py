"""Which runs of an agent loop are training, and who belongs to a group: verl tells the loop only a part."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, Final

from selective_rollout.errors import ConfigError

_SAMPLING: Final = ("temperature", "top_p", "top_k")


class NotGatedWarning(UserWarning):
    """Rollouts run without a gate, for want of what tells their group."""


def require_distinct_validation(rollout_config: Any) -> None:
    """Refuse settings under which an agent loop cannot tell training from validation.

    Raises:
        ConfigError: both sample in the same way.
    """
    if is_training({name: rollout_config.val_kwargs[name] for name in _SAMPLING}, rollout_config):
        raise ConfigError(
            "verl tells an agent loop of validation by its sampling only: make rollout.val_kwargs differ "
            "from rollout in temperature, top_p or top_k (top_p=0.9999 is enough)"
        )


def is_training(sampling_params: Mapping[str, Any], rollout_config: Any) -> bool:
    """Whether a rollout samples as training does; validation and greedy baselines do not."""
    return all(
        math.isclose(sampling_params[name], rollout_config[name], abs_tol=1e-9)
        for name in _SAMPLING
        if name in sampling_params
    )


def number_in_group(fields: Mapping[str, Any], size: int) -> int | None:
    """The rollout's index in its group; None if nothing tells it.

    The trainer counts the sessions of a prompt. The older one repeats each prompt side by side and numbers
    all rows of its batch, before it deals them out to workers.
    """
    session = fields.get("session_id")
    if session is not None:
        return int(session)
    row = fields.get("priority")
    return None if row is None else int(row) % size


def digest(fields: Mapping[str, Any]) -> str:
    """The task's identity: the prompt and its answer. verl's `index` will not do: it is 0 where not given."""
    reference = fields.get("reward_model")
    truth = reference.get("ground_truth") if isinstance(reference, Mapping) else None
    text = repr((fields.get("data_source"), list(fields["raw_prompt"]), truth))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
