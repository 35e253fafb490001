"""Sampling groups in lockstep with a training gate that may stop them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from benchmarks.grpo_ab.policy import Policy, Written, encode, write
from benchmarks.grpo_ab.world import World, command_of

from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.training import TrainingGate, TrainingGroup
from selective_rollout.types import Task, Usage


@dataclass(slots=True)
class Sampled:
    """One group, with what its policy wrote."""

    group: TrainingGroup
    worlds: list[World]
    written: list[list[Written]]
    """written[g][t]: the command of rollout g at step t + 1."""
    outcome: GroupOutcome = field(init=False)

    @property
    def tokens(self) -> int:
        """Words written, end marks included."""
        return sum(len(step.tokens) for rollout in self.written for step in rollout)


def sample_groups(
    policy: Policy,
    tasks: Sequence[tuple[str, Task]],
    gate: TrainingGate,
    *,
    group_size: int,
    max_steps: int,
    generator: torch.Generator,
    temperature: float,
) -> list[Sampled]:
    """Sample one group per task, all of them step by step together.

    Args:
        policy: who acts.
        tasks: (group id, task); prompts that the gate skips are left out.
        gate: decides; a group that it cuts takes no further step.
        group_size: rollouts per group.
        max_steps: a rollout that gets there is truncated, with reward 0.
        generator: source of randomness.
        temperature: of the policy's softmax.
    """
    batch = [
        Sampled(
            gate.open(group_id, group_size, task_id=task.id),
            [World.open(task) for _ in range(group_size)],
            [[] for _ in range(group_size)],
        )
        for group_id, task in tasks
        if not gate.skips(task.id, group_id)
    ]
    live = [(sampled, rollout) for sampled in batch for rollout in range(group_size)]
    while live:
        notes = [encode(sampled.worlds[rollout].notes.text()) for sampled, rollout in live]
        written = write(policy, notes, generator, temperature)
        running = [
            member
            for member, step in zip(live, written, strict=True)
            if not _take_step(*member, step, max_steps)
        ]
        live = [(sampled, rollout) for sampled, rollout in running if not sampled.group.stopped]
    for sampled in batch:
        sampled.outcome = sampled.group.close()
    return batch


def _take_step(sampled: Sampled, rollout: int, step: Written, max_steps: int) -> bool:
    """Carry out one command; True if the rollout ended with it."""
    command = command_of(step.action)
    sampled.written[rollout].append(step)
    reply = sampled.worlds[rollout].step(command)
    usage = Usage(completion=len(step.tokens), source="client")
    ended = reply.terminated or len(sampled.written[rollout]) == max_steps
    if not ended:
        sampled.group.step(
            rollout, command, observation=reply.observation, is_error=reply.is_error, usage=usage
        )
    else:
        sampled.group.finish(
            rollout,
            reply.reward,
            reply.answer,
            truncated=not reply.terminated,
            action=command,
            observation=reply.observation,
            is_error=reply.is_error,
            usage=usage,
        )
    return ended
