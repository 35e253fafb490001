"""Where the model lives and which key it may see.

Every value is resolved here, once, and passed to the client explicitly. A key only travels to the server that
it was set for: an OpenAI key never reaches somebody's own server because both happened to be in the
environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from selective_rollout.errors import ConfigError, PrerequisiteError

DEFAULT_BASE_URL: Final = "https://api.openai.com/v1"
NO_KEY: Final = "EMPTY"
"""Sent where no key is known; servers without a key accept anything."""

_OWN, _VLLM, _OPENAI = "SELECTIVE_ROLLOUT_", "VLLM_", "OPENAI_"
_ORGANIZATION: Final = {_OWN: "SELECTIVE_ROLLOUT_ORGANIZATION", _OPENAI: "OPENAI_ORG_ID"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One OpenAI-compatible server, with the model to ask for.

    Raises:
        ConfigError: the address or the key cannot be used as given. No message shows a key.
    """

    base_url: str
    """Address up to and including /v1."""
    api_key: str = field(default=NO_KEY, repr=False)
    model: str | None = None
    organization: str | None = None
    base_url_from: str = "base_url"
    """Where the address came from, for error messages."""
    api_key_from: str = "api_key"

    def __post_init__(self) -> None:
        _require_url(self.base_url, self.base_url_from)
        _require_header_text(self.api_key, self.api_key_from)
        if self.organization is not None:
            _require_header_text(self.organization, "organization")

    @classmethod
    def resolve(
        cls,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str | None = None,
        organization: str | None = None,
        env: Mapping[str, str] = os.environ,
    ) -> Endpoint:
        """Complete what was given from the environment.

        Order: argument, then SELECTIVE_ROLLOUT_*, VLLM_*, OPENAI_* (each with BASE_URL, API_KEY and MODEL).
        VLLM_API_KEY belongs to the server of VLLM_BASE_URL, OPENAI_API_KEY to the one of OPENAI_BASE_URL or
        to api.openai.com; SELECTIVE_ROLLOUT_API_KEY belongs to SELECTIVE_ROLLOUT_BASE_URL, or to any server
        where that is not set. Where no key applies, "EMPTY" is sent.

        Raises:
            PrerequisiteError: no address, or no key for api.openai.com; the message says what to set.
            ConfigError: a value cannot be used as given.
        """
        settings = {name: value.strip() for name, value in env.items() if value.strip()}
        url, url_from = _find_base_url(base_url, settings)
        families = _families_of(url, settings)
        key, key_from = _first(api_key, "api_key", [f"{f}API_KEY" for f in families], settings)
        if key is None and _origin(url) == _origin(DEFAULT_BASE_URL):
            raise PrerequisiteError(f"no API key for {url}: set OPENAI_API_KEY or pass an API key")
        organizations = [_ORGANIZATION[f] for f in families if f in _ORGANIZATION]
        return cls(
            base_url=url,
            api_key=key or NO_KEY,
            model=_first(model, "model", [f"{f}MODEL" for f in families], settings)[0],
            organization=_first(organization, "organization", organizations, settings)[0],
            base_url_from=url_from,
            api_key_from=key_from or "no setting, EMPTY was sent",
        )

    @property
    def root_url(self) -> str:
        """The address without its /v1: health, metrics and aborts live beside the API."""
        return self.base_url.rstrip("/").removesuffix("/v1")

    def redact(self, text: str) -> str:
        """Remove the key from a text, such as a server's error message that repeats it."""
        return text if self.api_key == NO_KEY else text.replace(self.api_key, "***")


def _find_base_url(given: str | None, settings: Mapping[str, str]) -> tuple[str, str]:
    names = [f"{family}BASE_URL" for family in (_OWN, _VLLM, _OPENAI)]
    url, source = _first(given, "base_url", names, settings)
    if url is not None:
        _require_url(url, source)
        return url.rstrip("/"), source
    if "OPENAI_API_KEY" in settings:
        return DEFAULT_BASE_URL, "OPENAI_API_KEY"
    raise PrerequisiteError(
        "no model endpoint: set SELECTIVE_ROLLOUT_BASE_URL (such as http://127.0.0.1:8000/v1), VLLM_BASE_URL "
        "or OPENAI_BASE_URL, or pass a base URL; OPENAI_API_KEY alone means api.openai.com"
    )


def _families_of(url: str, settings: Mapping[str, str]) -> list[str]:
    """Groups of variables that may be used with this server, in order of precedence."""
    home = {family: settings.get(f"{family}BASE_URL") for family in (_OWN, _VLLM, _OPENAI)}
    matches = {family: base is not None and _origin(base) == _origin(url) for family, base in home.items()}
    matches[_OWN] |= home[_OWN] is None
    matches[_OPENAI] |= _origin(url) == _origin(DEFAULT_BASE_URL)
    return [family for family, match in matches.items() if match]


def _first(
    given: str | None, given_name: str, names: Sequence[str], settings: Mapping[str, str]
) -> tuple[str | None, str]:
    """The first value that is set, and the name that it was set under."""
    if given is not None and given.strip():
        return given.strip(), given_name
    return next(((settings[name], name) for name in names if name in settings), (None, ""))


def _origin(url: str) -> tuple[str, str, int | None] | None:
    """Scheme, host and port, which make two addresses one server; None if there is no host."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.hostname is None:
        return None
    return parts.scheme, parts.hostname, port or {"http": 80, "https": 443}.get(parts.scheme)


def _require_url(url: str, source: str) -> None:
    origin = _origin(url)
    parts = urlsplit(url) if origin else None
    if parts is not None and parts.username is not None:
        raise ConfigError(f"{source}: write the key into the API key setting, not into the address")
    plain = url.isascii() and url.isprintable() and " " not in url
    if origin is None or parts is None or origin[0] not in ("http", "https") or not plain:
        raise ConfigError(f"{source}: expected an address such as http://host:8000/v1, got {url!r}")
    if parts.query or parts.fragment or parts.path.rstrip("/").endswith("/chat/completions"):
        raise ConfigError(f"{source}: {url!r} should end in /v1, without query or /chat/completions")


def _require_header_text(value: str, source: str) -> None:
    if not value or not value.isascii() or not value.isprintable() or " " in value:
        raise ConfigError(f"{source}: must be printable ASCII without spaces (the value is not shown)")
