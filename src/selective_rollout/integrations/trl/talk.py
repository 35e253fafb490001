"""One rollout: a model and an environment taking turns, in tokens."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from selective_rollout.actions import ActionOptions, canonicalise, read_action
from selective_rollout.engine.training import Facts, TrainingGroup
from selective_rollout.env.base import Environment, EnvironmentFactory, StepResult
from selective_rollout.integrations.trl.batch import Row, Slot
from selective_rollout.integrations.trl.wording import Prompt, Wording
from selective_rollout.types import Task, Usage

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a rollout may become."""

    max_steps: int
    completion: int
    """Tokens of all turns and observations."""
    context: int | None
    """Tokens the model can read; None if it does not say."""


class Talk:
    """What was said in one rollout, and who is to speak.

    Args:
        slot: the place of its group; None in evaluation, where nothing is gated.
        member: its index in the group.
        prompt: the row's prompt.
        row: the row of the dataset, which the environment's task gets as metadata.
        wording: writes tokens.
        limits: how long it may become.
        environment: makes its world.
        options: how completions become actions.
    """

    def __init__(
        self,
        slot: Slot | None,
        member: int,
        prompt: Prompt,
        row: Row,
        *,
        wording: Wording,
        limits: Limits,
        environment: EnvironmentFactory,
        options: ActionOptions,
    ) -> None:
        self.prompt_ids: list[int] = []
        self.ids: list[int] = []
        self.mask: list[int] = []
        """1 for what the model said, 0 for what it was told."""
        self.logprobs: list[float] | None = None
        self.reward: float | None = None
        self.begun = False
        """Whether its world was asked for."""
        self.broken: Exception | None = None
        """What its world broke with."""
        self._slot = slot
        self._member = member
        self._prompt = prompt
        self._row = row
        self._wording = wording
        self._limits = limits
        self._make = environment
        self._options = options
        self._chat = not isinstance(prompt, str)
        self._world: Environment | None = None
        self._steps = 0
        self._turn: list[int] = []
        self._ended = False

    @property
    def is_live(self) -> bool:
        """Whether it takes another turn."""
        return not self._ended and (self._slot is None or not self._slot.dropped)

    @property
    def context(self) -> list[int]:
        """All tokens so far."""
        return self.prompt_ids + self.ids

    async def start(self) -> None:
        """Make the world and write the prompt."""
        self.begun = True
        group = self._group()
        text = _text_of(self._prompt)
        task_id = group.task_id if group is not None else text
        try:
            self._world = self._make(Task(task_id, text, self._row), self._member)
            first = await _done(self._world.start())
        except Exception as error:
            self._fail(error)
            return
        self.prompt_ids = self._wording.opening(self._prompt, first.text)

    def said(self, ids: list[int], logprobs: list[float] | None) -> None:
        """Take in the model's turn, as far as it fits."""
        room = max(1, self._limits.completion - len(self.ids))
        self._turn = ids[:room]
        self.ids += self._turn
        self.mask += [1] * len(self._turn)
        if logprobs is not None:
            self.logprobs = (self.logprobs or []) + logprobs[:room]

    async def act(self) -> None:
        """Let the environment answer, and tell the group."""
        assert self._world is not None
        message = {"role": "assistant", "content": self._wording.text(self._turn)}
        raw = read_action(message, self._options)
        self._steps += 1
        try:
            result = await _done(self._world.step(str(raw)))
        except Exception as error:
            self._fail(error)
            return
        action = canonicalise(raw, self._options)
        reply = self._wording.reply(result.observation, chat=self._chat)
        if self._is_last(result, reply):
            self._finish(action, result)
        elif self._tell(action, result):
            self.ids += reply
            self.mask += [0] * len(reply)
            if self.logprobs is not None:
                self.logprobs += [0.0] * len(reply)

    def seal(self, eos: int) -> None:
        """Make it a row that a trainer can pad, also if nothing was said."""
        self.prompt_ids = self.prompt_ids or self._wording.opening(self._prompt, "")
        if not self.ids:
            self.ids, self.mask = [eos], [0]

    async def close(self) -> None:
        """Let go of the world; asked twice, it is gone already."""
        world, self._world = self._world, None
        if world is not None:
            world.close()

    def _is_last(self, result: StepResult, reply: list[int]) -> bool:
        length, limits = len(self.ids) + len(reply), self._limits
        return (
            result.terminated
            or result.truncated
            or self._steps >= limits.max_steps
            or not self._wording.is_complete(self._turn, chat=self._chat)
            or length >= limits.completion
            or (limits.context is not None and len(self.prompt_ids) + length >= limits.context)
        )

    def _finish(self, action: str, result: StepResult) -> None:
        self._ended = True
        self.reward = result.reward
        group = self._group()
        if group is not None:
            group.finish(
                self._member,
                result.reward,
                result.answer,
                truncated=not result.terminated,
                action=action,
                **self._facts(result),
            )

    def _tell(self, action: str, result: StepResult) -> bool:
        group = self._group()
        return group is None or group.step(self._member, action, **self._facts(result))

    def _fail(self, error: Exception) -> None:
        self._ended, self.broken = True, error
        if self._slot is not None and (group := self._group()) is not None:
            self._slot.failed.add(self._member)
            group.fail(self._member, "environment", f"{type(error).__name__}: {error}")

    def _group(self) -> TrainingGroup | None:
        return self._slot.group if self._slot is not None else None

    def _facts(self, result: StepResult) -> Facts:
        return Facts(
            observation=result.observation,
            is_error=result.is_error,
            state_key=result.state_key,
            usage=Usage(completion=len(self._turn), source="client"),
        )


def _text_of(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])


async def _done(result: _T | Awaitable[_T]) -> _T:
    return await result if inspect.isawaitable(result) else result
