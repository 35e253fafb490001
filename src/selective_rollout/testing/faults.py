"""What can go wrong at an endpoint, chosen per request by a seeded plan or by a function."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from selective_rollout.errors import ConfigError

FaultKind: TypeAlias = Literal[
    "rate_limit",
    "server_error",
    "overloaded",
    "reset_before_response",
    "reset_mid_response",
    "stall",
    "error_event",
    "malformed_chunk",
    "empty_choices",
    "fewer_choices",
    "truncated_utf8",
    "slow_first_token",
]

FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong with one request.

    Before any generation, `rate_limit` answers 429 with Retry-After, `server_error` 500, `overloaded` 503,
    and `reset_before_response` resets the connection. In the middle, and at the latest with the last token,
    `reset_mid_response` resets it, `stall` generates nothing more until the client leaves or aborts,
    `error_event` fails (an error event and [DONE] on a stream, 500 otherwise), and `malformed_chunk` sends
    broken JSON. `empty_choices` answers without a choice, `fewer_choices` with one less than asked, never
    below one. `truncated_utf8` cuts every choice by length inside a character. `slow_first_token` waits
    `delay_s` longer for the first token.
    """

    kind: FaultKind
    after_steps: int = 3
    """Engine steps before a fault in the middle strikes; `truncated_utf8` cuts after this many tokens."""
    delay_s: float = 0.2
    """Added seconds of `slow_first_token`."""
    retry_after_s: float = 0.0
    """Value of the Retry-After header of `rate_limit`."""

    def __post_init__(self) -> None:
        if self.kind not in FAULT_KINDS:
            raise ConfigError(f"unknown fault {self.kind!r}: choose one of {', '.join(FAULT_KINDS)}")


@dataclass(frozen=True, slots=True)
class FaultContext:
    """What a fault plan may look at."""

    ordinal: int
    """0-based number of the generation request, in order of arrival."""
    attempt: int
    """How many requests with this very body came before; a client's retry has 1."""
    body: Mapping[str, Any]


FaultSource: TypeAlias = Callable[[FaultContext], Fault | FaultKind | None]
"""Chooses the fault of a request; None lets it through."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Faults with a given rate, the same ones on every run.

    Args:
        rate: share of requests that go wrong.
        kinds: faults to draw from, with equal weight.
        seed: another seed draws other requests.
        by: "ordinal" draws by order of arrival; "request" by body and attempt, which concurrency cannot
            reorder.
    """

    rate: float
    kinds: Sequence[Fault | FaultKind]
    seed: int = 0
    by: Literal["ordinal", "request"] = "ordinal"

    def __post_init__(self) -> None:
        if not 0.0 <= self.rate <= 1.0:
            raise ConfigError(f"rate must lie in [0, 1], got {self.rate}")
        if not self.kinds:
            raise ConfigError("kinds is empty: name at least one fault")
        for kind in self.kinds:
            as_fault(kind)

    def __call__(self, context: FaultContext) -> Fault | None:
        """Return the fault of one request."""
        key = str(context.ordinal) if self.by == "ordinal" else f"{body_key(context.body)}/{context.attempt}"
        draw = random.Random(f"{self.seed}/{key}")
        return as_fault(draw.choice(self.kinds)) if draw.random() < self.rate else None


def as_fault(fault: Fault | FaultKind | None) -> Fault | None:
    """Accept a bare kind where a fault is meant."""
    return Fault(fault) if isinstance(fault, str) else fault


def body_key(body: Mapping[str, Any]) -> str:
    """Digest of a request body, independent of the order of its keys."""
    text = json.dumps(body, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
