"""The server's endpoints: who may call them and what they answer."""

from __future__ import annotations

import hmac
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

from selective_rollout.testing.answer import Job, answer_stream, answer_whole
from selective_rollout.testing.counters import Counters, RequestRecord
from selective_rollout.testing.engine import Engine
from selective_rollout.testing.faults import Fault
from selective_rollout.testing.http import Exchange, Headers, HttpRequest
from selective_rollout.testing.metrics import metrics_text
from selective_rollout.testing.options import ServerOptions
from selective_rollout.testing.requests import ApiError, read_body, read_generate_request
from selective_rollout.testing.wire import JSON_HEADERS, Wire, encode, error_body

_CHAT: Final = "/v1/chat/completions"
_ABORT: Final = "/inference/v1/abort_requests"
_VERSION: Final = "imitated on loopback"

_Endpoint: TypeAlias = Callable[[Exchange], Awaitable[None]]


class App:
    """Answers exchanges under the given options."""

    def __init__(self, options: ServerOptions) -> None:
        self.counters = Counters(options.max_records)
        self._options = options
        self._profile = options.profile
        self._engine = Engine(options, self.counters)
        self._arrived = 0
        self._started = time.time()
        self._ready_at = time.monotonic() + options.loading_s
        self._endpoints: dict[str, tuple[str, _Endpoint]] = {
            _CHAT: ("POST", self._generate),
            "/v1/completions": ("POST", self._generate),
            "/v1/models": ("GET", self._models),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._metrics),
        }
        if self._profile.metrics_prefix == "llamacpp":
            self._endpoints["/props"] = ("GET", self._props)
        else:
            self._endpoints["/version"] = ("GET", self._version)
        if self._profile.has_abort_endpoint:
            self._endpoints[_ABORT] = ("POST", self._abort)

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request, whatever happens."""
        endpoint = self._choose(exchange.request)
        if endpoint == self._generate:
            await self._generate(exchange)
            return
        try:
            await self._guard(exchange, endpoint(exchange))
        finally:
            path = exchange.request.path
            self.counters.answered(path if path in self._endpoints else "other", exchange.status)

    def _choose(self, request: HttpRequest) -> _Endpoint:
        """The endpoint that was asked for, or the refusal that the request meets before it gets there."""
        if time.monotonic() < self._ready_at:
            return partial(self._refuse, status=503, message="Loading model", plain={})
        if request.path not in self._profile.open_paths and not self._authorised(request.headers):
            plain = {"error": "Unauthorized"}
            return partial(self._refuse, status=401, message="Invalid API Key", plain=plain)
        if request.path not in self._endpoints:
            plain = {"detail": "Not Found"}
            return partial(self._refuse, status=404, message="File Not Found", plain=plain)
        method, endpoint = self._endpoints[request.path]
        if request.method != method:
            plain = {"detail": "Method Not Allowed"}
            return partial(self._refuse, status=405, message="Method Not Allowed", plain=plain)
        return endpoint

    def _authorised(self, headers: Mapping[str, str]) -> bool:
        key = self._options.api_key
        given = headers.get("authorization", "").encode()
        return key is None or hmac.compare_digest(given, f"Bearer {key}".encode())

    async def _generate(self, exchange: Exchange) -> None:
        """Both generating endpoints, from arrival to the last byte."""
        ordinal, self._arrived = self._arrived, self._arrived + 1
        headers = exchange.request.headers
        record = RequestRecord(
            ordinal,
            exchange.request.path,
            self._response_id(exchange, headers.get("x-request-id") or uuid.uuid4().hex),
            group=headers.get("x-rollout-group"),
            rollout=headers.get("x-rollout-id"),
        )
        self.counters.opened(record)
        exchange.on_disconnect = lambda: self.counters.disconnected(record)
        try:
            await self._guard(exchange, self._answer(exchange, record))
        finally:
            self.counters.closed(record, exchange.status)

    async def _answer(self, exchange: Exchange, record: RequestRecord) -> None:
        body = read_body(exchange.request.body)
        fault = self._engine.choose_fault(record.ordinal, body)
        if fault is not None:
            record.fault = fault.kind
            if fault.kind == "reset_before_response":
                exchange.reset()
                return
            _fail_at_the_door(fault)
        request = read_generate_request(body, self._options, chat=exchange.request.path == _CHAT)
        if request.request_id is not None and "x-request-id" not in exchange.request.headers:
            record.request_id = self._response_id(exchange, request.request_id)
        generation = self._engine.start(request, record, fault)
        exchange.on_disconnect = lambda: self._engine.client_left(request, generation, record)
        job = Job(
            request=request,
            generation=generation,
            wire=Wire(request, self._profile, self._options.model, record.request_id),
            profile=self._profile,
            record=record,
            counters=self.counters,
            fault=fault,
            details=self._options.prompt_tokens_details or self._profile.details_always,
            framing=self._options.framing,
        )
        if request.stream:
            exchange.keep_alive = self._profile.keeps_streams_alive
        try:
            await (answer_stream if request.stream else answer_whole)(exchange, job)
        finally:
            self._engine.finish(request, record)

    def _response_id(self, exchange: Exchange, name: str) -> str:
        return ("chatcmpl-" if exchange.request.path == _CHAT else "cmpl-") + name

    async def _abort(self, exchange: Exchange) -> None:
        if not self._options.abort_endpoint:
            raise ApiError(403, "aborting by id is off: start the server with --enable-scale-out")
        ids = read_body(exchange.request.body).get("request_ids")
        if not isinstance(ids, list) or not all(isinstance(request_id, str) for request_id in ids):
            raise ApiError(400, "request_ids must be a list of strings", param="request_ids")
        self._engine.abort(ids)
        await exchange.respond(200, b"", [])

    async def _models(self, exchange: Exchange) -> None:
        name, limit = self._options.model, self._options.max_model_len
        card = {"id": name, "object": "model", "created": int(self._started)}
        if self._profile.metrics_prefix == "llamacpp":
            card |= {"owned_by": "llamacpp", "meta": {"n_ctx": limit}}
            listing = {"models": [{"name": name, "model": name}], "object": "list", "data": [card]}
        else:
            card |= {"owned_by": "vllm", "root": name, "parent": None, "max_model_len": limit}
            listing = {"object": "list", "data": [card]}
        await self._send_json(exchange, 200, listing)

    async def _health(self, exchange: Exchange) -> None:
        if self._profile.metrics_prefix == "llamacpp":
            await self._send_json(exchange, 200, {"status": "ok"})
        else:
            await exchange.respond(200, b"", [])

    async def _version(self, exchange: Exchange) -> None:
        await self._send_json(exchange, 200, {"version": _VERSION})

    async def _props(self, exchange: Exchange) -> None:
        await self._send_json(exchange, 200, {"total_slots": self._options.slots, "build_info": _VERSION})

    async def _metrics(self, exchange: Exchange) -> None:
        text = metrics_text(self.counters.snapshot(), self._profile, self._options.model)
        await exchange.respond(
            200, text.encode(), [("Content-Type", "text/plain; version=0.0.4; charset=utf-8")]
        )

    async def _refuse(self, exchange: Exchange, *, status: int, message: str, plain: dict[str, str]) -> None:
        """Refuse outside the API proper, where servers disagree on the shape."""
        if self._profile.error_objects:
            raise ApiError(status, message)
        await self._send_json(exchange, status, plain)

    async def _send_json(
        self, exchange: Exchange, status: int, value: Mapping[str, object], headers: Headers = ()
    ) -> None:
        await exchange.respond(status, encode(value), [*JSON_HEADERS, *headers])

    async def _guard(self, exchange: Exchange, work: Awaitable[None]) -> None:
        """Turn what goes wrong into an answer: a brain that raises is this server's internal error."""
        try:
            await work
        except ApiError as error:
            await self._send_error(exchange, error)
        except Exception as error:
            await self._send_error(exchange, ApiError(500, f"the fake model failed: {error!r}"))

    async def _send_error(self, exchange: Exchange, error: ApiError) -> None:
        if exchange.status is None:
            await self._send_json(exchange, error.status, error_body(error, self._profile), error.headers)
        else:
            exchange.reset()


def _fail_at_the_door(fault: Fault) -> None:
    """Raise the error of a fault that strikes before any generation."""
    if fault.kind == "rate_limit":
        headers = [("Retry-After", f"{fault.retry_after_s:g}")]
        raise ApiError(429, "rate limit reached (injected fault)", kind="rate_limit_error", headers=headers)
    if fault.kind == "server_error":
        raise ApiError(500, "internal error (injected fault)")
    if fault.kind == "overloaded":
        raise ApiError(503, "overloaded (injected fault)")
