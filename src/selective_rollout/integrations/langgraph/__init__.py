"""A group of rollouts and its gate as a LangGraph graph (extra `langgraph`).

    graph = build_graph()  # the endpoint comes from VLLM_BASE_URL and VLLM_MODEL when a run starts
    state = graph.invoke({"prompt": "..."}, context={"group_size": 8, "mode": "enforce"})
    result = GroupResult.from_state(state)

The state is plain data, typed here for reading. Policies and environments live outside it, for one run each.

    runner = GroupRunner(my_agent)  # any compiled graph, or a factory of one per rollout
    result = runner.invoke({"messages": [("user", "...")]})

`GroupRunner` leaves the agent as it is and drives G copies of it.
"""

from __future__ import annotations

from selective_rollout.errors import MissingExtraError

try:
    import langgraph.graph  # noqa: F401 - only to know that it is there
except ModuleNotFoundError as error:
    raise MissingExtraError("langgraph", "langgraph") from error

from selective_rollout.engine.sampling import IdenticalSamplingWarning, UnknownUsageWarning
from selective_rollout.integrations.langgraph.agent_result import AgentGroupResult, GroupEvent
from selective_rollout.integrations.langgraph.graph import GroupGraph, build_graph
from selective_rollout.integrations.langgraph.result import GroupResult
from selective_rollout.integrations.langgraph.rules import Aggregate
from selective_rollout.integrations.langgraph.runner import GroupRunner
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
from selective_rollout.integrations.langgraph.threads import AgentFactory
from selective_rollout.integrations.langgraph.tracing import Trace

__all__ = [
    "AgentFactory",
    "AgentGroupResult",
    "Aggregate",
    "GroupContext",
    "GroupEvent",
    "GroupGraph",
    "GroupInput",
    "GroupResult",
    "GroupRunner",
    "GroupState",
    "GroupStatus",
    "IdenticalSamplingWarning",
    "PolicyFactory",
    "RolloutState",
    "StepState",
    "Trace",
    "UnknownUsageWarning",
    "Verdict",
    "build_graph",
]
