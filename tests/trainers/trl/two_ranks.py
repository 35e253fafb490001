"""One of two processes that train together; prints what it saw as JSON. Run by `test_distributed.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from trl import GRPOConfig

from conftest import SETTINGS, Gradients, Scripted, ScriptedTrainer, make_dataset
from selective_rollout.engine.training import TrainingGate
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.integrations.trl import environment_reward, gated_rollout_func

MIXED, FLAT = ("a", [0, 1, 1, 0]), ("c=", [1, 1, 1, 1])


def train(model: str, output: str, *tasks: tuple[str, list[int]], **config: Any) -> dict[str, Any]:
    gate = TrainingGate(
        GateConfig(start_step=2, tau=0.5), mode="enforce", certified=True, history=PromptHistory()
    )
    seen = Gradients()
    settings = {
        **SETTINGS,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "shuffle_dataset": False,
        "output_dir": output,
        **config,
    }
    trainer = ScriptedTrainer(
        model=model,
        reward_funcs=environment_reward,
        args=GRPOConfig(**settings),
        train_dataset=make_dataset(*tasks),
        callbacks=[seen],
        gate=gate,
        rollout_func=gated_rollout_func(Scripted),
    )
    trainer.train()
    assert gate.history is not None
    return {
        "gradient": seen.seen[0][:2000].tolist(),
        "cut": gate.meter.cut,
        "logged": trainer.state.log_history[0].get("gate/groups"),
        "known": sorted(gate.history.to_dict()["tasks"]),
    }


def main(model: str, output: str, processes: int) -> None:
    results: dict[str, Any] = {}
    for loss_type in ("dapo", "grpo"):
        tasks = (MIXED, FLAT) if processes > 1 else (MIXED,)
        results[loss_type] = train(model, f"{output}/{loss_type}", *tasks, loss_type=loss_type)
    if processes > 1:
        more = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2}
        results["both"] = train(model, f"{output}/both", MIXED, ("b", [1, 0, 0, 0]), MIXED, FLAT, **more)
        try:
            train(model, f"{output}/split", MIXED, FLAT, per_device_train_batch_size=2)
        except ConfigError as error:
            results["refused"] = str(error)
    print("RESULT " + json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
