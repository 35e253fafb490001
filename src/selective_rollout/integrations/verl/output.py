"""What an agent loop hands to verl: the output of a kept rollout, and what stands for a dropped one.

All members of a dropped group get the same reward, so that `algorithm.filter_groups` evicts the group. Where
no filter runs their rows stay: each is one token that is masked out of the loss.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from pydantic import PrivateAttr
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from selective_rollout.engine.training.remote import RemoteMember

STAND_IN_REWARD: Final = -(2.0**-7)
"""Reward of dropped rows. Every float type holds it, so equal ones have a spread of exactly 0; no reward
function gives it, so verl's table of filtered rewards tells cut groups from flat ones."""

_SCORING: Final[set[asyncio.Task[None]]] = set()
"""Keeps the tasks alive."""


class ScoredOutput(AgentLoopOutput):  # type: ignore[misc]
    """An output that tells its reward on. verl's worker sets it after the agent loop has returned."""

    _told: Callable[[float], None] | None = PrivateAttr(None)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "reward_score" and value is not None and self._told is not None:
            tell, self._told = self._told, None
            tell(float(value))


def scored_later(output: Any, member: RemoteMember) -> Any:
    """Return the output of a kept rollout, from which the member will hear its reward."""
    told = ScoredOutput.model_construct(output.model_fields_set, **dict(output))

    def tell(reward: float) -> None:
        task = asyncio.ensure_future(member.score(reward if math.isfinite(reward) else None))
        _SCORING.add(task)
        task.add_done_callback(_SCORING.discard)

    told._told = tell
    return told


def dropped_output(
    prompt: Sequence[int],
    end: int,
    *,
    with_logprobs: bool,
    weights: dict[str, Any],
    reward_keys: Sequence[str],
) -> Any:
    """The output of a rollout that counts for nothing.

    Args:
        prompt: its tokens.
        end: the token that stands for the response; verl needs one to put the reward on.
        with_logprobs: whether rows carry the rollout's log-probabilities.
        weights: versions of the weights, see `MemberClient`.
        reward_keys: names in `reward_extra_info`, which verl wants to be the same in all rows of a batch.
    """
    fields: dict[str, Any] = {**weights, "turn_scores": [], "tool_rewards": []}
    if reward_keys:
        fields["reward_extra_info"] = dict.fromkeys(reward_keys, STAND_IN_REWARD)
    return AgentLoopOutput(
        prompt_ids=list(prompt),
        response_ids=[end],
        response_mask=[0],
        response_logprobs=[0.0] if with_logprobs else None,
        multi_modal_data={},
        reward_score=STAND_IN_REWARD,
        num_turns=0,
        metrics=AgentLoopMetrics(),
        extra_fields=fields,
    )
