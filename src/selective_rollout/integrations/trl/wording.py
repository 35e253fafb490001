"""How a multi-turn conversation is written in tokens, without ever encoding anything twice.

What the model said stays the ids that it said. Prompts and observations are encoded once: as chat messages if
the prompt is a list of messages, else as plain text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from selective_rollout.errors import ConfigError

Prompt: TypeAlias = str | Sequence[Mapping[str, Any]]


class Wording:
    """Encodes for one trainer.

    Args:
        trainer: a `GRPOTrainer`: its tokenizer and chat template.
    """

    def __init__(self, trainer: Any) -> None:
        self._tokenizer = trainer._tokenizer
        self._template = {"chat_template": trainer.chat_template, **trainer.chat_template_kwargs}
        self._ends = {*trainer.eos_token_ids, trainer._tokenizer.pad_token_id}

    def opening(self, prompt: Prompt, observation: str) -> list[int]:
        """The prompt, with the first observation at its end."""
        if isinstance(prompt, str):
            text = f"{prompt}\n{observation}\n" if observation else prompt
            return list(self._tokenizer.encode(text))
        messages = list(prompt)
        if observation:
            last = messages[-1]
            messages[-1] = {**last, "content": f"{last['content']}\n\n{observation}"}
        return self._chat(messages, add_generation_prompt=True)

    def reply(self, observation: str, *, chat: bool) -> list[int]:
        """What comes between the model's turn and its next one.

        Raises:
            ConfigError: the chat template rewrites earlier messages, so that turns cannot be appended.
        """
        if not chat:
            return list(self._tokenizer.encode(f"\n{observation}\n", add_special_tokens=False))
        before = [{"role": "user", "content": "-"}, {"role": "assistant", "content": "-"}]
        head = self._chat(before, add_generation_prompt=False)
        whole = self._chat([*before, {"role": "user", "content": observation}], add_generation_prompt=True)
        ends = [place for place, token in enumerate(head) if token in self._ends]
        head = head[: ends[-1] + 1] if ends else head
        if whole[: len(head)] != head:
            raise ConfigError(
                "the chat template changes earlier messages when later ones come: it cannot be used for "
                "training over several turns; pass a prefix-preserving template"
            )
        return whole[len(head) :]

    def text(self, ids: Sequence[int]) -> str:
        """What the model said, for an environment to read."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def is_complete(self, ids: Sequence[int], *, chat: bool) -> bool:
        """Whether a turn came to its own end; plain text has no ends but the token limit."""
        return not chat or (bool(ids) and ids[-1] in self._ends)

    def _chat(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> list[int]:
        return list(
            self._tokenizer.apply_chat_template(
                messages,
                tokenize=True,
                return_dict=False,
                add_generation_prompt=add_generation_prompt,
                **self._template,
            )
        )
