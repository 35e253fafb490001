"""One training run: one arm, one seed."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from benchmarks.grpo_ab.arms import Rules, gate_of
from benchmarks.grpo_ab.learning import gradient, update
from benchmarks.grpo_ab.policy import Policy
from benchmarks.grpo_ab.sampling import Sampled, sample_groups
from benchmarks.grpo_ab.setting import Setting

from selective_rollout.engine.training import TrainingGate
from selective_rollout.gate.config import GateConfig
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Task


@dataclass(slots=True)
class Run:
    """What came of one arm at one seed; lists have one entry per update."""

    arm: str
    seed: int
    steps: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    gradient_norm: list[float] = field(default_factory=list)
    groups: list[tuple[int, int, int]] = field(default_factory=list)
    """(signal-bearing, flat, cut)."""
    dilution: list[tuple[float, float]] = field(default_factory=list)
    """No-gate arm: (predicted, measured) growth of the gradient had the would-be cuts been dropped."""
    successes: list[tuple[int, int]] = field(default_factory=list)
    """Held-out rollouts (successful, all) per prompt, after training."""
    meter: dict[str, float] = field(default_factory=dict)
    audited: dict[str, int] = field(default_factory=dict)
    """Would-be cuts that ran on and have a label, and how many of them bore signal."""
    seconds_sampling: float = 0.0
    seconds_learning: float = 0.0


def train(
    start: Policy,
    arm: str,
    rules: Rules,
    tasks: Sequence[Task],
    held_out: Sequence[Task],
    setting: Setting,
    folder: Path,
    seed: int,
) -> Run:
    """Train a copy of the starting policy; tasks, order and held-out prompts are the same for every arm."""
    policy, run = deepcopy(start), Run(arm, seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=setting.learning_rate)
    generator = torch.Generator().manual_seed(1000 + seed)
    with Recorder(folder / f"{arm}.jsonl") as recorder:
        gate = gate_of(arm, rules, setting, recorder, seed)
        for number, batch in enumerate(_batches(tasks, setting, seed)):
            gate.at(progress=number / setting.updates, policy_version=number)
            begun = time.process_time()
            sampled = _sample(policy, batch, gate, setting, generator)
            sampled_at = time.process_time()
            kept = [one for one in sampled if one.outcome.trainable]
            if arm == "none":
                run.dilution.extend(_dilution(policy, kept, setting.temperature))
            done = update(policy, optimizer, kept, setting.temperature)
            run.seconds_sampling += sampled_at - begun
            run.seconds_learning += time.process_time() - sampled_at
            _book(run, sampled, done.gradient_norm)
        run.meter = gate.meter.metrics()
        wrong = gate.meter.counts.wrong_cut_share if gate.meter.counts is not None else None
        run.audited = {"wrong": wrong.hits, "all": wrong.trials} if wrong is not None else {}
    run.successes = evaluate(policy, held_out, setting, seed)
    return run


def evaluate(policy: Policy, held_out: Sequence[Task], setting: Setting, seed: int) -> list[tuple[int, int]]:
    """(successful, all) rollouts of every held-out prompt."""
    generator = torch.Generator().manual_seed(2000 + seed)
    counts = []
    watch = TrainingGate(GateConfig())
    for start in range(0, len(held_out), 2 * setting.prompts):
        part = [(task.id, task) for task in held_out[start : start + 2 * setting.prompts]]
        for one in sample_groups(
            policy,
            part,
            watch,
            group_size=setting.held_out_rollouts,
            max_steps=setting.max_steps,
            generator=generator,
            temperature=setting.temperature,
        ):
            rewards = [rollout.reward or 0.0 for rollout in one.outcome.group.rollouts]
            counts.append((int(sum(rewards)), len(rewards)))
    return counts


def to_dict(run: Run) -> dict[str, Any]:
    """Plain data for the results file."""
    return {name: getattr(run, name) for name in Run.__slots__}


def _batches(tasks: Sequence[Task], setting: Setting, seed: int) -> list[list[tuple[str, Task]]]:
    batches = []
    for epoch in range(setting.epochs):
        order = list(tasks)
        random.Random(f"{seed}-{epoch}").shuffle(order)
        numbered = [(f"{task.id}#{epoch}", task) for task in order]
        batches += [
            numbered[start : start + setting.prompts]
            for start in range(0, len(numbered) - setting.prompts + 1, setting.prompts)
        ]
    return batches


def _sample(
    policy: Policy,
    batch: Sequence[tuple[str, Task]],
    gate: TrainingGate,
    setting: Setting,
    generator: torch.Generator,
) -> list[Sampled]:
    return sample_groups(
        policy,
        batch,
        gate,
        group_size=setting.group_size,
        max_steps=setting.max_steps,
        generator=generator,
        temperature=setting.temperature,
    )


def _dilution(policy: Policy, groups: Sequence[Sampled], temperature: float) -> list[tuple[float, float]]:
    """How the gradient's norm grows if the groups that the observing gate would cut are left out.

    The prediction (1 - z') / (1 - z) counts groups; it is exact if the cut ones have zero variance and all
    groups equally many words.
    """
    left = [one for one in groups if one.outcome.would_cut_at is None]
    if not left or len(left) == len(groups):
        return []
    whole = gradient(policy, groups, temperature).gradient_norm
    signal, signal_left = _signal_bearing(groups), _signal_bearing(left)
    if not whole or not signal_left:
        return []
    return [
        (
            (signal_left / len(left)) / (signal / len(groups)),
            gradient(policy, left, temperature).gradient_norm / whole,
        )
    ]


def _signal_bearing(groups: Sequence[Sampled]) -> int:
    return sum(len({rollout.reward for rollout in one.outcome.group.rollouts}) > 1 for one in groups)


def _book(run: Run, sampled: Sequence[Sampled], gradient_norm: float) -> None:
    kept = [one for one in sampled if one.outcome.trainable]
    signal = _signal_bearing(kept)
    run.steps.append(sum(len(written) for one in sampled for written in one.written))
    run.tokens.append(sum(one.tokens for one in sampled))
    run.gradient_norm.append(gradient_norm)
    run.groups.append((signal, len(kept) - signal, len(sampled) - len(kept)))
