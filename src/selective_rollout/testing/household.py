"""The scripted household agent as a policy in process, and as the brain of a loopback server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from selective_rollout.env.household_policy import household_reply
from selective_rollout.policy.base import Completion, Message, RequestInfo
from selective_rollout.testing.brains import Reply
from selective_rollout.testing.tokens import count_tokens
from selective_rollout.types import Usage


class HouseholdBrain:
    """Says what the scripted household agent says."""

    def reply(self, request: dict[str, Any], *, choice: int, seed: int | None) -> Reply:
        """Answer from the conversation and the seed alone."""
        return Reply(content=household_reply(request["messages"], seed or 0))


class SimulatedPolicy:
    """The same agent without a server. Simulated: no model runs, and prompt tokens are not counted."""

    async def complete(self, messages: Sequence[Message], info: RequestInfo) -> Completion:
        """The agent's next command."""
        await asyncio.sleep(0)
        text = household_reply(messages, info.seed or 0)
        tokens = count_tokens(text)
        info.meter.started = True
        info.meter.completion = tokens
        usage = Usage(completion=tokens, source="estimated")
        return Completion({"role": "assistant", "content": text}, usage, "stop")

    async def aclose(self) -> None:
        """Nothing is held."""
