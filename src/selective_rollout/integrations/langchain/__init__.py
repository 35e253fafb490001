"""The group gate inside agents made by `langchain.agents.create_agent` (extra `langchain`).

    agent = create_agent(model, tools, middleware=[GroupGateMiddleware()])
    async with gated_group(gate, size=8, mode="enforce") as group:
        states = await asyncio.gather(*(group.run(i, agent.ainvoke(question)) for i in range(8)))
    print(group.outcome.answer)

Outside a group the middleware does nothing, so the same agent serves ordinary calls.
"""

from __future__ import annotations

from selective_rollout.errors import MissingExtraError

try:
    import langchain.agents  # noqa: F401 - only to know that it is there
except ModuleNotFoundError as error:
    raise MissingExtraError("langchain", "langchain") from error

from selective_rollout.engine.sampling import IdenticalSamplingWarning, UnknownUsageWarning
from selective_rollout.integrations.chat_messages import usage_of
from selective_rollout.integrations.langchain.group import GatedGroup, gated_group
from selective_rollout.integrations.langchain.middleware import GroupGateMiddleware

__all__ = [
    "GatedGroup",
    "GroupGateMiddleware",
    "IdenticalSamplingWarning",
    "UnknownUsageWarning",
    "gated_group",
    "usage_of",
]
