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
