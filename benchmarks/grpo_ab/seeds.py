"""Everything that belongs to one seed: its houses, its starting policy, its rules and its four arms."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import torch
from benchmarks.grpo_ab.arms import ARMS, learn_rules
from benchmarks.grpo_ab.imitate import imitate
from benchmarks.grpo_ab.setting import Setting
from benchmarks.grpo_ab.training import evaluate, to_dict, train

from selective_rollout.env.household_scenario import household_tasks


def run_seed(seed: int, setting: Setting, out: Path) -> dict[str, Any]:
    """Imitate, calibrate, and train all arms from there; no house is used for two purposes.

    A seed has a starting policy of its own: how much distance tells depends on the policy, so arms that share
    one start would say how that start does, however many seeds there are.
    """
    torch.set_num_threads(1)
    folder = _emptied(out / f"seed-{seed}")
    houses = household_tasks(10_000, seed=seed)
    demonstrated = list(islice(houses, setting.demonstrations))
    policy = imitate(demonstrated, max_steps=setting.max_steps, passes=setting.passes, seed=seed)
    rules = learn_rules(policy, list(islice(houses, setting.calibration_tasks)), setting, folder, seed)
    training = list(islice(houses, setting.tasks))
    held_out = list(islice(houses, setting.held_out))
    runs = [train(policy, arm, rules, training, held_out, setting, folder, seed) for arm in ARMS]
    return {
        "seed": seed,
        "rules": {"calibrated": rules.calibrated, "history": rules.history},
        "before": evaluate(policy, held_out, setting, seed),
        "runs": [to_dict(run) for run in runs],
    }


def _emptied(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for old in (*folder.glob("*.jsonl"), *folder.glob("*.toml")):
        old.unlink()
    return folder
