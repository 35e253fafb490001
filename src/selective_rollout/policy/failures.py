"""What went wrong with one request, in one line and one word, without the key.

A failure is a value: it keeps no reference to the client's exception, which carries the request and with it
the key.
"""

from __future__ import annotations

import email.utils
import math
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from selective_rollout.errors import PolicyError
from selective_rollout.policy.endpoint import Endpoint

MAX_RETRY_AFTER_S: Final = 120.0
"""Longest wait asked for by a server that is honoured; a longer one ends the request."""

_CONTEXT_CODES: Final = ("context_length_exceeded", "exceed_context_size_error")
_CONTEXT_WORDS: Final = (
    "context length",
    "context size",
    "context window",
    "max_model_len",
    "maximum model length",
)
_KINDS: Final = {
    401: "auth",
    403: "auth",
    408: "timeout",
    429: "rate_limit",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
_MAX_TEXT: Final = 300
_TAG: Final = re.compile(r"<[^<>]*>")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one attempt failed."""

    kind: str
    """As in `PolicyError.kind`."""
    message: str
    status: int | None = None
    retry_after_s: float | None = None
    """Wait that the server asked for."""
    final: bool = False
    """True if waiting cannot help, whatever the kind."""
    unanswered: bool = False
    """The server closed the connection without a byte, as happens to a reused one that it had given up."""

    def error(self, attempts: int) -> PolicyError:
        """The failure as an exception, after the given number of attempts."""
        tries = f" ({attempts} attempts)" if attempts > 1 else ""
        return PolicyError(self.message + tries, self.kind, self.status)


def from_policy_error(error: PolicyError, endpoint: Endpoint) -> Failure:
    """Failure of an answer that could not be assembled."""
    return Failure(error.kind, endpoint.redact(f"{endpoint.base_url}: {error.message}"), error.status)


def from_status(status: int, body: object, headers: Mapping[str, str], endpoint: Endpoint) -> Failure:
    """Failure of a request that was answered with an error.

    Args:
        status: HTTP status, or the code inside an error event of a stream.
        body: decoded JSON, or text. `error` may be an object or a string, or there is only a `detail`.
        headers: response headers; empty for an error event.
        endpoint: the server that was asked.
    """
    said = endpoint.redact(error_text(body))
    kind = _kind(status, body, said)
    retry_after = retry_after_s(headers)
    too_long = retry_after is not None and retry_after > MAX_RETRY_AFTER_S
    wait = f"; it asks to wait {retry_after:.0f} s" if too_long else ""
    text = f"{endpoint.base_url} answered {status}: {said}{wait}{_hint(kind, status, endpoint)}"
    no_quota = "insufficient_quota" in _codes(body)
    return Failure(kind, text, status, retry_after, final=too_long or no_quota)


def from_transport(error: BaseException, endpoint: Endpoint) -> Failure:
    """Failure of a request that got no answer, or whose answer broke off."""
    url = endpoint.base_url
    chain = list(_chain(error))
    names = {type(link).__name__ for link in chain}
    if any(isinstance(link, socket.gaierror) for link in chain):
        text = f"{url}: the host name is unknown; check the address (from {endpoint.base_url_from})"
    elif any(isinstance(link, ConnectionRefusedError) for link in chain):
        text = (
            f"{url}: connection refused; is the server running there? (address from {endpoint.base_url_from})"
        )
    elif any(isinstance(link, ssl.SSLError) for link in chain):
        text = f"{url}: TLS failed; does the server speak https? {endpoint.redact(one_line(str(chain[-1])))}"
    elif "ConnectTimeout" in names:
        return Failure("connection", f"{url}: no connection in time; check the address and the network")
    elif any("Timeout" in name for name in names):
        return Failure("timeout", f"{url}: no answer in time")
    else:
        said = next((str(link) for link in reversed(chain) if str(link)), type(error).__name__)
        text = f"{url}: the connection broke: {endpoint.redact(one_line(said))}"
    unanswered = any("without sending a response" in str(link) for link in chain)
    return Failure("connection", text, unanswered=unanswered)


def error_text(body: object) -> str:
    """The server's own words, in one line."""
    if isinstance(body, Mapping):
        error = body.get("error") or body.get("detail") or body.get("message") or body.get("msg")
        return error_text(error) if error else one_line(str(dict(body)))
    if isinstance(body, list):
        return one_line("; ".join(error_text(item) for item in body))
    return one_line(_TAG.sub(" ", str(body))) if body else "no explanation"


def one_line(text: str) -> str:
    """Fold white space and cut what is too long for a message."""
    folded = " ".join(text.split())
    return folded if len(folded) <= _MAX_TEXT else folded[: _MAX_TEXT - 3] + "..."


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that a Retry-After header asks to wait; None if there is none that can be read."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    parsed = email.utils.parsedate_tz(headers.get("retry-after", ""))
    return None if parsed is None else max(0.0, email.utils.mktime_tz(parsed) - time.time())


def _kind(status: int, body: object, said: str) -> str:
    if status in _KINDS:
        return _KINDS[status]
    if status >= 500:
        return "server"
    codes, lowered = _codes(body), said.lower()
    if codes & set(_CONTEXT_CODES) or any(words in lowered for words in _CONTEXT_WORDS):
        return "context_length"
    if status == 404 and ("model_not_found" in codes or "model" in lowered):
        return "model_not_found"
    return "bad_request"


def _hint(kind: str, status: int, endpoint: Endpoint) -> str:
    if kind == "auth":
        return f"; check the API key (from {endpoint.api_key_from})"
    if kind == "bad_request" and status in (404, 405) and not endpoint.base_url.rstrip("/").endswith("/v1"):
        return f"; the address (from {endpoint.base_url_from}) usually ends in /v1"
    if kind == "context_length":
        return "; shorten the conversation or lower max_tokens"
    return ""


def _codes(body: object) -> set[str]:
    error = body.get("error", body) if isinstance(body, Mapping) else None
    fields: Mapping[str, Any] = error if isinstance(error, Mapping) else {}
    return {value for value in (fields.get("code"), fields.get("type")) if isinstance(value, str)}


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and what caused it, innermost last; of a group, its first member."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        group = link.exceptions if isinstance(link, BaseExceptionGroup) else ()
        link = group[0] if group else link.__cause__ or link.__context__
