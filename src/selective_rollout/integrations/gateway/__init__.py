"""`selective-rollout serve`: an OpenAI-compatible proxy that knows groups (extra `gateway`).

Agents in any language send their requests through it, with the group and rollout in headers or in the
address. It records every group, measures its distance, and, if told to, ends the groups that the gate cuts.
"""

from __future__ import annotations

from selective_rollout.errors import MissingExtraError

try:
    import httptools  # noqa: F401 - only to know that they are there
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401
except ModuleNotFoundError as error:
    raise MissingExtraError("gateway", error.name or "starlette") from error

from selective_rollout.integrations.gateway.app import Gateway
from selective_rollout.integrations.gateway.config import GatewayConfig, Limits
from selective_rollout.integrations.gateway.keys import ClientKeys, new_key
from selective_rollout.integrations.gateway.server import serve
from selective_rollout.integrations.gateway.state import GatewayView, GroupView, MemberView

__all__ = [
    "ClientKeys",
    "Gateway",
    "GatewayConfig",
    "GatewayView",
    "GroupView",
    "Limits",
    "MemberView",
    "new_key",
    "serve",
]
