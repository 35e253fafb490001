"""A scripted model that counts what it is asked, and a tokenizer of bytes; importable in other processes.

A conversation reads "task#rollout:okok". In a task with "=" in its name all rollouts act alike and earn
nothing; else each acts in its own way, and rollout 0 earns 1. At "~" the model never answers a third request,
and at "!" rollout 0 ends with its second turn and earns 1 for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any


class World:
    """The model, and what the tasks say of it."""

    size = 4
    turns = 6
    all = size * turns
    """Requests of a group that nobody stops."""
    cut = 11
    """Requests of a group that is cut at step 2: two of each rollout, and three under way by then."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.given_up: Counter[str] = Counter()
        """Requests that were cancelled."""

    async def say(self, heard: str) -> str:
        """Answer a conversation."""
        task, turn = heard.split("#")[0], heard.count("ok")
        self.asked[task] += 1
        try:
            await (asyncio.wait_for(asyncio.Future(), 60) if "~" in task and turn == 2 else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.given_up[task] += 1
            raise
        return f"go {turn}" if "=" in task else f"go {turn} {self.rollout_of(heard)}"

    @staticmethod
    def rollout_of(heard: str) -> int:
        return int(heard.split("#")[1].split(":")[0])

    def turns_of(self, task: str, rollout: int) -> int:
        return 2 if "!" in task and rollout == 0 else self.turns

    @staticmethod
    def reward(task: str, rollout: int) -> float:
        return float(rollout == 0 and ("=" not in task or "!" in task))


class Bytes:
    """One token per byte, and one that ends a turn; as much of a tokenizer as the frameworks call."""

    eos_token_id = pad_token_id = 0
    eos_token = "\0"
    chat_template = None

    def encode(self, text: str, **options: Any) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Any, *, skip_special_tokens: bool = True, **options: Any) -> str:
        return bytes(i for i in ids if i or not skip_special_tokens).decode()

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: Any) -> list[int]:
        return self.encode("".join(f"{message['content']}\0" for message in messages))
