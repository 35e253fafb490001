"""The server's own counters, read from its /metrics page (Prometheus text).

They count what the engine did, for all clients and whether or not anybody received it. That makes them the
proof that a stop stopped something, and the second opinion on a ledger.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from selective_rollout.policy.transport import REQUEST_ERRORS, Transport

METRICS_PATH: Final = "/metrics"
_POLL_S: Final = 0.01
_TIMEOUT_S: Final = 5.0
_SAMPLE: Final = re.compile(r"^([a-z_]+:[a-z_]+)(?:\{.*\})? (\S+)(?: \d+)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ServerCounters:
    """Totals since the server started; None where the server does not count."""

    engine: str
    """"vLLM" or "llama.cpp"."""
    running: int | None
    """Requests being generated or waiting for it."""
    prompt: int | None
    """Prompt tokens, cached ones included. vLLM counts the prompt of n choices n times, usage once."""
    cached: int | None
    """Part of `prompt` that came out of the prefix cache."""
    completion: int | None
    """Tokens generated. llama.cpp adds a request's tokens when the request has ended."""

    def since(self, earlier: ServerCounters) -> ServerCounters:
        """What was counted since an earlier reading; `running` stays as it is now."""
        return ServerCounters(
            self.engine,
            self.running,
            _minus(self.prompt, earlier.prompt),
            _minus(self.cached, earlier.cached),
            _minus(self.completion, earlier.completion),
        )


def parse_metrics(text: str) -> ServerCounters | None:
    """Read a metrics page; None if it is of no server known here.

    Several series of one name, as of several engines behind one address, are added up.
    """
    totals: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        try:
            totals[name] = totals.get(name, 0.0) + float(value)
        except ValueError:
            continue
    if "vllm:generation_tokens_total" in totals:
        return ServerCounters(
            "vLLM",
            _sum(totals, "vllm:num_requests_running", "vllm:num_requests_waiting"),
            _sum(totals, "vllm:prompt_tokens_total"),
            _sum(totals, "vllm:prefix_cache_hits_total"),
            _sum(totals, "vllm:generation_tokens_total"),
        )
    if "llamacpp:tokens_predicted_total" in totals:
        cached = _sum(totals, "llamacpp:prompt_tokens_cached_total")
        fresh = _sum(totals, "llamacpp:prompt_tokens_total")
        return ServerCounters(
            "llama.cpp",
            _sum(totals, "llamacpp:requests_processing", "llamacpp:requests_deferred"),
            None if fresh is None else fresh + (cached or 0),
            cached,
            _sum(totals, "llamacpp:tokens_predicted_total"),
        )
    return None


async def read_counters(transport: Transport) -> ServerCounters | None:
    """The counters now; None if the server shows none, or not to us."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return parse_metrics(await transport.get_root(METRICS_PATH))
    except REQUEST_ERRORS:
        return None


async def read_when_idle(transport: Transport, within_s: float) -> ServerCounters | None:
    """The counters once nothing is being generated any more, or as they are when the time is up."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + within_s
    while True:
        counters = await read_counters(transport)
        if counters is None or not counters.running or clock() >= deadline:
            return counters
        await asyncio.sleep(_POLL_S)


def _sum(totals: Mapping[str, float], *names: str) -> int | None:
    known = [totals[name] for name in names if name in totals]
    return int(sum(known)) if known else None


def _minus(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before
