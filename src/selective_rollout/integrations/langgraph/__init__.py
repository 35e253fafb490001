"""A group of rollouts and its gate as a LangGraph graph (extra `langgraph`).

    graph = build_graph()  # the endpoint comes from VLLM_BASE_URL and VLLM_MODEL when a run starts
    state = graph.invoke({"prompt": "..."}, context={"group_size": 8, "mode": "enforce"})
    result = GroupResult.from_state(state)

The state is plain data, typed here for reading. Policies and environments live outside it, for one run each.
"""

from __future__ import annotations

from selective_rollout.errors import MissingExtraError

try:
    import langgraph.graph  # noqa: F401 - only to know that it is there
except ModuleNotFoundError as error:
    raise MissingExtraError("langgraph", "langgraph") from error

from selective_rollout.integrations.langgraph.graph import GroupGraph, build_graph
from selective_rollout.integrations.langgraph.result import GroupResult
from selective_rollout.integrations.langgraph.session import PolicyFactory
from selective_rollout.integrations.langgraph.settings import GroupContext
from selective_rollout.integrations.langgraph.state import (
    GroupInput,
    GroupState,
    GroupStatus,
    RolloutState,
    StepState,
    Verdict,
)

__all__ = [
    "GroupContext",
    "GroupGraph",
    "GroupInput",
    "GroupResult",
    "GroupState",
    "GroupStatus",
    "PolicyFactory",
    "RolloutState",
    "StepState",
    "Verdict",
    "build_graph",
]
