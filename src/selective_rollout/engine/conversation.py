"""The chat messages of a rollout: how it opens, and how an environment's reply is told to the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from selective_rollout.env.base import Observation
from selective_rollout.policy.base import Message
from selective_rollout.types import Task

Opening: TypeAlias = Callable[[Task, Observation], list[Message]]
"""Makes the first messages of a conversation."""


def default_opening(task: Task, observation: Observation) -> list[Message]:
    """The task's prompt as system message, the first observation as user message.

    Without a first observation there is only the prompt, and the user says it.
    """
    if not observation.text:
        return [{"role": "user", "content": task.prompt}]
    return [{"role": "system", "content": task.prompt}, {"role": "user", "content": observation.text}]


def prompt_opening(task: Task, observation: Observation) -> list[Message]:
    """The first observation (how to act) as system message, the task's prompt as user message."""
    return [{"role": "system", "content": observation.text}, {"role": "user", "content": task.prompt}]


def replies(message: Message, observation: str) -> list[Message]:
    """The environment's reply as chat messages; every tool call of a message needs an answer of its own."""
    calls = message.get("tool_calls") or ()
    if not calls:
        return [{"role": "user", "content": observation}]
    texts = [observation, *("" for _ in calls[1:])]
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": text}
        for call, text in zip(calls, texts, strict=True)
    ]
