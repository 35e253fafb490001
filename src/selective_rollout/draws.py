"""Draws that depend on ids only, so that they are the same in every process, order and rerun.

Audits, survivors, splits and skips are all drawn here: never from a shared random stream, whose state would
depend on which group happened to come first.
"""

from __future__ import annotations

import hashlib


def stable_fraction(*parts: object) -> float:
    """A number in [0, 1), uniform over ids, that depends on the text of the parts alone."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:7], "big") / 2**56


def stable_order(size: int, *parts: object) -> list[int]:
    """The numbers 0 to size - 1 in an order that depends on the text of the parts alone."""
    return sorted(range(size), key=lambda i: stable_fraction(*parts, i))


def sampling_seed(seed: int, group_id: str, rollout: int) -> int:
    """The sampling seed of one rollout: a group's own base, plus the rollout's index.

    Groups of one prompt must not repeat each other, so the base depends on the group id. Within a group the
    seeds count up, as servers do themselves for the choices of one request.
    """
    return int(stable_fraction("sampling", seed, group_id) * 2**31) + rollout


def is_audited(seed: int, group_id: str, rate: float) -> bool:
    """Whether a group's would-be cut runs on, to be checked."""
    return stable_fraction("audit", seed, group_id) < rate


def survivor_order(group_id: str, size: int) -> list[int]:
    """All rollouts in the order in which they are asked to survive; the first one also leads a held group."""
    return stable_order(size, "survivor", group_id)
