"""OpenRLHF's engine actor, real but for vLLM, with a window into it."""

from __future__ import annotations

from typing import Any

import ray
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from vllm import AsyncEngineArgs, AsyncLLMEngine

_Actor = RolloutRayActor.__ray_metadata__.modified_class


@ray.remote
class EngineActor(_Actor):  # type: ignore[misc, valid-type]
    async def seen(self) -> dict[str, Any]:
        """What the engine was asked, and what the gate counted."""
        gate = getattr(self.executor, "gate", None)
        return {
            "asked": dict(self.llm.asked),
            "aborted": dict(self.llm.aborted),
            "running": self.llm.running,
            "meter": gate.meter.metrics() if gate is not None else {},
            "open": len(self.executor._calls._open) if gate is not None else 0,
            "history": gate.history.to_dict() if gate is not None and gate.history is not None else None,
        }


class LocalActor(_Actor):  # type: ignore[misc, valid-type]
    """The same code in one's own process."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        self.llm = AsyncLLMEngine.from_engine_args(AsyncEngineArgs())
        self._mm_pad_token_ids = None
