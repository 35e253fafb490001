"""How calls of a coordinator are written: a POST to the method's name, with its arguments as a JSON array."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from selective_rollout.engine.training.group import Facts
from selective_rollout.types import SamplingInfo

HOST: Final = "127.0.0.1"

ARGUMENTS: Final[dict[str, Any]] = {
    "join": tuple[str, int, int, str | None, list[SamplingInfo] | None],
    "step": tuple[str, int, str, Facts],
    "finish": tuple[str, int, Any, str | None, bool, str | None, Facts],
    "score": tuple[str, int, Any],
    "fail": tuple[str, int, str, str],
    "leave": tuple[str, int],
    "watch": tuple[str, int, float],
}
"""Types of the arguments of each method that may be called."""


class Refusal(msgspec.Struct):
    """Why a call was not answered."""

    error: str
    """Name of the exception."""
    message: str


def encode(value: object) -> bytes:
    """Write arguments or an answer; what is not a number is null."""
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: object) -> object:
    """Numbers of numpy and torch, which rewards often are."""
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"a {type(value).__name__} cannot be sent to the coordinator")
    return item()
