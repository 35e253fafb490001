"""The live page: one document that holds no data, and asks the gateway for pictures of the groups.

Its content policy names its script and its style by their hashes, lets it fetch from the gateway only, and
forbids it to turn text into markup, so what models wrote stays text.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final

_SCRIPTS: Final = ("words.js", "feed.js", "overview.js", "list.js", "detail.js", "main.js")
_REPORT: Final = "selective_rollout.analysis.report"
_SHARED: Final = ("elements.js", "group_list.js")
"""Scripts of the report's page; its `base.css` is shared, too."""
SHUT: Final[Mapping[str, str]] = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""Headers that keep an answer of the gateway's own to its own page."""


@cache
def live_page(*, needs_key: bool) -> bytes:
    """The document.

    Args:
        needs_key: it asks for a client key before it asks the gateway for anything.
    """
    style, script = _parts()
    text = _read("live.html").replace('data-key=""', f'data-key="{"required" if needs_key else "optional"}"')
    return text.replace("/*style*/", style).replace("/*script*/", script).encode()


@cache
def page_headers() -> Mapping[str, str]:
    """Its headers."""
    style, script = map(_hash, _parts())
    policy = (
        "default-src 'none'",
        f"script-src {script}",
        f"style-src {style}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
    return {**SHUT, "content-security-policy": "; ".join(policy), "x-frame-options": "DENY"}


@cache
def _parts() -> tuple[str, str]:
    scripts = [*map(_read, _SCRIPTS), *(_read(name, _REPORT) for name in _SHARED)]
    return "\n".join([_read("base.css", _REPORT), _read("live.css")]), "\n".join(scripts)


def _read(name: str, package: str = __package__) -> str:
    return resources.files(package).joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
