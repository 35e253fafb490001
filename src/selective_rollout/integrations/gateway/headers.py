"""Which headers travel on. What belongs to one connection, or to the gateway itself, does not."""

from __future__ import annotations

from typing import Final

from selective_rollout.integrations.gateway.address import PREFIX, RawHeaders

Headers = list[tuple[bytes, bytes]]

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
_MADE_HERE: Final = frozenset({b"host", b"content-length", b"expect"})
_CREDENTIALS: Final = frozenset(
    {b"authorization", b"api-key", b"x-api-key", b"cookie", b"openai-organization", b"openai-project"}
)


def first(headers: RawHeaders, name: bytes) -> bytes | None:
    """The first value of a header, named in lower case."""
    return next((value for key, value in headers if key == name), None)


def upward(
    headers: RawHeaders,
    *,
    host: bytes,
    length: int | None,
    credentials: Headers | None,
    readable: bool,
) -> Headers:
    """Headers for the upstream server, in the client's order.

    Args:
        headers: the client's, names in lower case.
        host: the server's own name.
        length: bytes of the body, None if there is none.
        credentials: what the server is shown instead of the client's own credentials; None: those.
        readable: ask for an answer that is not compressed.
    """
    dropped = _HOP_BY_HOP | _MADE_HERE | _named_by_connection(headers)
    if credentials is not None:
        dropped |= _CREDENTIALS
    if readable:
        dropped |= {b"accept-encoding"}
    sent = [(b"host", host)]
    sent += [pair for pair in headers if pair[0] not in dropped and not pair[0].startswith(PREFIX)]
    sent += credentials or []
    if readable:
        sent.append((b"accept-encoding", b"identity"))
    if length is not None:
        sent.append((b"content-length", str(length).encode()))
    return sent


def downward(headers: RawHeaders) -> Headers:
    """Headers for the client, in the server's order; a server may not open the gateway to web pages."""
    lowered = [(name.lower(), value) for name, value in headers]
    dropped = _HOP_BY_HOP | _named_by_connection(lowered)
    return [pair for pair in lowered if pair[0] not in dropped and not pair[0].startswith(b"access-control-")]


def _named_by_connection(headers: RawHeaders) -> frozenset[bytes]:
    values = [value for name, value in headers if name == b"connection"]
    return frozenset(word.strip().lower() for value in values for word in value.split(b","))
