"""What tokens cost, where the user says so. No price is ever guessed."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final

from selective_rollout.errors import ConfigError

PER: Final = 1_000_000
"""Prices are those of this many tokens."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a million tokens, all in one currency.

    Raises:
        ConfigError: a price is negative or no finite number.
    """

    prompt: float
    completion: float
    cached: float | None = None
    """Of prompt tokens that the server had in its cache; None: they cost as much as any other."""

    def __post_init__(self) -> None:
        for field in fields(self):
            price = getattr(self, field.name)
            if price is not None and not (math.isfinite(price) and price >= 0):
                raise ConfigError(f"price of {field.name} tokens must be a number from 0 up, not {price}")

    def of(self, *, prompt: int | None, cached: int | None, completion: int | None) -> float | None:
        """What tokens cost.

        Args:
            prompt: prompt tokens, cached ones included; None: unknown.
            cached: how many of them were cached; it counts only where they have a price of their own.
            completion: generated tokens.

        Returns:
            The cost, None if a count is unknown that has a price. What is free needs no count.
        """
        own = self.cached if self.cached is not None else self.prompt
        parts = [(prompt, self.prompt), (completion, self.completion)]
        if own != self.prompt:
            parts.append((cached, own - self.prompt))
        cost = 0.0
        for count, price in parts:
            if price and count is None:
                return None
            cost += (count or 0) * price / PER
        return cost


def money_text(cost: float | None) -> str:
    """An amount of money for people, in the currency of the prices."""
    if cost is None:
        return "unknown"
    return f"{cost:,.2f}" if cost >= 1 or not cost else f"{cost:.3g}"
