"""The tokenizer, the agents and the engine actor of the tests, importable in Ray's worker processes.

A prompt is "name:" and tells what happens: with "=" in its name all members act alike, else each in its own
way; with "!" its member 1 breaks in its third turn. Members are told apart by the number that their agent
puts behind the prompt.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import torch
from openrlhf.utils.agent import AgentInstanceBase

LAST_TURN = 256
"""The token that ends a turn."""
TURNS = 6


class Bytes:
    """One token per byte; as much of a tokenizer as OpenRLHF's executors call."""

    eos_token_id = LAST_TURN

    def __call__(self, text: str, **options: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([list(text.encode())], dtype=torch.long)}

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        text = "".join(chr(i) if i < LAST_TURN else "</s>" for i in ids)
        return text.replace("</s>", "") if skip_special_tokens else text


def turn_of(heard: str) -> int:
    return heard.count("ok")


def member_of(heard: str) -> int:
    return int(heard.split("#")[1][0])


def answer(heard: str) -> str:
    return f"go {turn_of(heard)}" if "=" in heard else f"go {turn_of(heard)} {member_of(heard)}"


def delay(heard: str) -> float:
    """Seconds. Member 3 is late at the check at 2, where the others are asking for more already."""
    if turn_of(heard) >= 2:
        return 0.3 if member_of(heard) != 3 else 0.02
    return 0.02 if member_of(heard) == 3 else 0.001


class Corridor(AgentInstanceBase):
    """Says ok a few times; rewards even members, except where all act alike."""

    numbers: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self.turn, self.member = 0, 0

    async def reset(self, states: dict[str, Any], **options: Any) -> dict[str, Any]:
        prompt = states["observation"]
        numbers = Corridor.numbers.setdefault(prompt, itertools.cycle(range(4)))
        self.member = next(numbers)
        return {"observation": f"{prompt}#{self.member} "}

    async def step(self, states: dict[str, Any], **options: Any) -> dict[str, Any]:
        self.turn += 1
        heard = states["observation_text"]
        if "!" in heard and self.member == 1 and self.turn == 3:
            raise RuntimeError("the corridor fell in")
        won = self.turn == TURNS and "=" not in heard and self.member % 2 == 0
        return {
            "rewards": torch.tensor(float(won)),
            "environment_feedback": " ok ",
            "done": self.turn == TURNS,
            "extra_logs": {"turns": torch.tensor(self.turn)},
        }
