"""Cheap facts about a running group that may tell whether its rewards will be equal.

A signal is one number of a `GroupView` at a position k, with a direction: whether more of it makes zero
variance likelier. Groups end with equal rewards for two opposite reasons, so no single signal works
everywhere: agreement (`signals.agreement`, `signals.effects`) finds groups in which all succeed, futility
(`signals.futility`) groups in which all fail. Directions are the usual case only; whether a signal says
anything about a workload, and with which sign, has to be fitted on that workload.

`SIGNALS` holds the signals that need no declaration; `signal(name, ...)` makes any of them.
"""

from selective_rollout.gate.signals.base import (
    Direction,
    FunctionSignal,
    Signal,
    missing_needs,
    require_needs,
)
from selective_rollout.gate.signals.registry import DECLARED, SIGNALS, signal
from selective_rollout.gate.signals.view import GroupView

__all__ = [
    "DECLARED",
    "SIGNALS",
    "Direction",
    "FunctionSignal",
    "GroupView",
    "Signal",
    "missing_needs",
    "require_needs",
    "signal",
]
