"""One GRPO update: group-normalised advantages, words of kept groups in the denominator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from benchmarks.grpo_ab.policy import Policy, Written, log_probs
from benchmarks.grpo_ab.sampling import Sampled

_ROWS = 512
_SMALLEST_STD = 1e-6


@dataclass(frozen=True, slots=True)
class Update:
    """What one update did."""

    gradient_norm: float
    """Before clipping; 0 if every kept group had zero variance."""
    kept_tokens: int
    """The denominator."""


def advantages(sampled: Sampled) -> list[float]:
    """(reward - mean) / std of the group, all zero for zero variance."""
    rewards = [float(rollout.reward or 0.0) for rollout in sampled.outcome.group.rollouts]
    mean = sum(rewards) / len(rewards)
    std = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5
    return [0.0] * len(rewards) if std < _SMALLEST_STD else [(reward - mean) / std for reward in rewards]


def gradient(policy: Policy, groups: Sequence[Sampled], temperature: float) -> Update:
    """Put the gradient of the loss over these groups into the policy.

    The loss is minus the mean over all words of the groups of advantage times log-probability. Words with
    advantage 0 add nothing but to the denominator, so they are counted there and not computed.
    """
    policy.zero_grad()
    denominator = sum(sampled.tokens for sampled in groups)
    rows: list[tuple[Written, float]] = [
        (step, advantage)
        for sampled in groups
        for rollout, advantage in zip(sampled.written, advantages(sampled), strict=True)
        if advantage
        for step in rollout
    ]
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        chosen, is_word = log_probs(policy, [step for step, _ in part], temperature)
        weights = torch.tensor([advantage for _, advantage in part])[:, None]
        (-(weights * chosen * is_word).sum() / denominator).backward()
    gradients = [p.grad.norm() for p in policy.parameters() if p.grad is not None]
    norm = float(torch.stack(gradients).norm()) if gradients else 0.0
    return Update(norm, denominator)


def update(
    policy: Policy, optimizer: torch.optim.Optimizer, groups: Sequence[Sampled], temperature: float
) -> Update:
    """One on-policy update on groups that were kept; without any signal the weights stay as they are."""
    done = gradient(policy, groups, temperature)
    if done.gradient_norm > 0:
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    return done
