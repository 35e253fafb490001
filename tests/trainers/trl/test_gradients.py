"""What a drop does to the gradient: exactly what not having the rows does, or nothing on average."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from selective_rollout.draws import is_audited
from selective_rollout.engine.training import TrainingGate
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.trl import environment_reward, gated_rollout_func

RULE = GateConfig(start_step=2, tau=0.5)
MIXED_A, MIXED_B = ("a", [0, 1, 1, 0]), ("b", [1, 0, 0, 0])
FLAT_C, FLAT_D = ("c=", [1, 1, 1, 1]), ("d=", [0, 0, 0, 0])
LOSSES = ("dapo", "bnpo", "cispo", "vespo", "grpo", "dr_grpo", "sapo", "luspo")


@pytest.fixture
def gradient_of(
    make_trainer: Callable[..., Any],
    dataset: Callable[..., Any],
    scripted: Any,
    world: Any,
    gradients: Any,
) -> Callable[..., torch.Tensor]:
    """The gradient of one real optimizer step over a group of each task."""

    def measure(
        *tasks: tuple[str, list[int]], gate: TrainingGate, denominator: str = "kept", **config: Any
    ) -> torch.Tensor:
        seen = gradients()
        accumulate = config.get("gradient_accumulation_steps", 2)
        settings = {"per_device_train_batch_size": 4 * len(tasks) // accumulate, **config}
        trainer = make_trainer(
            environment_reward,
            dataset(*tasks),
            gate=gate,
            trainer=scripted,
            config=settings,
            callbacks=[seen],
            rollout_func=gated_rollout_func(world),
            denominator=denominator,
        )
        trainer.train()
        (gradient,) = seen.seen
        return gradient

    return measure


def enforcing(**settings: Any) -> TrainingGate:
    return TrainingGate(RULE, mode="enforce", certified=True, **settings)


def ratio(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(one.norm() / other.norm())


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("loss_type", LOSSES)
def test_a_drop_equals_a_batch_without_the_rows(loss_type: str, gradient_of: Callable[..., Any]) -> None:
    # Which rows share a micro-batch is drawn anew in every batch, and for bnpo it matters.
    config = {"loss_type": loss_type, "gradient_accumulation_steps": 1 if loss_type == "bnpo" else 2}
    absent = gradient_of(MIXED_A, MIXED_B, gate=TrainingGate(RULE), **config)
    dropped = gradient_of(MIXED_A, FLAT_C, MIXED_B, FLAT_D, gate=enforcing(), **config)
    print(f"{loss_type}: {ratio(dropped, absent):.6f}, off by {difference(dropped, absent):.1e}")
    assert difference(dropped, absent) < 1e-5


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_without_a_gate_zero_variance_groups_dilute(loss_type: str, gradient_of: Callable[..., Any]) -> None:
    absent = gradient_of(MIXED_A, MIXED_B, gate=TrainingGate(RULE), loss_type=loss_type)
    kept = gradient_of(MIXED_A, FLAT_C, MIXED_B, FLAT_D, gate=TrainingGate(RULE), loss_type=loss_type)
    assert ratio(kept, absent) == pytest.approx(0.5, abs=1e-4)


def test_bnpo_averages_over_the_micro_batches_that_hold_a_kept_row(
    make_trainer: Callable[..., Any], dataset: Callable[..., Any], scripted: Any, world: Any
) -> None:
    """Against the same micro-batches with the dropped rows cut out of their tensors."""
    trainer = make_trainer(
        environment_reward,
        dataset(MIXED_A, FLAT_C, FLAT_D, ("e=", [0, 0, 0, 0])),
        gate=enforcing(),
        trainer=scripted,
        config={
            "loss_type": "bnpo",
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 8,
            "learning_rate": 0.0,
        },
        rollout_func=gated_rollout_func(world),
    )
    trainer.train()
    batches = trainer._buffered_inputs

    def gradient(loss: torch.Tensor) -> torch.Tensor:
        trainer.model.zero_grad()
        loss.backward()
        return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])

    trainer.current_gradient_accumulation_steps = 8
    found = gradient(sum(trainer._compute_loss(trainer.model, batch) for batch in batches))
    trainer.current_gradient_accumulation_steps = 1
    filled = []
    for batch in batches:
        rows = (batch["completion_mask"] * batch["tool_mask"]).sum(dim=1) > 0
        if rows.any():
            left = {name: value[rows] if value.dim() else value for name, value in batch.items()}
            left["advantages"] = left["advantages"].sign() * 0.5 / (3**-0.5 + 1e-4)  # of rewards 0, 1, 1, 0
            filled.append(trainer._compute_loss(trainer.model, left))
    assert 1 < len(filled) < 8
    reference = gradient(sum(filled) / len(filled))
    assert difference(found, reference) < 1e-4


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "sapo", "luspo"])
def test_audits_make_the_sampled_gradient_unbiased(loss_type: str, gradient_of: Callable[..., Any]) -> None:
    """Exactly: the mean over both ways in which the audit of a wrong cut may be drawn."""
    tasks = (MIXED_A, ("c=", [0, 1, 0, 1]))
    eps = 0.25
    config = {"loss_type": loss_type, "shuffle_dataset": False, "denominator": "sampled"}
    truth = gradient_of(*tasks, gate=TrainingGate(RULE), **config)
    mean = torch.zeros_like(truth)
    for audited, chance in ((True, eps), (False, 1 - eps)):
        seed = next(s for s in range(99) if is_audited(s, "step0.0-rank0-1", eps) is audited)
        gate = enforcing(audit_rate=eps, seed=seed)
        mean += chance * gradient_of(*tasks, gate=gate, **config)
        assert gate.meter.cut == (not audited)
    print(f"{loss_type}: mean over the draw off by {difference(mean, truth):.1e}")
    assert difference(mean, truth) < 1e-5
