"""The graph that `langgraph dev` serves; run it in this folder, and no network is needed to try it.

Without an endpoint a scripted model answers. Set VLLM_BASE_URL and VLLM_MODEL, and the graph asks yours. The
server keeps the threads, so the graph is compiled without a checkpointer, and the settings are the run's
context: Studio shows a form for them.
"""

from __future__ import annotations

import os

from selective_rollout.engine.config import RunConfig
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.langgraph import build_graph
from selective_rollout.policy.base import Policy
from selective_rollout.testing import ScriptedPolicy, TutorialBrain


def scripted() -> Policy:
    return ScriptedPolicy(TutorialBrain(convergent_fraction=0.5, steps=7))


has_endpoint = "VLLM_BASE_URL" in os.environ
graph = build_graph(
    None if has_endpoint else scripted,
    gate=GateConfig(start_step=3, outcome="survivor"),
    config=RunConfig(group_size=8),
)
