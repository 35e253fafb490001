"""What the model calls of a group reveal about its samples: that they are copies, and tokens nobody counted.

LangChain tells callbacks of every request of a chat model, wherever in a graph it happens, and of the
settings that it was sent with. Models called in another way say nothing, and then nothing is known.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any, Final
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.globals import get_llm_cache

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


class ModelWatch(BaseCallbackHandler):
    """Follows the model requests of one rollout.

    Args:
        rollout: its index.
        samples: takes what the requests say about sampling.
    """

    run_inline = True

    def __init__(self, rollout: int, samples: SamplingWatch) -> None:
        self.requests: set[UUID] = set()
        """Requests in flight."""
        self._rollout = rollout
        self._samples = samples

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[Any]], *, run_id: UUID, **told: Any
    ) -> None:
        """A request begins."""
        self.requests.add(run_id)
        self._samples.asked(self._rollout, told.get("invocation_params") or {})

    def on_llm_start(
        self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, **told: Any
    ) -> None:
        """A request of a model that is no chat model begins."""
        self.requests.add(run_id)
        self._samples.asked(self._rollout, told.get("invocation_params") or {})

    def on_llm_end(self, response: Any, *, run_id: UUID, **told: Any) -> None:
        """It was answered."""
        self.requests.discard(run_id)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **told: Any) -> None:
        """It broke; one that was cancelled stays in flight, since its tokens were spent unseen."""
        if isinstance(error, Exception):
            self.requests.discard(run_id)


class SamplingWatch:
    """Collects how the rollouts of one group are sampled.

    Args:
        group_id: named in warnings.
        temperature: as declared; None if nothing is.
    """

    def __init__(self, group_id: str, temperature: float | None) -> None:
        self.declared = SamplingInfo(temperature=temperature, cached=True if _has_cache() else None)
        """What is known of every rollout before it begins."""
        self._group_id = group_id
        self._asked: dict[int, SamplingInfo] = {}
        self._owners: dict[str, int] = {}
        self._is_shared = False
        self._ids_repeat = False
        self._has_warned: set[str] = set()
        if identical_sampling([self.declared, self.declared]) is not None:
            self._warn(identical_sampling([self.declared, self.declared]) or "")

    def asked(self, rollout: int, settings: Mapping[str, Any]) -> None:
        """A rollout's model was asked with these settings; the first request speaks for the rollout."""
        if (settings.get("n") or 1) > 1 and "n" not in self._has_warned:
            self._has_warned.add("n")
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
        """Why the rollouts are copies of one sample, or None; warns if they are.

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
        if reason in self._has_warned:
            return
        self._has_warned.add(reason)
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


def _has_cache() -> bool:
    return get_llm_cache() is not None
