"""What is fixed before the first seed is run; the report repeats it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that is the same for all arms and seeds."""

    seeds: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    group_size: int = 8
    prompts: int = 8
    """Prompts per update."""
    tasks: int = 64
    """Prompts that training goes through."""
    epochs: int = 4
    max_steps: int = 30
    temperature: float = 0.8
    demonstrations: int = 1000
    passes: int = 8
    """How often imitation goes through the demonstrations."""
    learning_rate: float = 3e-4
    calibration_tasks: int = 200
    calibration_visits: int = 2
    start_steps: tuple[int, ...] = (8, 10, 12)
    choose_share: float = 0.4
    alpha: float = 0.10
    delta: float = 0.05
    audit_rate: float = 0.2
    skip_probability: float = 0.5
    """Chance of skipping a prompt all of whose last group's rewards were equal (history arm)."""
    held_out: int = 64
    held_out_rollouts: int = 4
    """Per held-out prompt, before and after training."""

    @property
    def updates(self) -> int:
        """Updates of each run."""
        return self.epochs * self.tasks // self.prompts


FULL = Setting()
SMOKE = Setting(
    seeds=(1,),
    tasks=16,
    epochs=2,
    demonstrations=600,
    passes=5,
    calibration_tasks=32,
    calibration_visits=2,
    held_out=16,
    held_out_rollouts=2,
)
