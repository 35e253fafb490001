"""Gating inside a trainer's own loop: the trainer samples, scores and learns; the gate says what to stop.

`TrainingGate` keeps what a run shares (rule, schedule, prompt history, audits, alarm, totals),
`TrainingGroup` one group while it is sampled, `guarded` turns a cut into the end of a coroutine, `Refill`
replaces what was dropped within a budget.
"""

from selective_rollout.engine.training.gate import TrainingGate
from selective_rollout.engine.training.group import Facts, TrainingGroup
from selective_rollout.engine.training.guard import GroupCut, guarded
from selective_rollout.engine.training.meter import Meter
from selective_rollout.engine.training.refill import Refill

__all__ = ["Facts", "GroupCut", "Meter", "Refill", "TrainingGate", "TrainingGroup", "guarded"]
