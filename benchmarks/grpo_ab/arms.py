"""The four arms, and how each seed gets its calibrated rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from benchmarks.grpo_ab.policy import Policy
from benchmarks.grpo_ab.sampling import sample_groups
from benchmarks.grpo_ab.setting import Setting

from selective_rollout.analysis.calibrate import Calibration, calibrate
from selective_rollout.analysis.certify import Question
from selective_rollout.analysis.sample import Collector, collect
from selective_rollout.analysis.split import Split
from selective_rollout.engine.training import TrainingGate
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.gate_file import write_gate_file
from selective_rollout.gate.history import PromptHistory
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Task

ARMS: Final = ("none", "paper", "calibrated", "history")
"""No gate; the paper's; the certified one; the certified one with the prompts' history."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What calibration on the imitating policy gave; a path of None: nothing was certified."""

    calibrated: dict[str, Any]
    history: dict[str, Any]
    calibrated_file: Path | None
    history_file: Path | None


def learn_rules(policy: Policy, tasks: Sequence[Task], setting: Setting, folder: Path, seed: int) -> Rules:
    """Record the starting policy in observe mode, twice over the tasks, and calibrate both rules on it."""
    trace = folder / "calibration.jsonl"
    generator = torch.Generator().manual_seed(seed)
    with Recorder(trace) as recorder:
        gate = TrainingGate(GateConfig(), recorder=recorder)
        for visit in range(setting.calibration_visits):
            numbered = [(f"{task.id}#{visit}", task) for task in tasks]
            for start in range(0, len(numbered), setting.prompts):
                sample_groups(
                    policy,
                    numbered[start : start + setting.prompts],
                    gate,
                    group_size=setting.group_size,
                    max_steps=setting.max_steps,
                    generator=generator,
                    temperature=setting.temperature,
                )
    rules = [GateConfig(start_step=step) for step in setting.start_steps]
    plain = _calibrated(trace, rules, setting, seed)
    history = _calibrated(
        trace, [replace(rule, history_mixed=setting.group_size) for rule in rules], setting, seed
    )
    return Rules(
        plain.to_dict(),
        history.to_dict(),
        _written(plain, folder / "gate.toml"),
        _written(history, folder / "gate-history.toml"),
    )


def gate_of(arm: str, rules: Rules, setting: Setting, recorder: Recorder, seed: int) -> TrainingGate:
    """The gate of one arm; where nothing was certified it only observes."""
    if arm == "none":
        return TrainingGate(GateConfig(), recorder=recorder, seed=seed)
    if arm == "paper":
        return TrainingGate(
            GateConfig(),
            mode="enforce",
            certified=True,  # vouched for: enforcing it uncertified is this arm's point
            audit_rate=setting.audit_rate,
            recorder=recorder,
            seed=seed,
        )
    history = PromptHistory() if arm == "history" else None
    path = rules.calibrated_file if arm == "calibrated" else rules.history_file
    skip = setting.skip_probability if arm == "history" else 0.0
    if path is None:
        off = GateConfig(tau=0.0, history_mixed=setting.group_size if history is not None else 0)
        return TrainingGate(off, recorder=recorder, seed=seed, history=history)
    return TrainingGate(
        path,
        mode="enforce",
        audit_rate=setting.audit_rate,
        history=history,
        skip_probability=skip,
        recorder=recorder,
        seed=seed,
    )


def _calibrated(trace: Path, rules: Iterable[GateConfig], setting: Setting, seed: int) -> Calibration:
    tried = list(rules)
    sample = collect(read_groups([trace]), Collector(tried, Split(setting.choose_share, seed)))
    return calibrate(sample, tried, Question(alpha=setting.alpha, delta=setting.delta))


def _written(calibration: Calibration, path: Path) -> Path | None:
    if calibration.certificate is None:
        return None
    write_gate_file(path, calibration.certificate)
    return path
