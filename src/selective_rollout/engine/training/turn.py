"""A turn as it is seen in tokens, between a trainer's agent and the engine that generates for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from selective_rollout.engine.training.group import Facts
from selective_rollout.types import Usage


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model was asked, and what it said."""

    prompt: list[int]
    said: list[int]
    text: str
    action: str
    finish_reason: str | None

    def reply(self, tokenizer: Any, asked: list[int]) -> str | None:
        """What the environment said after this turn, if that stands in what the model is asked next.

        Args:
            tokenizer: reads tokens.
            asked: the tokens of the next request.

        Returns:
            None if the conversation was written anew.
        """
        before = self.prompt + self.said
        if asked[: len(before)] != before:
            return None
        return str(tokenizer.decode(asked[len(before) :], skip_special_tokens=True))

    def facts(self, observation: str | None = None) -> Facts:
        """What may be told of the turn beside its action."""
        return Facts(
            completion=self.text,
            observation=observation,
            usage=Usage(completion=len(self.said), source="client"),
            finish_reason=self.finish_reason,
        )
