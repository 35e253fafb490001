"""The start of every run: a policy that imitates the demonstrator."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from benchmarks.grpo_ab.demonstrator import demonstrations
from benchmarks.grpo_ab.policy import Policy, Written, encode, log_probs
from benchmarks.grpo_ab.world import END, ids, words_of

from selective_rollout.types import Task

_ROWS = 256


def imitate(tasks: Sequence[Task], *, max_steps: int, passes: int, seed: int) -> Policy:
    """Train a fresh policy on one demonstration per task.

    Args:
        tasks: houses that appear nowhere else.
        max_steps: where a demonstration ends at the latest.
        passes: how often all steps are gone through.
        seed: of weights, demonstrations and order.
    """
    torch.manual_seed(seed)
    policy = Policy()
    table = ids()
    steps = [
        Written(encode(notes), [table[word] for word in (*words_of(command), END)])
        for notes, command in demonstrations(list(tasks), max_steps, seed)
    ]
    batches = passes * (len(steps) // _ROWS)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=batches)
    rng = random.Random(seed)
    for _ in range(passes):
        rng.shuffle(steps)
        for start in range(0, len(steps) - _ROWS + 1, _ROWS):
            chosen, is_word = log_probs(policy, steps[start : start + _ROWS])
            loss = -(chosen * is_word).sum() / is_word.sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return policy
