"""What the model requests of a group reveal about its samples: that they are copies, or cannot be counted."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any, Final

from selective_rollout.engine.ledger import Ledger
from selective_rollout.gate.sampling import identical_sampling
from selective_rollout.types import SamplingInfo

_COPIES: Final = {
    "seed": "they all sample with one seed: give each rollout a seed of its own, by a factory",
    "temperature_zero": "they all sample at temperature 0: raise it",
    "cached": "a cache answers for the model: call set_llm_cache(None), and give the model cache=False",
    "response_id": "two of them were given one and the same response: switch off the cache in between",
}


class IdenticalSamplingWarning(UserWarning):
    """The rollouts of a group are copies of one sample, so their agreement says nothing."""


class UnknownUsageWarning(UserWarning):
    """Model replies came without token counts, or with those of several replies."""


class SamplingWatch:
    """Collects how the rollouts of one group are sampled.

    Args:
        group_id: named in warnings.
        temperature: as declared; None if nothing is.
        has_cache: whether something may answer in the model's place.
    """

    def __init__(self, group_id: str, temperature: float | None = None, *, has_cache: bool = False) -> None:
        self.declared = SamplingInfo(temperature=temperature, cached=True if has_cache else None)
        """What is known of every rollout before it begins."""
        self._group_id = group_id
        self._asked: dict[int, SamplingInfo] = {}
        self._owners: dict[str, int] = {}
        self._is_shared = False
        self._ids_repeat = False
        self._told_of_copies = False
        self._told_of_choices = False
        if identical_sampling([self.declared, self.declared]) is not None:
            self._warn(identical_sampling([self.declared, self.declared]) or "")

    def asked(self, rollout: int, settings: Mapping[str, Any]) -> None:
        """A rollout's model was asked with these settings; the first request speaks for the rollout."""
        if (settings.get("n") or 1) > 1 and not self._told_of_choices:
            self._told_of_choices = True
            warnings.warn(
                f"group {self._group_id!r}: the model is asked for n={settings['n']} choices, whose tokens "
                "are all counted on the one that is used; set n=1, the group is what makes the samples",
                UnknownUsageWarning,
                stacklevel=2,
            )
        seed, temperature = settings.get("seed"), settings.get("temperature")
        self._asked.setdefault(rollout, SamplingInfo(seed=seed, temperature=temperature))

    def sampled(self, rollout: int, response_id: str | None) -> None:
        """A rollout was given a response."""
        if response_id is None:
            return
        owner = self._owners.setdefault(response_id, rollout)
        self._is_shared |= owner != rollout

    def repeated(self) -> None:
        """One rollout was given the same id for two responses, so this server's ids tell nothing."""
        self._ids_repeat = True

    def copies(self, running: Collection[int]) -> str | None:
        """Why the rollouts are copies of one sample, or None; warns if they are, unless that was said before.

        Args:
            running: rollouts that are still to be heard of; as long as one of them has not asked its model
                yet, its settings are unknown.
        """
        reason = None
        if all(rollout in self._asked for rollout in running):
            reason = identical_sampling(list(self._asked.values()))
        if reason is None and self._is_shared and not self._ids_repeat:
            reason = "response_id"
        if reason is not None:
            self._warn(reason)
        return reason

    def _warn(self, reason: str) -> None:
        if self._told_of_copies:
            return
        self._told_of_copies = True
        warnings.warn(
            f"the rollouts of group {self._group_id!r} are copies, and its gate stays off: {_COPIES[reason]}",
            IdenticalSamplingWarning,
            stacklevel=3,
        )


def warn_of_unknown_usage(ledger: Ledger) -> None:
    """Say that token totals leave requests out."""
    warnings.warn(
        f"{ledger.unknown_requests} of {ledger.requests} model replies came without token counts, which are "
        "reported as unknown; a ChatOpenAI that streams from a server of your own needs stream_usage=True",
        UnknownUsageWarning,
        stacklevel=3,
    )
