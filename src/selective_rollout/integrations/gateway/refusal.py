"""What a client is told when a request is not passed on: the error shape that OpenAI clients understand."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from selective_rollout.integrations.gateway.headers import Headers

_JSON: Final = (b"content-type", b"application/json")
# The official SDKs retry 408, 409, 429 and 5xx unless the server says otherwise.
_NO_RETRY: Final = (b"x-should-retry", b"false")


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer of the gateway's own."""

    status: int
    code: str
    message: str
    extra: dict[str, Any] = field(default_factory=dict)
    retry: bool = False

    @property
    def error(self) -> dict[str, Any]:
        """The `error` object."""
        return {
            "message": self.message,
            "type": "selective_rollout",
            "param": None,
            "code": self.code,
            **self.extra,
        }

    @property
    def body(self) -> bytes:
        """The whole answer."""
        return json.dumps({"error": self.error}).encode()

    @property
    def headers(self) -> Headers:
        """Its headers."""
        made = [_JSON, (b"content-length", str(len(self.body)).encode())]
        return made if self.retry else [*made, _NO_RETRY]

    def events(self, *, responses: bool) -> bytes:
        """The same in a stream that has begun.

        Args:
            responses: the stream is one of the Responses API, whose events are named.
        """
        if responses:
            event = {"type": "error", "code": self.code, "message": self.message, "param": None}
            return b"event: error\ndata: " + json.dumps({**event, "error": self.error}).encode() + b"\n\n"
        return b"data: " + self.body + b"\n\ndata: [DONE]\n\n"


class Refused(Exception):
    """Carries a refusal up to where it is sent."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def cut_as_drop(group: str, step: int | None) -> Refusal:
    """The end of a rollout whose group was dropped."""
    return Refusal(
        410,
        "group_cut",
        f"selective-rollout stopped group {group!r} at step {step}: its rollouts have converged, so it is "
        "left out. End this rollout; it needs no reward.",
        {"group": group, "cut_at": step},
    )


def cut_as_survivor(group: str, step: int | None, survivor: int | None, answer: str | None) -> Refusal:
    """The end of a rollout whose group was answered by another one."""
    return Refusal(
        410,
        "group_answered",
        f"selective-rollout stopped this rollout: rollout {survivor} of group {group!r} answers for all. "
        "End this rollout; it needs no reward.",
        {"group": group, "cut_at": step, "survivor": survivor, "answer": answer},
    )


def unreachable(why: str) -> Refusal:
    """The upstream server did not answer."""
    return Refusal(502, "upstream_unreachable", f"the model server did not answer: {why}", retry=True)


def shutting_down() -> Refusal:
    """The gateway takes no more requests."""
    return Refusal(503, "shutting_down", "the gateway is shutting down; try again soon", retry=True)
