"""As much of vLLM as OpenRLHF's engine actor calls: an engine that answers by a rule, and counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from worlds import LAST_TURN, Bytes, answer, delay

__version__ = "0.29.0"


@dataclass
class SamplingParams:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int | None = None
    min_tokens: int = 1
    skip_special_tokens: bool = False
    logprobs: int | None = None
    seed: int | None = None


class AsyncEngineArgs:
    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments


class AsyncLLMEngine:
    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.aborted: Counter[str] = Counter()
        self.running = 0
        self.output_processor = SimpleNamespace(get_num_unfinished_requests=lambda: self.running)

    @classmethod
    def from_engine_args(cls, args: AsyncEngineArgs) -> AsyncLLMEngine:
        return cls()

    async def is_sleeping(self) -> bool:
        return False

    async def generate(self, prompt: Any, params: SamplingParams, *, request_id: str) -> AsyncIterator[Any]:
        heard = Bytes().decode(prompt["prompt_token_ids"])
        task = heard.split(":")[0]
        self.asked[task] += 1
        self.running += 1
        try:
            await asyncio.sleep(delay(heard))
        except asyncio.CancelledError:
            self.aborted[task] += 1
            raise
        finally:
            self.running -= 1
        ids = [*answer(heard).encode(), LAST_TURN]
        logprobs = [{token: SimpleNamespace(logprob=-0.5)} for token in ids] if params.logprobs else None
        yield SimpleNamespace(
            outputs=[
                SimpleNamespace(
                    token_ids=ids, text=Bytes().decode(ids), finish_reason="stop", logprobs=logprobs
                )
            ]
        )
