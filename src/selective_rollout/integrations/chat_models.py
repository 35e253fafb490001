"""Following the chat models of a rollout, for the integrations that build on LangChain's core.

LangChain tells callbacks of every request of a chat model, wherever in a graph it happens, and of the
settings that it was sent with. Models called in another way say nothing, and then nothing is known.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.globals import get_llm_cache
from langchain_core.tracers.context import register_configure_hook

from selective_rollout.engine.sampling import SamplingWatch


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


def has_cache() -> bool:
    """Whether `set_llm_cache` has a cache answer for the models of this process."""
    return get_llm_cache() is not None


FOLLOWING: Final[ContextVar[ModelWatch | None]] = ContextVar("selective_rollout_following", default=None)
"""Follows every chat model that is asked in this context, without anybody passing it on as a callback."""

register_configure_hook(FOLLOWING, inheritable=True)
