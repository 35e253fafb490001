"""What an endpoint can do, found out with a handful of tiny requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, TypeVar

from selective_rollout.errors import PolicyError
from selective_rollout.policy.endpoint import Endpoint
from selective_rollout.policy.failures import Failure
from selective_rollout.policy.stream import Assembly
from selective_rollout.policy.transport import REQUEST_ERRORS, Transport
from selective_rollout.policy.usage import read_usage

UsageStyle: TypeAlias = Literal["all_choices", "one_choice", "none"]

_TOKENS: Final = 16
_PROMPT: Final = "Write a long list of random words."
_HEADERS: Final = {"Connection": "close"}
"""llama.cpp drops a connection after each stream that it had promised to keep."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointReport:
    """Findings about one endpoint; None means that it was not found out."""

    base_url: str
    problem: str | None = None
    """What keeps the endpoint from being used, in one line."""
    reachable: bool = False
    """An answer came, be it an error."""
    authorized: bool | None = None
    models: tuple[str, ...] | None = None
    """Names that the server lists."""
    model: str | None = None
    """Model that was tried: the endpoint's, or else the first one listed."""
    model_listed: bool | None = None
    """Whether `model` is among `models`; llama.cpp accepts any name, vLLM refuses an unknown one."""
    streams: bool | None = None
    usage_in_stream: bool | None = None
    seeds_differ: bool | None = None
    """Whether two seeds gave two texts; a model without a choice looks the same as an ignored seed."""
    honours_n: bool | None = None
    """Whether n = 2 gave two choices."""
    usage_of_n: UsageStyle | None = None
    """What the usage of that answer covers."""


async def check_endpoint(endpoint: Endpoint, *, timeout_s: float = 30.0) -> EndpointReport:
    """Look at an endpoint from outside: list its models, and generate 16 tokens for four choices in all.

    Args:
        endpoint: the server; without a model, the first one listed is tried.
        timeout_s: longest wait for each request.
    """
    probe = _Probe(endpoint, timeout_s)
    try:
        report = await _check_models(EndpointReport(base_url=endpoint.base_url, model=endpoint.model), probe)
        if report.problem is None:
            report = await _check_streams(report, probe)
        if report.problem is None:
            report = await _check_choices(report, probe)
        return report
    finally:
        await probe.transport.aclose()


async def _check_models(report: EndpointReport, probe: _Probe) -> EndpointReport:
    models = await probe.attempt(probe.transport.models())
    if isinstance(models, Failure):
        failed = _blame(report, models)
        hopeless = not failed.reachable or failed.authorized is False or report.model is None
        return failed if hopeless else replace(failed, problem=None)
    model = report.model or next(iter(models), None)
    return replace(
        report,
        reachable=True,
        authorized=True,
        models=models,
        model=model,
        model_listed=model in models,
        problem=f"{report.base_url} lists no model; name one" if model is None else None,
    )


async def _check_streams(report: EndpointReport, probe: _Probe) -> EndpointReport:
    first = await probe.attempt(probe.stream(report.model, seed=1))
    if isinstance(first, Failure):
        return replace(_blame(report, first), streams=False if first.kind == "protocol" else None)
    second = await probe.attempt(probe.stream(report.model, seed=2))
    seeds_differ = None
    if not isinstance(second, Failure):
        seeds_differ = first.finish()[0].message != second.finish()[0].message
    return replace(
        report,
        reachable=True,
        authorized=True,
        streams=True,
        usage_in_stream=first.usage().source == "server",
        seeds_differ=seeds_differ,
    )


async def _check_choices(report: EndpointReport, probe: _Probe) -> EndpointReport:
    answer = await probe.attempt(probe.fetch(report.model, n=2))
    if isinstance(answer, Failure):
        return replace(report, honours_n=False if answer.kind == "bad_request" else None)
    choices = answer.get("choices")
    if not isinstance(choices, list):
        return report
    return replace(report, honours_n=len(choices) == 2, usage_of_n=_usage_style(answer, choices))


def _usage_style(answer: Mapping[str, Any], choices: list[Any]) -> UsageStyle | None:
    """Tell from the limit of tokens whether usage counts two choices or one."""
    completion = read_usage(answer.get("usage")).completion
    if completion is None:
        return "none"
    if completion > _TOKENS:
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


class _Probe:
    """The requests that the findings are drawn from."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self.transport = Transport(endpoint)
        self._timeout_s = timeout_s

    async def attempt(self, request: Awaitable[_T]) -> _T | Failure:
        """Await a request, and return why it failed if it does."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await request
        except REQUEST_ERRORS as error:
            return self.transport.describe(error)

    async def stream(self, model: str | None, seed: int) -> Assembly:
        """Stream one choice to its end."""
        body = _body(model, seed=seed, stream=True, stream_options={"include_usage": True})
        assembly = Assembly()
        async with self.transport.stream(body, _HEADERS) as chunks:
            async for chunk in chunks:
                assembly.add_chunk(chunk)
        assembly.finish()
        return assembly

    async def fetch(self, model: str | None, n: int) -> Mapping[str, Any]:
        """Fetch n choices at once."""
        answer = await self.transport.fetch(_body(model, n=n), _HEADERS)
        if not isinstance(answer, Mapping):
            raise PolicyError("the answer is no chat completion", "protocol")
        return answer


def _body(model: str | None, **fields: object) -> dict[str, object]:
    messages = [{"role": "user", "content": _PROMPT}]
    return {"model": model, "messages": messages, "max_tokens": _TOKENS, "temperature": 1.0, **fields}
