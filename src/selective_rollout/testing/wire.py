"""The JSON of the API: chunks, whole answers, usage and errors, in each personality's shape."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from selective_rollout.testing.generation import Choice, Emission
from selective_rollout.testing.personality import Personality
from selective_rollout.testing.requests import ApiError, GenerateRequest
from selective_rollout.testing.sequence import SequencePlan, Token, shown_calls, shown_message, shown_text
from selective_rollout.testing.tokens import EOS, token_id

Json: TypeAlias = dict[str, Any]

JSON_HEADERS: Final = [("Content-Type", "application/json")]

_ERROR_TYPES: Final = {
    "vllm": {
        400: "BadRequestError",
        404: "NotFoundError",
        500: "InternalServerError",
        503: "ServiceUnavailable",
    },
    "llamacpp": {
        400: "invalid_request_error",
        401: "authentication_error",
        404: "not_found_error",
        500: "server_error",
        503: "unavailable_error",
    },
}


def encode(value: object) -> bytes:
    """Compact JSON in UTF-8, with characters rather than escapes, so that they can be split between reads."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def error_body(error: ApiError, profile: Personality) -> Json:
    """The error object of an answer other than 200."""
    kind = error.kind or _ERROR_TYPES[profile.metrics_prefix].get(error.status, "api_error")
    if profile.error_objects:
        inner = {"code": error.status, "message": error.message, "type": kind, **error.extra}
    else:
        inner = {
            "message": error.message,
            "type": kind,
            "param": error.param,
            "code": error.status,
            **error.extra,
        }
    return {"error": inner}


def usage(prompt: int, completion: int, cached: int | None, *, details: bool) -> Json:
    """A usage object.

    Args:
        prompt: prompt tokens.
        completion: completion tokens.
        cached: cached prompt tokens; None leaves the details null.
        details: whether the details field is there at all.
    """
    body: Json = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if details:
        body["prompt_tokens_details"] = None if cached is None else {"cached_tokens": cached}
    return body


class Wire:
    """Shapes the answer to one request."""

    def __init__(self, request: GenerateRequest, profile: Personality, model: str, response_id: str) -> None:
        self._request = request
        self._profile = profile
        self._chat = request.chat
        self._base = {"id": response_id, "created": int(time.time()), "model": model}

    def role_chunk(self, index: int) -> Json | None:
        """The chunk that opens a choice; None where the endpoint has none."""
        if not self._chat:
            return None
        chunk = self._chunk(index, {"role": "assistant", "content": self._profile.role_content}, None, None)
        if self._request.return_token_ids:
            chunk["prompt_token_ids"] = [token_id(token) for token in self._request.prompt]
        return chunk

    def chunks(self, emission: Emission, plan: SequencePlan) -> list[Json]:
        """The chunks of one emission: one, or two where the finish reason comes on its own."""
        finish, tokens = emission.finish_reason, emission.tokens
        if finish is None or self._profile.finish_with_text:
            return [self._emission_chunk(emission, plan, finish)]
        text = [self._emission_chunk(emission, plan, None)] if any(t.kind != "eos" for t in tokens) else []
        return [*text, self._chunk(emission.index, {} if self._chat else "", finish, None)]

    def usage_chunk(self, counts: Json) -> Json:
        """The chunk that carries usage and no choice."""
        return {**self._base, "object": self._object(stream=True), "choices": [], "usage": counts}

    def body(self, choices: Sequence[Choice], counts: Json) -> Json:
        """The whole answer to a request that does not stream."""
        body = {
            **self._base,
            "object": self._object(stream=False),
            "choices": [self._choice(choice) for choice in choices],
            "usage": counts,
        }
        if self._request.return_token_ids:
            body["prompt_token_ids"] = [token_id(token) for token in self._request.prompt]
        return body

    def _object(self, *, stream: bool) -> str:
        if not self._chat:
            return "text_completion"
        return "chat.completion.chunk" if stream else "chat.completion"

    def _emission_chunk(self, emission: Emission, plan: SequencePlan, finish: str | None) -> Json:
        delta = self._delta(emission, plan) if self._chat else shown_text(emission.tokens, "content") or ""
        chunk = self._chunk(emission.index, delta, finish, emission.stop_reason)
        if self._request.return_token_ids:
            chunk["choices"][0]["token_ids"] = _token_ids(emission.tokens)
        return chunk

    def _delta(self, emission: Emission, plan: SequencePlan) -> Json:
        tokens = emission.tokens
        delta: Json = {}
        if (reasoning := shown_text(tokens, "reasoning")) is not None:
            delta[self._profile.reasoning_field] = reasoning
        if (content := shown_text(tokens, "content")) is not None:
            delta["content"] = content
        if fragments := shown_calls(tokens):
            delta["tool_calls"] = [
                self._call(emission.index, plan, index, part) for index, part in fragments.items()
            ]
        return delta or {"content": ""}

    def _call(self, choice: int, plan: SequencePlan, index: int, part: Mapping[str, Any]) -> Json:
        """One call, or the fragment of one: only the first fragment has an id and a name."""
        if part["name"] is None:
            return {"index": index, "function": {"arguments": part["arguments"]}}
        call_id = self._call_id(plan, choice, index)
        return {"index": index, "id": call_id, "type": "function", "function": dict(part)}

    def _chunk(self, index: int, delta: Json | str, finish: str | None, stop_reason: str | None) -> Json:
        choice: Json = {"index": index, ("delta" if self._chat else "text"): delta, "finish_reason": finish}
        if self._profile.null_fields:
            choice |= {"logprobs": None, "token_ids": None}
            if finish is not None:
                choice["stop_reason"] = stop_reason
        return {**self._base, "object": self._object(stream=True), "choices": [choice]}

    def _choice(self, choice: Choice) -> Json:
        shown: Json = {"index": choice.index, "finish_reason": choice.finish_reason}
        if self._chat:
            shown["message"] = self._message(choice)
        else:
            shown["text"] = shown_text(choice.tokens, "content") or ""
        if self._profile.null_fields:
            stopped = choice.finish_reason == "stop"
            shown |= {"logprobs": None, "token_ids": None}
            shown["stop_reason"] = choice.plan.stop_reason if stopped else None
        if self._request.return_token_ids:
            shown["token_ids"] = _token_ids(choice.tokens)
        return shown

    def _message(self, choice: Choice) -> Json:
        ids = [self._call_id(choice.plan, choice.index, index) for index in range(len(choice.plan.calls))]
        message = shown_message(choice.tokens, ids, self._profile.reasoning_field)
        if not self._profile.null_fields:
            return message
        nulls = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        return {**nulls, "tool_calls": [], **message}

    def _call_id(self, plan: SequencePlan, choice: int, index: int) -> str:
        digest = hashlib.sha256(f"{self._base['id']}/{choice}/{index}".encode()).hexdigest()
        return plan.calls[index].id or f"chatcmpl-tool-{digest[:24]}"


def _token_ids(tokens: Sequence[Token]) -> list[int]:
    return [token_id(EOS if token.kind == "eos" else token.text) for token in tokens]
