"""Reads the body of a generation request and refuses what the real server would refuse."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from selective_rollout.testing.options import ServerOptions
from selective_rollout.testing.tokens import render_prompt, tokenize


class ApiError(Exception):
    """An answer other than 200.

    Attributes:
        status: HTTP status.
        kind: error type by name; None lets the answer choose the personality's name for the status.
        param: the offending field.
        extra: further fields of the error object.
        headers: further response headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        param: str | None = None,
        extra: Mapping[str, Any] | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.extra = dict(extra or {})
        self.headers = headers


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A valid generation request."""

    body: dict[str, Any]
    """As sent; a text completion also gets `messages`, for the brain."""
    chat: bool
    prompt: list[str] = field(repr=False)
    """Prompt tokens."""
    n: int
    """Choices that will be returned."""
    max_tokens: int
    greedy: bool
    seed: int | None
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    request_id: str | None
    cache_salt: str | None


def read_body(raw: bytes) -> dict[str, Any]:
    """Decode a JSON object.

    Raises:
        ApiError: it is not one.
    """
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise ApiError(400, f"the request body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, f"the request body must be a JSON object, not {type(body).__name__}")
    return body


def read_generate_request(body: dict[str, Any], options: ServerOptions, *, chat: bool) -> GenerateRequest:
    """Check a body as the personality would.

    Raises:
        ApiError: the personality refuses it.
    """
    _check_model(body, options)
    body, prompt = _read_chat(body, options) if chat else _read_text(body)
    _check_prompt_length(len(prompt), options)
    temperature = _read_temperature(body, options)
    stream_options = body.get("stream_options") or {}
    if stream_options and not body.get("stream"):
        raise ApiError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    return GenerateRequest(
        body=body,
        chat=chat,
        prompt=prompt,
        n=_read_n(body, temperature, options),
        max_tokens=_read_max_tokens(body, len(prompt), options),
        greedy=temperature == 0,
        seed=_integer(body, "seed"),
        stop=_read_stop(body),
        stream=bool(body.get("stream")),
        include_usage=bool(stream_options.get("include_usage")),
        continuous_usage=bool(stream_options.get("continuous_usage_stats"))
        and options.profile.continuous_usage,
        return_token_ids=bool(body.get("return_token_ids")) and options.profile.token_ids,
        request_id=_string(body, "request_id"),
        cache_salt=_string(body, "cache_salt"),
    )


def _check_model(body: Mapping[str, Any], options: ServerOptions) -> None:
    model = body.get("model")
    if options.profile.checks_model and model is not None and model != options.model:
        raise ApiError(404, f"The model `{model}` does not exist.", kind="NotFoundError", param="model")


def _read_chat(body: dict[str, Any], options: ServerOptions) -> tuple[dict[str, Any], list[str]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise ApiError(400, "messages must be a non-empty list of message objects", param="messages")
    tools = body.get("tools") or []
    chosen_by_model = bool(tools) and body.get("tool_choice", "auto") in ("auto", "required")
    if chosen_by_model and options.profile.strict_sampling and not options.auto_tool_choice:
        raise ApiError(
            400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        )
    return body, render_prompt(messages, tools)


def _read_text(body: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    prompt = body.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise ApiError(400, "prompt must be a non-empty string", param="prompt")
    return {**body, "messages": [{"role": "user", "content": prompt}]}, tokenize(prompt)


def _check_prompt_length(length: int, options: ServerOptions) -> None:
    limit = options.max_model_len
    if length < limit:
        return
    if options.profile.error_objects:
        raise ApiError(
            400,
            f"the request has {length} tokens and exceeds the available context size ({limit} tokens)",
            kind="exceed_context_size_error",
            extra={"n_prompt_tokens": length, "n_ctx": limit},
        )
    raise ApiError(
        400,
        f"This model's maximum context length is {limit} tokens; the request has {length} input tokens.",
        param="input_text",
    )


def _read_temperature(body: Mapping[str, Any], options: ServerOptions) -> float:
    value = body.get("temperature")
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ApiError(400, f"temperature must be a number, got {value!r}", param="temperature")
    if options.profile.strict_sampling and not 0 <= value <= 2:
        raise ApiError(400, f"temperature must be in [0, 2], got {value}.", param="temperature")
    return float(value)


def _read_n(body: Mapping[str, Any], temperature: float, options: ServerOptions) -> int:
    n = _integer(body, "n")
    profile = options.profile
    if n is None or not profile.honours_n:
        return 1
    if profile.n_within_slots and not 1 <= n <= options.slots:
        raise ApiError(400, f"Field 'n': Value must be between 1 <= value <= {options.slots}, but got {n}")
    if n < 1:
        raise ApiError(400, f"n must be at least 1, got {n}.", param="n")
    if profile.strict_sampling and temperature == 0 and n > 1:
        raise ApiError(400, f"n must be 1 when using greedy sampling, got {n}.", param="n")
    return n


def _read_max_tokens(body: Mapping[str, Any], prompt_length: int, options: ServerOptions) -> int:
    room = options.max_model_len - prompt_length
    asked = _integer(body, "max_completion_tokens")
    if asked is None:
        asked = _integer(body, "max_tokens")
    if asked is None:
        return room
    if options.profile.strict_sampling:
        if asked < 1:
            raise ApiError(400, f"max_tokens must be at least 1, got {asked}.", param="max_tokens")
        if asked > options.max_model_len:
            message = f"max_tokens={asked} cannot be greater than max_model_len={options.max_model_len}."
            raise ApiError(400, message, param="max_tokens")
    elif asked < 0:
        return room
    return min(max(1, asked), room)


def _read_stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop") or []
    strings = [stop] if isinstance(stop, str) else stop
    if not isinstance(strings, list) or not all(isinstance(string, str) and string for string in strings):
        raise ApiError(400, "stop must be a string or a list of non-empty strings", param="stop")
    return tuple(strings)


def _integer(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ApiError(400, f"{name} must be an integer, got {value!r}", param=name)
    return value


def _string(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    return None if value is None else str(value)
