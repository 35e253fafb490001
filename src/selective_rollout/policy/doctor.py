"""Is an endpoint fit for gating? Found out from outside, with small requests and in bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from selective_rollout.policy.doctor_probe import (
    SHORT,
    AbortFinding,
    Probe,
    StopFinding,
    StreamFinding,
    Way,
)
from selective_rollout.policy.endpoint import Endpoint
from selective_rollout.policy.failures import Failure
from selective_rollout.policy.server_metrics import ServerCounters, read_when_idle
from selective_rollout.policy.usage import read_usage

UsageStyle: TypeAlias = Literal["all_choices", "one_choice", "none"]

_WAYS: Final[tuple[Way, ...]] = ("choice", "grammar", "json_schema", "guided_choice")
_NO_MODEL: Final = "no-such-model"
_QUIET_WITHIN_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointReport:
    """Findings about one endpoint; None means that it was not found out."""

    base_url: str
    problem: str | None = None
    """What keeps the endpoint from being used, in one line."""
    out_of_time: bool = False
    """The last checks were left out."""
    server: str | None = None
    """Kind and version, where the server tells."""
    counters: bool | None = None
    """Whether /metrics shows what the engine generates."""
    busy: bool = False
    """Somebody else is using the server, so its counters prove nothing here."""
    reachable: bool = False
    """An answer came, be it an error."""
    authorized: bool | None = None
    models: tuple[str, ...] | None = None
    """Names that the server lists."""
    model: str | None = None
    """Model that was tried: the endpoint's, or else the first one listed."""
    model_listed: bool | None = None
    """Whether `model` is among `models`."""
    model_checked: bool | None = None
    """Whether a name that cannot exist is refused; llama.cpp accepts any."""
    streams: bool | None = None
    pieces: int | None = None
    """Chunks with text of a short stream; a proxy that buffers makes it one."""
    usage_in_stream: bool | None = None
    seeds_differ: bool | None = None
    """Whether two seeds gave two texts; a model without a choice looks the same as an ignored seed."""
    first_token_s: float | None = None
    tokens_per_s: float | None = None
    """Of one stream, after its first token."""
    honours_n: bool | None = None
    """Whether n = 2 gave two choices."""
    usage_of_n: UsageStyle | None = None
    """What the usage of that answer covers."""
    stop_stream: StopFinding | None = None
    stop_whole: StopFinding | None = None
    abort: AbortFinding | None = None
    constraints: Mapping[str, bool] | None = None
    """Way of keeping an answer to given texts -> whether the answer kept to them."""
    repeated_prompt: int | None = None
    """Tokens of a prompt that was sent a second time."""
    repeated_cached: int | None = None
    """Those of them that usage names as cached."""
    dropped: int | None = None
    """Connections found closed, of `doctor_probe.REUSES` streams that reused one."""


_Stage: TypeAlias = Callable[[EndpointReport, Probe], Awaitable[EndpointReport]]


async def check_endpoint(
    endpoint: Endpoint, *, timeout_s: float = 30.0, within_s: float = 150.0
) -> EndpointReport:
    """Look at an endpoint from outside; about 30 requests, three of them for up to 400 tokens.

    Args:
        endpoint: the server; without a model, the first one listed is tried.
        timeout_s: longest wait for each request.
        within_s: longest time for everything; what was not found out by then stays None.
    """
    probe = Probe(endpoint, timeout_s)
    report = EndpointReport(base_url=endpoint.base_url, model=endpoint.model)
    try:
        async with asyncio.timeout(within_s):
            for stage in _STAGES:
                report = await stage(report, probe)
                if report.problem is not None:
                    break
    except TimeoutError:
        report = replace(report, out_of_time=True)
    finally:
        await probe.transport.aclose()
    return report


async def _models(report: EndpointReport, probe: Probe) -> EndpointReport:
    models = await probe.attempt(probe.transport.models())
    if isinstance(models, Failure):
        failed = _blame(report, models)
        hopeless = not failed.reachable or failed.authorized is False or report.model is None
        return failed if hopeless else replace(failed, problem=None)
    model = probe.model = report.model or next(iter(models), None)
    return replace(
        report,
        reachable=True,
        authorized=True,
        models=models,
        model=model,
        model_listed=model in models,
        problem=f"{report.base_url} lists no model; name one" if model is None else None,
    )


async def _streams(report: EndpointReport, probe: Probe) -> EndpointReport:
    first = await probe.attempt(probe.stream(1))
    if isinstance(first, Failure):
        return replace(_blame(report, first), streams=False if first.kind == "protocol" else None)
    second = await probe.attempt(probe.stream(2))
    best = first if isinstance(second, Failure) else second
    return replace(
        report,
        reachable=True,
        authorized=True,
        streams=True,
        pieces=first.pieces,
        usage_in_stream=first.usage.source == "server",
        seeds_differ=first.text != second.text if isinstance(second, StreamFinding) else None,
        first_token_s=best.first_token_s,
        tokens_per_s=best.tokens_per_s,
    )


async def _model_check(report: EndpointReport, probe: Probe) -> EndpointReport:
    answer = await probe.attempt(probe.fetch(model=_NO_MODEL, max_tokens=1))
    if not isinstance(answer, Failure):
        return replace(report, model_checked=False)
    return replace(report, model_checked=True if answer.status in (400, 404, 422) else None)


async def _choices(report: EndpointReport, probe: Probe) -> EndpointReport:
    answer = await probe.attempt(probe.fetch(n=2))
    if isinstance(answer, Failure):
        return replace(report, honours_n=False if answer.kind == "bad_request" else None)
    choices = answer.get("choices")
    if not isinstance(choices, list):
        return report
    return replace(report, honours_n=len(choices) == 2, usage_of_n=_usage_style(answer, choices))


async def _constraints(report: EndpointReport, probe: Probe) -> EndpointReport:
    kept = {way: await probe.attempt(probe.keeps_to(way)) for way in _WAYS}
    return replace(report, constraints={way: done is True for way, done in kept.items()})


async def _cache(report: EndpointReport, probe: Probe) -> EndpointReport:
    usage = await probe.attempt(probe.cached_tokens())
    if isinstance(usage, Failure):
        return report
    return replace(report, repeated_prompt=usage.prompt, repeated_cached=usage.cached)


async def _keep_alive(report: EndpointReport, probe: Probe) -> EndpointReport:
    dropped = await probe.attempt(probe.dropped_connections())
    return replace(report, dropped=None if isinstance(dropped, Failure) else dropped)


async def _identity(report: EndpointReport, probe: Probe) -> EndpointReport:
    counters = await read_when_idle(probe.transport, _QUIET_WITHIN_S)
    version = await probe.version()
    names = (counters.engine if counters else None, version)
    return replace(
        report,
        counters=counters is not None and counters.completion is not None,
        busy=bool(counters and counters.running),
        server=" ".join(name for name in names if name) or None,
    )


async def _stops(report: EndpointReport, probe: Probe) -> EndpointReport:
    """Long answers, left midway; only where the server's counters can tell what became of them."""
    found: list[StopFinding | None] = []
    for leave in (probe.stop_stream, probe.stop_whole):
        before = await _quiet(report, probe)
        if before is None:
            return report
        stop = await probe.attempt(leave(before, report.tokens_per_s))
        found.append(None if isinstance(stop, Failure) else stop)
    return replace(report, stop_stream=found[0], stop_whole=found[1])


async def _aborts(report: EndpointReport, probe: Probe) -> EndpointReport:
    found = await probe.attempt(probe.abort(report.tokens_per_s))
    return replace(report, abort=found if isinstance(found, AbortFinding) else None)


async def _quiet(report: EndpointReport, probe: Probe) -> ServerCounters | None:
    if not report.counters or report.busy:
        return None
    return await read_when_idle(probe.transport, _QUIET_WITHIN_S)


_STAGES: Final[tuple[_Stage, ...]] = (
    _models,
    _streams,
    _model_check,
    _choices,
    _constraints,
    _cache,
    _keep_alive,
    _identity,
    _aborts,
    _stops,
)


def _usage_style(answer: Mapping[str, Any], choices: list[Any]) -> UsageStyle | None:
    """Tell from the limit of tokens whether usage counts two choices or one."""
    completion = read_usage(answer.get("usage")).completion
    if completion is None:
        return "none"
    if completion > SHORT:
        return "all_choices"
    full = [isinstance(choice, Mapping) and choice.get("finish_reason") == "length" for choice in choices]
    return "one_choice" if len(full) == 2 and all(full) else None


def _blame(report: EndpointReport, failure: Failure) -> EndpointReport:
    answered = failure.status is not None or failure.kind == "protocol"
    return replace(
        report,
        problem=failure.message,
        reachable=report.reachable or answered,
        authorized=failure.kind != "auth" if answered else report.authorized,
    )
