"""Fakes for tests: a real OpenAI-compatible server on loopback, a scripted policy, a scripted world.

`LoopbackServer` proves over real sockets that stopping really stops: it counts every token that it generates,
also those that nobody was there to read. `ScriptedPolicy` and `ScriptedEnvironment` do the same in process.
"""

from __future__ import annotations

from selective_rollout.testing.brains import Brain, EchoBrain, Reply, ScriptedBrain, ToolCall, TutorialBrain
from selective_rollout.testing.counters import CounterSnapshot, RequestRecord, Totals
from selective_rollout.testing.fakes import ScriptedEnvironment, ScriptedPolicy
from selective_rollout.testing.faults import Fault, FaultContext, FaultKind, FaultPlan
from selective_rollout.testing.http import Limits
from selective_rollout.testing.personality import LLAMA_CPP, N_IGNORED, VLLM, Personality
from selective_rollout.testing.server import LoopbackServer
from selective_rollout.testing.tokens import count_tokens, tokenize

__all__ = [
    "Brain",
    "CounterSnapshot",
    "EchoBrain",
    "Fault",
    "FaultContext",
    "FaultKind",
    "FaultPlan",
    "LLAMA_CPP",
    "Limits",
    "LoopbackServer",
    "N_IGNORED",
    "Personality",
    "Reply",
    "RequestRecord",
    "ScriptedBrain",
    "ScriptedEnvironment",
    "ScriptedPolicy",
    "ToolCall",
    "Totals",
    "TutorialBrain",
    "VLLM",
    "count_tokens",
    "tokenize",
]
