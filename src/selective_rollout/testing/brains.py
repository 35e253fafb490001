"""What a fake model says: pure functions from a request and a seed to a reply."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from selective_rollout.errors import ConfigError
from selective_rollout.testing.tokens import message_text


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One function call of a reply."""

    name: str
    arguments: str = "{}"
    """Raw text, as a model writes it: it need not be valid JSON."""
    id: str | None = None
    """Call id; None lets the server make one."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One whole reply, before any limit of the request cuts it."""

    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    finish_reason: str = "stop"
    """What the server reports; with tool calls, "stop" is reported as "tool_calls"."""


class Brain(Protocol):
    """Decides what the fake model says."""

    def reply(self, request: dict[str, Any], *, choice: int, seed: int | None) -> Reply:
        """Answer a request body; equal request, choice and seed give an equal reply.

        Args:
            request: the body as the client sent it; `messages` is always present.
            choice: 0-based index among the `n` choices of the request.
            seed: seed of this choice: the request's seed + `choice`; None when nobody named one.
        """


_VERBS: Final = ("search", "open", "read", "compare")

Script: TypeAlias = Sequence[Reply | str] | Callable[[dict[str, Any], int, int | None], Reply | str]


class EchoBrain:
    """Repeats the text of the last message."""

    def reply(self, request: dict[str, Any], *, choice: int, seed: int | None) -> Reply:
        """Return the last message's text."""
        messages = request["messages"]
        return Reply(content=message_text(messages[-1].get("content")) if messages else "")


class ScriptedBrain:
    """Says what it was told to.

    Args:
        script: `script[t]` is the reply to a conversation that holds t assistant messages (so step t + 1), or
            a function of (request, choice, seed). A string stands for a reply with that content.
    """

    def __init__(self, script: Script) -> None:
        self._script = script

    def reply(self, request: dict[str, Any], *, choice: int, seed: int | None) -> Reply:
        """Return the scripted reply.

        Raises:
            ConfigError: the conversation is longer than the list of replies.
        """
        if callable(self._script):
            said = self._script(request, choice, seed)
        else:
            done = steps_taken(request["messages"])
            if done >= len(self._script):
                raise ConfigError(
                    f"the script holds {len(self._script)} replies; step {done + 1} was asked for"
                )
            said = self._script[done]
        return Reply(content=said) if isinstance(said, str) else said


@dataclass(frozen=True, slots=True)
class TutorialBrain:
    """An agent whose rollouts either all do the same or all go their own way, by prompt.

    A hash of the prompt (the first user message) decides. On a convergent prompt every rollout takes the same
    action at step t; on a divergent one each seed takes its own. Step `steps` is `answer(...)`: the same for
    all rollouts of a convergent prompt, one of two by seed otherwise.
    """

    convergent_fraction: float = 0.5
    """Share of prompts that are convergent."""
    steps: int = 8
    """Length of every rollout, the answer included."""
    salt: str = ""
    """Another salt draws another set of convergent prompts."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.convergent_fraction <= 1.0:
            raise ConfigError(f"convergent_fraction must lie in [0, 1], got {self.convergent_fraction}")
        if self.steps < 1:
            raise ConfigError(f"steps must be at least 1, got {self.steps}")

    def reply(self, request: dict[str, Any], *, choice: int, seed: int | None) -> Reply:
        """Return the action of the conversation's next step."""
        messages = request["messages"]
        prompt = first_user_text(messages)
        rollout = choice if seed is None else seed
        step = steps_taken(messages) + 1
        if step >= self.steps:
            return Reply(content=f"answer({self.answer(prompt, rollout)})")
        return Reply(content=self._action(prompt, step, rollout))

    def is_convergent(self, prompt: str) -> bool:
        """Whether all rollouts of this prompt act alike."""
        return self._draw("kind", prompt) < self.convergent_fraction * 2**64

    def answer(self, prompt: str, seed: int) -> str:
        """Final answer of the rollout with this seed."""
        pick = 0 if self.is_convergent(prompt) else self._draw("answer", prompt, seed) % 2
        return ("yes", "no")[pick]

    def _action(self, prompt: str, step: int, rollout: int) -> str:
        own = () if self.is_convergent(prompt) else (rollout,)
        draw = self._draw("action", prompt, step, *own)
        suffix = "".join(f"-{part}" for part in own)
        return f"{_VERBS[draw % len(_VERBS)]}({draw // 4 % 1000}{suffix})"

    def _draw(self, *key: object) -> int:
        digest = hashlib.sha256(repr((self.salt, *key)).encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8], "big")


def steps_taken(messages: Sequence[Mapping[str, Any]]) -> int:
    """Number of assistant messages in a conversation."""
    return sum(message.get("role") == "assistant" for message in messages)


def first_user_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Text of the first user message; empty if there is none."""
    return next((message_text(m.get("content")) for m in messages if m.get("role") == "user"), "")
