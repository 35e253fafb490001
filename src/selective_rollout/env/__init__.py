"""Worlds that agents act in: the protocol, the embedded household world, and worker processes.

`env.textworld` needs the `textworld` extra and is imported on its own.
"""

from selective_rollout.env.base import Environment, EnvironmentFactory, Observation, StepResult
from selective_rollout.env.household import HouseholdEnvironment
from selective_rollout.env.household_habits import Habits, household_habits
from selective_rollout.env.household_policy import household_reply
from selective_rollout.env.household_scenario import WORKLOADS, household_tasks
from selective_rollout.env.loading import load_factory
from selective_rollout.env.worker import ProcessEnvironment

__all__ = [
    "WORKLOADS",
    "Environment",
    "EnvironmentFactory",
    "Habits",
    "HouseholdEnvironment",
    "Observation",
    "ProcessEnvironment",
    "StepResult",
    "household_habits",
    "household_reply",
    "household_tasks",
    "load_factory",
]
