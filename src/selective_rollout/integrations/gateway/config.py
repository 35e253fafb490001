"""What a gateway is told before it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from selective_rollout.engine.config import RunConfig
from selective_rollout.errors import ConfigError
from selective_rollout.gate.audit import Alarm
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.gateway.keys import ClientKeys
from selective_rollout.policy.endpoint import NO_KEY, Endpoint

LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client may use up.

    Raises:
        ConfigError: a limit is not above 0.
    """

    body_bytes: int = 32 * 2**20
    header_bytes: int = 64 * 2**10
    body_s: float = 30.0
    """Longest wait for a request's body."""
    silence_s: float = 600.0
    """Longest silence of the upstream server."""
    connections: int = 4096
    """Connections served at once; more get 503."""
    answer_bytes: int = 16 * 2**20
    """Longer answers are passed on but not read."""
    messages: int = 10_000
    """Conversations with more messages are passed on but not read."""
    open_groups: int = 1024
    """Groups watched at once; requests of further groups are passed on unrecorded."""
    open_rollouts: int = 16_384
    """The same, in rollouts of those groups; of ended groups four times as many stay known."""
    ended_groups: int = 4096
    """Groups that have ended and are still known, for late requests and rewards; the oldest go first."""
    ended_ttl_s: float = 24 * 3600.0
    idle_s: float = 600.0
    """A rollout that is silent for so long has ended."""
    final_s: float = 30.0
    """The same for one that was offered tools and last called none."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            if not getattr(self, limit.name) > 0:
                raise ConfigError(f"gateway.{limit.name} must be above 0, not {getattr(self, limit.name)!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Where requests go, whose they are, and what is done with their groups.

    Raises:
        ConfigError: the rule asks for what a gateway cannot do.
    """

    upstream: Endpoint
    rule: GateConfig = field(default_factory=GateConfig)
    run: RunConfig = field(default_factory=RunConfig)
    """Of it, mode, hold, hold_timeout_s, audit_rate, seed and actions are used."""
    clients: ClientKeys = field(default_factory=ClientKeys)
    inject_usage: bool = False
    """Ask for the usage of streams that belong to a group, and take it out again for the client."""
    group_size: int | None = None
    """Size of groups whose requests name none."""
    hosts: frozenset[str] = LOOPBACK_HOSTS
    """Names under which the gateway may be asked for."""
    origins: frozenset[str] = frozenset()
    """Web pages that may use it; none by default."""
    limits: Limits = field(default_factory=Limits)
    tau_of: Callable[[Mapping[str, Any]], float | None] | None = None
    """A group's own threshold, by its declared metadata; None: the rule's."""
    alarm: Alarm | None = None
    """Watches the audits; once it has rung, groups begun later are only observed."""
    record_observations: bool = False
    record_completions: bool = False

    def __post_init__(self) -> None:
        if self.upstream.api_key != NO_KEY and not self.clients.required:
            raise ConfigError("a gateway that holds the upstream server's key needs client keys")
        if self.rule.outcome == "vote":
            raise ConfigError("gate.outcome must be drop or survivor behind a gateway, not vote")
        reads_history = self.rule.score is not None and self.rule.score.reads_history
        if self.rule.history_mixed or reads_history:
            raise ConfigError(
                "the rule reads the prompts' earlier rewards, which a gateway does not keep: "
                "set gate.history_mixed to 0, or use a score without the history"
            )

    @property
    def holds_key(self) -> bool:
        """Whether requests go up with the gateway's credentials, since clients come with keys of its own."""
        return self.clients.required
