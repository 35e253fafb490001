"""A policy on any OpenAI-compatible endpoint: one request per rollout and step, or for a whole first step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Final, Self, get_args

from selective_rollout.errors import ConfigError, PolicyError
from selective_rollout.policy.abort import Aborter
from selective_rollout.policy.base import Completion, Message, Meter, RequestInfo
from selective_rollout.policy.cancellation import finish_cleanup
from selective_rollout.policy.constrain import unwrap_action
from selective_rollout.policy.endpoint import Endpoint
from selective_rollout.policy.failures import Failure
from selective_rollout.policy.options import Constrain, FirstStep, RequestLimits, SamplingParams
from selective_rollout.policy.request import Request, RequestBuilder
from selective_rollout.policy.retry import retry_delay_s
from selective_rollout.policy.shared import STOPPED_BY_SERVER, FirstSteps, SharedRequest
from selective_rollout.policy.stream import Assembly, read_piece
from selective_rollout.policy.transport import REQUEST_ERRORS, Transport
from selective_rollout.types import Usage

_MODELS_TIMEOUT_S: Final = 5.0


class OpenAIPolicy:
    """Completions from a server; belongs to the event loop that uses it first.

    Cancelling `complete` aborts the request by its id where the server honours that (`policy.abort`), else
    closes the connection, on which most servers stop generating; it never leads to a retry. `info.meter` then
    tells how many tokens had come. After an abort the server says so itself; after a closed connection it is
    the count of a stream, and without streaming nobody can tell.

    Args:
        endpoint: the server and the model.
        sampling: settings of every request. The seed comes from `RequestInfo.seed`.
        constrain: how to keep completions to `RequestInfo.admissible`, if the environment gives that; None
            leaves them free. With "json_schema" the message holds the bare action, not the JSON around it.
        concurrency: most requests in flight. A request that waits for its retry holds no place.
        stream: ask for a stream. Without, cancelled tokens cannot be counted and stalls not be noticed.
        keep_alive: reuse connections. A request on a connection that the server had dropped is sent again
            at once on a new one; where that is frequent (llama.cpp), connections are no longer reused.
        limits: timeouts and retries.
        first_step: "shared" asks for the first step of a group by one request with n choices, which saves
            reading its prompt n times on servers whose requests do not share what they have read
            (llama.cpp). It runs on until the last rollout has left, and if it fails each
            rollout asks for itself.

    Raises:
        ConfigError: no model is named, or settings contradict each other.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        sampling: SamplingParams | None = None,
        *,
        constrain: Constrain | None = None,
        concurrency: int = 16,
        stream: bool = True,
        keep_alive: bool = True,
        limits: RequestLimits | None = None,
        first_step: FirstStep = "each",
    ) -> None:
        if endpoint.model is None:
            raise ConfigError("no model is named: pass model or set SELECTIVE_ROLLOUT_MODEL")
        if concurrency < 1:
            raise ConfigError(f"concurrency must be at least 1, not {concurrency}")
        sampling = sampling or SamplingParams()
        if constrain is not None and sampling.tools:
            raise ConfigError(
                "constrain and tools exclude each other: a tool call is no admissible action text"
            )
        if first_step not in get_args(FirstStep):
            raise ConfigError(f"first_step must be each or shared, not {first_step!r}")
        if first_step == "shared" and not stream:
            raise ConfigError(
                "first_step shared needs a stream: without one, the tokens of n choices cannot be told apart"
            )
        self._requests = RequestBuilder(
            endpoint.model, sampling, constrain=constrain, stream=stream, keep_alive=keep_alive
        )
        self._unwrap = constrain == "json_schema"
        self._send = self._streamed_alone if stream else self._whole
        self._limits = limits or RequestLimits()
        self._places = asyncio.Semaphore(concurrency)
        self._transport = Transport(endpoint)
        self._aborter = Aborter(self._transport)
        self._first_steps = FirstSteps(self._send_shared) if first_step == "shared" else None

    async def complete(self, messages: Sequence[Message], info: RequestInfo) -> Completion:
        """Return the next assistant message; see `Policy.complete`.

        Raises:
            PolicyError: the request failed for good. Its message is one line and never holds the key.
        """
        request = self._requests.build(messages, info)
        shared = None if self._first_steps is None else await self._first_steps.choice(request, info)
        completion = shared or await self._alone(request, info)
        if self._unwrap and info.admissible:
            return replace(completion, message=unwrap_action(completion.message, info.admissible))
        return completion

    async def aclose(self) -> None:
        """Release connections."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _alone(self, request: Request, info: RequestInfo) -> Completion:
        """Ask for one rollout, as often as its limits allow."""
        retries = 0
        while True:
            outcome = await self._attempt(request, info)
            if isinstance(outcome, Completion):
                return outcome
            if self._requests.adapt(request, outcome):
                continue
            delay = retry_delay_s(outcome, retries, self._limits, info.group_id, info.rollout, info.step)
            if delay is None:
                raise (await self._explain(outcome)).error(info.meter.attempts)
            retries += 1
            await asyncio.sleep(delay)

    async def _attempt(self, request: Request, info: RequestInfo) -> Completion | Failure:
        """Send the request once; what had come of a failed answer is counted as wasted."""
        meter = info.meter
        async with self._places:
            meter.started = True
            meter.attempts += 1
            request_id = self._aborter.name(request)
            try:
                return await finish_cleanup(self._send(request, info), partial(self._aborter.end, request_id))
            except REQUEST_ERRORS as error:
                failure = self._transport.describe(error)
        meter.wasted += meter.received.completion or 0
        meter.completion, meter.usage = 0, None
        if info.listener is not None:
            info.listener.broke()
        return failure

    async def _send_shared(self, request: Request, shared: SharedRequest) -> Failure | None:
        """Send the request of a group once."""
        async with self._places:
            shared.sent()
            while True:
                request_id = self._aborter.name(request)
                work = self._streamed(request, shared.assembly, shared.meter, shared.hear)
                try:
                    await finish_cleanup(work, partial(self._aborter.end, request_id))
                    shared.settle()
                    return None
                except REQUEST_ERRORS as error:
                    failure = self._transport.describe(error)
                if not self._requests.adapt(request, failure):
                    return failure

    async def _streamed_alone(self, request: Request, info: RequestInfo) -> Completion:
        meter, listener, assembly = info.meter, info.listener, Assembly()

        def hear(chunk: object) -> None:
            if listener is not None:
                listener.heard(read_piece(chunk))

        await self._streamed(request, assembly, meter, hear)
        meter.usage = assembly.usage()
        return _completion(assembly)

    async def _streamed(
        self, request: Request, assembly: Assembly, meter: Meter, hear: Callable[[object], None]
    ) -> None:
        limits, now = self._limits, asyncio.get_running_loop().time
        end = now() + limits.timeout_s
        try:
            async with asyncio.timeout_at(min(end, now() + limits.first_token_timeout_s)) as timer:
                async with self._transport.stream(request.body, request.headers) as chunks:
                    async for chunk in chunks:
                        meter.completion += assembly.add_chunk(chunk)
                        hear(chunk)
                        if meter.completion:
                            timer.reschedule(min(end, now() + limits.stall_timeout_s))
        except TimeoutError:
            raise PolicyError(self._late(now() >= end, meter.completion), "timeout") from None

    async def _whole(self, request: Request, info: RequestInfo) -> Completion:
        meter, assembly = info.meter, Assembly()
        meter.usage = Usage()
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                answer = await self._transport.fetch(request.body, request.headers)
            assembly.add_response(answer)
        except TimeoutError:
            raise PolicyError(self._late(True, 0), "timeout") from None
        meter.usage = assembly.usage()
        meter.completion = meter.usage.completion or 0
        if info.listener is not None:
            info.listener.heard(read_piece(answer))
        return _completion(assembly)

    def _late(self, overall: bool, tokens: int) -> str:
        if overall:
            return f"the answer took longer than timeout_s = {self._limits.timeout_s:g}"
        if tokens:
            stall = self._limits.stall_timeout_s
            return f"the answer stalled after {tokens} tokens for longer than stall_timeout_s = {stall:g}"
        return f"no token came within first_token_timeout_s = {self._limits.first_token_timeout_s:g}"

    async def _explain(self, failure: Failure) -> Failure:
        """Add the names that the server knows to an unknown model name."""
        if failure.kind != "model_not_found":
            return failure
        try:
            async with asyncio.timeout(_MODELS_TIMEOUT_S):
                names = await self._transport.models()
        except REQUEST_ERRORS:
            return failure
        served = ", ".join(names[:5]) or "none"
        return replace(failure, message=f"{failure.message}; models served there: {served}")


def _completion(assembly: Assembly) -> Completion:
    (choice,) = assembly.finish()
    if choice.finish_reason in STOPPED_BY_SERVER:
        raise PolicyError(f"the server stopped the answer (finish_reason {choice.finish_reason!r})", "server")
    return Completion(choice.message, assembly.usage(), choice.finish_reason, assembly.response_id)
