"""The request of one rollout and step, and what was learnt about the server while sending requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote

from selective_rollout.policy.base import Message, RequestInfo
from selective_rollout.policy.constrain import constraint_body
from selective_rollout.policy.failures import Failure
from selective_rollout.policy.options import Constrain, SamplingParams

_MAX_HEADER: Final = 200
_MIN_DROPPED: Final = 3
_DROPPED_SHARE: Final = 0.1
"""From so many dropped connections on, and so large a share of the requests, none is reused any more."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent. Both dicts belong to this request alone and may be changed for its next attempt."""

    body: dict[str, Any]
    headers: dict[str, str]


class RequestBuilder:
    """Builds the requests of one policy.

    Args:
        model: name that the server knows it by.
        sampling: settings of every request.
        constrain: how completions are kept to the admissible actions.
        stream: ask for a stream.
        keep_alive: reuse connections.
    """

    def __init__(
        self,
        model: str,
        sampling: SamplingParams,
        *,
        constrain: Constrain | None,
        stream: bool,
        keep_alive: bool,
    ) -> None:
        self._body = {"model": model} | sampling.to_body()
        self._constrain = constrain
        self._stream = stream
        self._ask_usage = True
        self._keep_alive = keep_alive
        self._built = self._dropped = 0

    def build(self, messages: Sequence[Message], info: RequestInfo) -> Request:
        """The request that asks for the next message of a rollout."""
        self._built += 1
        body = dict(self._body, messages=[dict(message) for message in messages])
        if info.seed is not None:
            body["seed"] = info.seed
        if self._constrain is not None and info.admissible:
            body |= constraint_body(self._constrain, info.admissible)
        if self._stream:
            body["stream"] = True
            if self._ask_usage:
                body["stream_options"] = {"include_usage": True}
        headers = {"x-rollout-group": header_text(info.group_id), "x-rollout-id": str(info.rollout)}
        if not self._keep_alive:
            headers["Connection"] = "close"
        return Request(body, headers)

    def adapt(self, request: Request, failure: Failure) -> bool:
        """Learn from a failure how this server differs; True if the request should be sent again at once."""
        if failure.unanswered and "Connection" not in request.headers:
            self._dropped += 1
            frequent = self._dropped >= max(_MIN_DROPPED, _DROPPED_SHARE * self._built)
            self._keep_alive = self._keep_alive and not frequent
            request.headers["Connection"] = "close"
            return True
        refused = failure.status in (400, 422) and "stream_options" in failure.message
        if refused and "stream_options" in request.body:
            self._ask_usage = False
            del request.body["stream_options"]
            return True
        return False


def shared_request(request: Request, info: RequestInfo) -> Request:
    """The request that asks for the same step of all siblings at once.

    Servers give choice i the seed of the request plus i, so it asks with the seed of rollout 0.
    """
    body = dict(request.body, n=info.siblings)
    if info.seed is not None:
        body["seed"] = info.seed - info.rollout
    headers = {name: value for name, value in request.headers.items() if name != "x-rollout-id"}
    return Request(body, headers)


def header_text(text: str) -> str:
    """An id as a header value: percent-encoded where needed, and a long one ends in a digest instead."""
    plain = text.isascii() and text.isprintable() and text == text.strip()
    value = text if plain else quote(text, errors="replace")
    if len(value) <= _MAX_HEADER:
        return value
    return f"{value[:_MAX_HEADER]}~{sha256(value.encode()).hexdigest()[:16]}"
