"""What all seeds start from, and everything that belongs to one of them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch
from benchmarks.grpo_ab.arms import ARMS, Rules, learn_rules
from benchmarks.grpo_ab.imitate import imitate
from benchmarks.grpo_ab.policy import Policy
from benchmarks.grpo_ab.setting import Setting
from benchmarks.grpo_ab.training import evaluate, to_dict, train

from selective_rollout.env.household_scenario import household_tasks

_START_SEED: Final = 0
"""Houses of demonstrations and calibration; the seeds of the runs have others."""


def prepare(setting: Setting, out: Path) -> tuple[dict[str, Any], Rules]:
    """Imitate and calibrate, once: the weights that every run starts from, and the certified rules."""
    torch.set_num_threads(1)
    houses = household_tasks(10_000, seed=_START_SEED)
    demonstrated = list(islice(houses, setting.demonstrations))
    policy = imitate(demonstrated, max_steps=setting.max_steps, passes=setting.passes, seed=_START_SEED)
    calibration = list(islice(houses, setting.calibration_tasks))
    return policy.state_dict(), learn_rules(
        policy, calibration, setting, _emptied(out / "start"), _START_SEED
    )


def run_seed(seed: int, start: dict[str, Any], rules: Rules, setting: Setting, out: Path) -> dict[str, Any]:
    """Train all arms of one seed, on prompts of its own."""
    torch.set_num_threads(1)
    policy = Policy()
    policy.load_state_dict(start)
    houses = household_tasks(10_000, seed=seed)
    training = list(islice(houses, setting.tasks))
    held_out = list(islice(houses, setting.held_out))
    folder = _emptied(out / f"seed-{seed}")
    runs = [train(policy, arm, rules, training, held_out, setting, folder, seed) for arm in ARMS]
    return {
        "seed": seed,
        "before": evaluate(policy, held_out, setting, seed),
        "runs": [to_dict(run) for run in runs],
    }


def _emptied(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.jsonl"):
        old.unlink()
    return folder
