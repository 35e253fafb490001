"""The multi-turn loop of our own, in real training steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback

from selective_rollout.engine.training import TrainingGate
from selective_rollout.env.base import Observation, StepResult
from selective_rollout.errors import EnvironmentFault
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.integrations.trl import (
    BrokenRolloutWarning,
    environment_reward,
    gated_rollout_func,
)
from selective_rollout.types import Task

RULE = GateConfig(start_step=2, tau=0.5)
MIXED_A, MIXED_B = ("a", [0, 1, 1, 0]), ("b", [1, 0, 0, 0])
FLAT_C, FLAT_D = ("c=", [1, 1, 1, 1]), ("d=", [0, 0, 0, 0])


def enforcing(rule: GateConfig = RULE, **settings: Any) -> TrainingGate:
    return TrainingGate(rule, mode="enforce", certified=True, **settings)


@pytest.fixture
def train(make_trainer: Callable[..., Any], scripted: Any, world: Any) -> Callable[..., Any]:
    def run(
        data: Dataset, gate: TrainingGate, *, refill: int = 0, environment: Any = None, **options: Any
    ) -> Any:
        trainer = make_trainer(
            options.pop("reward_funcs", environment_reward),
            data,
            gate=gate,
            trainer=options.pop("trainer_class", scripted),
            rollout_func=gated_rollout_func(
                environment or world, refill=refill, **options.pop("rollout", {})
            ),
            **options,
        )
        trainer.train()
        return trainer

    return run


def test_a_cut_group_takes_no_further_step(train: Any, dataset: Any, world: Any) -> None:
    gate = enforcing()
    trainer = train(dataset(MIXED_A, FLAT_C, MIXED_B, FLAT_D), gate)
    assert trainer.turns == 2 * 4 * 4 + 2 * 4 * 2
    assert sorted({(made.task.prompt, made.steps) for made in world.made}) == [
        ("a:", 4),
        ("b:", 4),
        ("c=:", 2),
        ("d=:", 2),
    ]
    assert all(made.closed for made in world.made)
    assert (gate.meter.cut, gate.meter.signal, gate.meter.steps) == (2, 2, trainer.turns)
    logged = trainer.state.log_history[0]
    assert logged["reward"] == pytest.approx((2 + 1) / 8)
    assert logged["gate/gradient_factor"] == 2


class Weights(TrainerCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
        self.seen.append(torch.cat([p.detach().flatten().clone() for p in model.parameters()]))


def test_a_batch_without_a_kept_row_moves_nothing(train: Any, dataset: Any) -> None:
    weights = Weights()
    gate = enforcing()
    config = {
        "max_steps": 3,
        "gradient_accumulation_steps": 1,
        "weight_decay": 0.1,
        "shuffle_dataset": False,
        "lr_scheduler_type": "constant",
    }
    data = dataset(MIXED_A, MIXED_B, FLAT_C, FLAT_D, MIXED_A, FLAT_C)
    train(data, gate, config=config, callbacks=[weights])
    first, second, third = weights.seen
    assert torch.equal(first, second)
    assert not torch.equal(second, third)
    assert torch.isfinite(third).all()


def test_a_fresh_prompt_takes_the_place_of_a_cut_one(train: Any, dataset: Any, world: Any) -> None:
    rewarded: list[tuple[str, list[int]]] = []

    def reward(prompts: list[str], rewards: list[list[int]], **others: Any) -> list[float]:
        rewarded.extend(zip(prompts, rewards, strict=True))
        return list(others["environment_reward"])

    gate = enforcing()
    config = {"gradient_accumulation_steps": 1, "shuffle_dataset": False}
    data = dataset(MIXED_A, FLAT_C, MIXED_B)
    trainer = train(data, gate, refill=3, config=config, reward_funcs=reward)
    assert (gate.meter.groups, gate.meter.cut, gate.meter.signal) == (3, 1, 2)
    assert rewarded[4:] == [("b:", [1, 0, 0, 0])] * 4
    assert trainer.state.log_history[0]["gate/cut"] == 1


def test_a_refill_that_finds_nothing_comes_to_an_end(train: Any, dataset: Any) -> None:
    gate = enforcing()
    config = {"gradient_accumulation_steps": 1, "shuffle_dataset": False}
    train(dataset(FLAT_C, FLAT_D, ("e=", [1, 1, 1, 1])), gate, refill=5, config=config)
    assert 2 <= gate.meter.cut == gate.meter.groups <= 7


def test_a_skipped_prompt_costs_nothing_and_is_visited_again(train: Any, dataset: Any, world: Any) -> None:
    history = PromptHistory()
    for visit in range(4):
        history.record("1", f"before-{visit}", (1, 1, 1, 1))
    gate = enforcing(GateConfig(start_step=9), history=history, skip_probability=0.5, skip_last=4)
    config = {"gradient_accumulation_steps": 1, "shuffle_dataset": False, "max_steps": 12}
    train(dataset(MIXED_A, ("c", [1, 1, 1, 1])), gate, config=config)
    visits = sum(made.task.prompt == "c:" for made in world.made) // 4
    assert gate.meter.skipped + visits == 12
    assert 0 < visits < 12
    assert gate.meter.groups == 12 + visits


def test_a_fresh_prompt_takes_the_place_of_a_skipped_one(train: Any, dataset: Any, world: Any) -> None:
    history = PromptHistory()
    for visit in range(4):
        history.record("1", f"before-{visit}", (1, 1, 1, 1))
    gate = enforcing(history=history, skip_probability=0.999, skip_last=4)
    config = {"gradient_accumulation_steps": 1, "shuffle_dataset": False}
    trainer = train(dataset(MIXED_A, ("c", [1, 1, 1, 1]), MIXED_B), gate, refill=2, config=config)
    assert {made.task.prompt for made in world.made} == {"a:", "b:"}
    assert (gate.meter.groups, gate.meter.signal) == (2, 2)
    assert trainer.state.log_history[0]["reward"] == pytest.approx(3 / 8)


class Broken:
    """Breaks for one member."""

    def __init__(self, task: Task, rollout: int) -> None:
        self.rollout = rollout

    def start(self) -> Observation:
        return Observation(f"m{self.rollout}")

    async def step(self, action: str) -> StepResult:
        if self.rollout == 3:
            raise OSError("no disk")
        return StepResult("ok", reward=float(self.rollout), terminated=action.startswith("go 2"))

    def close(self) -> None: ...


def test_a_member_whose_environment_breaks_is_dropped_alone(train: Any, dataset: Any) -> None:
    gate = enforcing()
    config = {"gradient_accumulation_steps": 1}
    with pytest.warns(BrokenRolloutWarning, match="its rollout is dropped: OSError: no disk"):
        trainer = train(dataset(MIXED_A, MIXED_B), gate, environment=Broken, config=config)
    assert (gate.meter.cut, gate.meter.signal, gate.meter.failed) == (0, 2, 2)
    assert trainer.state.log_history[0]["reward"] == pytest.approx(1.0)


def test_a_batch_without_a_working_environment_ends_the_training(train: Any, dataset: Any) -> None:
    class Wrong(Broken):
        def start(self) -> Observation:
            raise KeyError("seed")

    with pytest.raises(EnvironmentFault, match="every environment of this batch broke: KeyError: 'seed'"):
        train(dataset(MIXED_A, MIXED_B, FLAT_C, FLAT_D), enforcing(), environment=Wrong)


def test_evaluation_is_never_gated(train: Any, dataset: Any, world: Any) -> None:
    gate = enforcing()
    config = {
        "per_device_eval_batch_size": 4,
        "num_generations_eval": 4,
        "max_steps": 1,
        "eval_strategy": "no",
    }
    trainer = train(dataset(MIXED_A, MIXED_B, FLAT_C, FLAT_D), gate, config=config)
    world.made.clear()
    groups = gate.meter.groups
    metrics = trainer.evaluate(dataset(FLAT_C))
    assert [made.steps for made in world.made] == [4] * 4
    assert sorted(made.rollout for made in world.made) == [0, 1, 2, 3]
    assert metrics["eval_reward"] == 1.0
    assert gate.meter.groups == groups
    assert not [name for name in metrics if "gate/" in name]


class Echo:
    """Real text in, real text out."""

    def __init__(self, task: Task, rollout: int) -> None:
        self.heard: list[str] = []

    def start(self) -> Observation:
        return Observation("begin")

    def step(self, action: str) -> StepResult:
        self.heard.append(action)
        return StepResult("ok", reward=float(len(action) % 2), terminated=len(self.heard) == 3)

    def close(self) -> None: ...


@pytest.mark.parametrize("chat", [False, True])
def test_with_a_model_that_really_speaks(chat: bool, train: Any, make_trainer: Any) -> None:
    from selective_rollout.integrations.trl import GatedGRPOTrainer

    texts = ["say", "do"]
    prompts = [[{"role": "user", "content": text}] for text in texts] if chat else texts
    gate = enforcing(GateConfig(start_step=3, tau=0.1))
    trainer = train(
        Dataset.from_dict({"prompt": prompts}),
        gate,
        environment=Echo,
        trainer_class=GatedGRPOTrainer,
        rollout={"max_tokens_per_turn": 3},
        config={"gradient_accumulation_steps": 1},
    )
    assert gate.meter.groups == 2
    assert torch.isfinite(torch.tensor(trainer.state.log_history[0]["grad_norm"]))
