"""A run's ledger beside what the server itself counted meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from selective_rollout.engine.ledger import Ledger
from selective_rollout.policy.endpoint import Endpoint
from selective_rollout.policy.server_metrics import ServerCounters, read_when_idle
from selective_rollout.policy.transport import Transport

_LLAMA_CPP: Final = "llama.cpp"
_IDLE_WITHIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """Two counts of the same run; None is unknown."""

    engine: str
    ledger_completion: int
    """Completion tokens booked."""
    server_completion: int | None
    """Tokens that the server generated meanwhile, for whomever."""
    ledger_prompt: int | None
    """Prompt tokens booked; None if a request's prompt is unknown."""
    server_prompt: int | None
    unknown_requests: int
    """Requests whose completion tokens nobody told."""

    @property
    def surplus(self) -> int | None:
        """Tokens that the server generated beyond those booked."""
        return None if self.server_completion is None else self.server_completion - self.ledger_completion

    def describe(self) -> str:
        """One line for people."""
        if self.surplus is None:
            return f"{self.engine} does not count its tokens"
        share = f" ({self.surplus / self.ledger_completion:+.1%})" if self.ledger_completion else ""
        text = f"{self.engine} generated {self.server_completion:,}, {self.surplus:+,} to the ledger{share}"
        return f"{text}: {self._cause()}" if self.surplus else text

    def to_dict(self) -> Mapping[str, object]:
        """Plain data for JSON output."""
        return {**asdict(self), "surplus": self.surplus, "note": self._prompt_note()}

    def _cause(self) -> str:
        if self.unknown_requests:
            return f"{self.unknown_requests} requests have no known count"
        return "tokens nobody was there to read, or of other clients"

    def _prompt_note(self) -> str:
        if self.engine == _LLAMA_CPP:
            return "llama.cpp adds a request's tokens to its counters when the request has ended"
        return f"{self.engine}'s counter takes a prompt once per choice, usage and ledger once per request"


def reconcile(ledger: Ledger, counted: ServerCounters) -> Reconciliation:
    """Set a ledger against the server's counters.

    Args:
        ledger: of everything that was asked for in between.
        counted: `after.since(before)` of the counters around it.
    """
    return Reconciliation(
        counted.engine,
        ledger.completion,
        counted.completion,
        None if ledger.unknown_prompts else ledger.prompt,
        counted.prompt,
        ledger.unknown_requests,
    )


class ServerWatch:
    """Reads a server's counters before and after a run, if it shows any.

    Args:
        endpoint: the server; None watches nothing.
    """

    def __init__(self, endpoint: Endpoint | None) -> None:
        self._endpoint = endpoint
        self._before: ServerCounters | None = None

    async def start(self) -> None:
        """Take the first reading."""
        self._before = await self._read(0.0)

    async def compare(self, ledger: Ledger) -> Reconciliation | None:
        """Set the ledger of what was asked since against the server; None if it shows no counters."""
        before, after = self._before, await self._read(_IDLE_WITHIN_S)
        return None if before is None or after is None else reconcile(ledger, after.since(before))

    async def _read(self, idle_within_s: float) -> ServerCounters | None:
        if self._endpoint is None:
            return None
        transport = Transport(self._endpoint)
        try:
            return await read_when_idle(transport, idle_within_s)
        finally:
            await transport.aclose()
