"""What is asked of the model, and how long to wait for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias

from selective_rollout.errors import ConfigError

Constrain: TypeAlias = Literal["choice", "grammar", "json_schema"]
"""How a server is told to keep to a set of actions; see `policy.constrain`."""

FirstStep: TypeAlias = Literal["each", "shared"]
"""each: one request per rollout. shared: the first step of a group is one request with n choices."""

_OWNED: Final = frozenset({"messages", "model", "n", "stream", "stream_options", "seed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling settings of every request; None leaves a setting to the server.

    Raises:
        ConfigError: a setting is out of range, or `extra_body` sets what the policy itself decides.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    """Tool definitions in OpenAI's format."""
    tool_choice: str | Mapping[str, Any] | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request body, such as vLLM's `request_id` or `cache_salt`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        object.__setattr__(self, "tools", tuple(self.tools))
        _require_range("temperature", self.temperature, 0.0, math.inf)
        _require_range("top_p", self.top_p, 0.0, 1.0)
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if self.tool_choice is not None and not self.tools:
            raise ConfigError("tool_choice needs tools")
        owned = sorted(_OWNED & self.extra_body.keys())
        if owned:
            raise ConfigError(
                f"extra_body cannot set {', '.join(owned)}: the policy sets it for each request"
            )

    def to_body(self) -> dict[str, Any]:
        """The settings as fields of a request body; unset ones are absent."""
        body: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_tokens,
            "stop": list(self.stop) or None,
            "tools": list(self.tools) or None,
            "tool_choice": self.tool_choice,
        }
        return {name: value for name, value in body.items() if value is not None} | dict(self.extra_body)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """How long one attempt may take, and how often a failed request is sent again.

    Raises:
        ConfigError: a limit is out of range.
    """

    timeout_s: float = 600.0
    """Longest time of one attempt, from sending to the last token."""
    first_token_timeout_s: float = 300.0
    """Longest wait for the first token of a stream; a full server queues requests for minutes."""
    stall_timeout_s: float = 120.0
    """Longest silence after the first token of a stream."""
    max_retries: int = 4
    """Times a request is sent again after a failure that may pass."""
    backoff_s: float = 0.5
    """First wait before a retry; each further one is twice as long."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if value < 0 or (limit.name.endswith("timeout_s") and value == 0):
                raise ConfigError(f"{limit.name} must be positive, not {value}")


def _require_range(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise ConfigError(f"{name} must lie in [{low:g}, {high:g}], not {value}")
