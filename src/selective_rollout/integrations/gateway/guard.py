"""Who is let in at all: attacks through a browser on this machine stop here.

A page on the web can make a browser send requests to a loopback port. It cannot forge the `Host` it reached
the gateway by, keep the browser from adding `Origin`, or send JSON without being asked for permission first,
which is never given.
"""

from __future__ import annotations

from typing import Final

from selective_rollout.integrations.gateway.address import RawHeaders, is_plain
from selective_rollout.integrations.gateway.config import GatewayConfig
from selective_rollout.integrations.gateway.headers import first
from selective_rollout.integrations.gateway.keys import ClientKeys
from selective_rollout.integrations.gateway.refusal import Refusal, Refused

_READS: Final = ("GET", "HEAD")
_METHODS: Final = (*_READS, "POST", "PUT", "PATCH", "DELETE")
_OPEN_PATHS: Final = frozenset({b"/", b"/health", b"/metrics"})
_ONCE: Final = (
    b"host",
    b"content-type",
    b"content-length",
    b"origin",
    b"authorization",
    b"transfer-encoding",
)


def check_request(config: GatewayConfig, method: str, path: bytes, headers: RawHeaders) -> None:
    """Let a request pass, or refuse it.

    Raises:
        Refused: with the reason.
    """
    _check_shape(headers)
    _check_host(config, first(headers, b"host"))
    _check_page(config, headers)
    if method not in _METHODS:
        raise Refused(Refusal(405, "method_not_allowed", f"{method} is not served here"))
    if not is_plain(path):
        raise Refused(Refusal(400, "bad_path", "the path holds dot segments or backslashes"))
    if method not in _READS and not _is_json(first(headers, b"content-type")):
        raise Refused(
            Refusal(415, "json_only", "send application/json: other content types are not served here")
        )
    if sum(len(name) + len(value) for name, value in headers) > config.limits.header_bytes:
        raise Refused(Refusal(431, "headers_too_large", "the headers are too large"))


def scope_of(clients: ClientKeys, path: bytes, headers: RawHeaders) -> str:
    """The scope of the client's groups.

    Raises:
        Refused: the client's key is missing or wrong.
    """
    scope = clients.scope_of(first(headers, b"authorization"))
    if scope is None and path in _OPEN_PATHS:
        return ""
    if scope is None:
        raise Refused(
            Refusal(401, "invalid_api_key", "this gateway needs one of its own client keys as the API key")
        )
    return scope


def _check_shape(headers: RawHeaders) -> None:
    """Refuse what two servers may read in two ways."""
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in seen and name in _ONCE:
            raise Refused(
                Refusal(400, "ambiguous_headers", f"header {name.decode('latin-1')} is given twice")
            )
        seen.add(name)
    if {b"content-length", b"transfer-encoding"} <= seen:
        raise Refused(
            Refusal(400, "ambiguous_headers", "content-length and transfer-encoding exclude each other")
        )


def _check_host(config: GatewayConfig, host: bytes | None) -> None:
    if host is None or host_name(host) not in config.hosts:
        raise Refused(
            Refusal(421, "unknown_host", "this gateway is not served under that name; see --allow-host")
        )


def host_name(host: bytes) -> str:
    """The name in a Host header, without the port."""
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def _check_page(config: GatewayConfig, headers: RawHeaders) -> None:
    origin = first(headers, b"origin")
    if origin is not None:
        if origin.decode("latin-1") not in config.origins:
            raise Refused(
                Refusal(403, "origin_refused", "web pages may not use this gateway; see --allow-origin")
            )
    elif first(headers, b"sec-fetch-site") in (b"cross-site", b"same-site"):
        raise Refused(Refusal(403, "origin_refused", "other web pages may not use this gateway"))


def _is_json(content_type: bytes | None) -> bool:
    return content_type is not None and content_type.partition(b";")[0].strip().lower() == b"application/json"
