"""In-process stand-ins for the two seams of the engine: a policy without HTTP and a world without rules."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

from selective_rollout.env.base import Observation, StepResult
from selective_rollout.errors import ConfigError, EnvironmentFault
from selective_rollout.policy.base import Completion, Message, Piece, RequestInfo
from selective_rollout.testing.brains import Brain
from selective_rollout.testing.sequence import Token, plan_sequence, shown_message
from selective_rollout.testing.tokens import EOS, render_prompt, token_id
from selective_rollout.types import Usage

_NO_LIMIT = 1_000_000


class ScriptedPolicy:
    """A policy that asks a brain, with the loopback server's tokens but without a server.

    Args:
        brain: decides what is said.
        first_token_delay_s: seconds before the first token.
        token_delay_s: seconds per token; at 0 the event loop still runs between tokens, so that a
            cancellation is felt within one.
        max_tokens: most tokens per completion; None: no limit.
    """

    def __init__(
        self,
        brain: Brain,
        *,
        first_token_delay_s: float = 0.0,
        token_delay_s: float = 0.0,
        max_tokens: int | None = None,
    ) -> None:
        self._brain = brain
        self._first_token_delay_s = first_token_delay_s
        self._token_delay_s = token_delay_s
        self._max_tokens = _NO_LIMIT if max_tokens is None else max_tokens
        self.requests: list[RequestInfo] = []
        """Every request, in order of arrival."""
        self.cancelled: list[RequestInfo] = []
        """Requests that were cancelled before they were complete; their meters tell the tokens spent."""
        self.in_flight = 0
        self.peak_in_flight = 0
        self.closed = False

    @property
    def completion_tokens(self) -> int:
        """Tokens generated over all requests, cancelled ones included."""
        return sum(info.meter.completion for info in self.requests)

    async def complete(self, messages: Sequence[Message], info: RequestInfo) -> Completion:
        """Return the brain's reply; what the brain raises passes through.

        Raises:
            ConfigError: the policy is closed.
        """
        if self.closed:
            raise ConfigError("this ScriptedPolicy is closed: make a new one")
        self.requests.append(info)
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        try:
            return await self._generate([dict(message) for message in messages], info)
        except asyncio.CancelledError:
            self.cancelled.append(info)
            raise
        finally:
            self.in_flight -= 1

    async def aclose(self) -> None:
        """Refuse further requests."""
        self.closed = True

    async def _generate(self, messages: list[dict[str, Any]], info: RequestInfo) -> Completion:
        info.meter.started = True
        info.meter.attempts += 1
        request: dict[str, Any] = {"messages": messages, "seed": info.seed}
        reply = self._brain.reply(request, choice=info.rollout, seed=info.seed)
        plan = plan_sequence(reply, max_tokens=self._max_tokens)
        await self._speak(plan.tokens, info)
        key = f"{info.group_id}-{info.rollout}-{info.step}"
        call_ids = [call.id or f"call-{key}-{index}" for index, call in enumerate(plan.calls)]
        return Completion(
            message=shown_message(plan.tokens, call_ids),
            usage=Usage(
                prompt=len(render_prompt(messages)),
                completion=len(plan.tokens),
                reasoning=sum(token.kind == "reasoning" for token in plan.tokens),
                source="client",
            ),
            finish_reason=plan.finish_reason,
            response_id=f"scripted-{key}",
        )

    async def _speak(self, tokens: Sequence[Token], info: RequestInfo) -> None:
        if self._first_token_delay_s:
            await asyncio.sleep(self._first_token_delay_s)
        for token in tokens:
            await asyncio.sleep(self._token_delay_s)
            info.meter.completion += 1
            if info.listener is not None:
                text = token.text if token.kind in ("reasoning", "content") else ""
                info.listener.heard(Piece(text, (token_id(EOS if token.kind == "eos" else token.text),)))


class ScriptedEnvironment:
    """A world that gives the listed replies in order, whatever the agent does, and enforces the protocol.

    Args:
        results: `results[k - 1]` is the reply to step k.
        observation: what the agent sees first.
        replayable: what the environment declares.
        delay_s: seconds each step takes; above 0, `step` returns an awaitable.
    """

    def __init__(
        self,
        results: Sequence[StepResult],
        observation: Observation | str = "start",
        *,
        replayable: bool = True,
        delay_s: float = 0.0,
    ) -> None:
        self._results = tuple(results)
        self._observation = Observation(observation) if isinstance(observation, str) else observation
        self._replayable = replayable
        self._delay_s = delay_s
        self._started = False
        self.actions: list[str] = []
        """Actions received, also of steps cancelled before their reply."""
        self.closed = False

    @property
    def replayable(self) -> bool:
        """As declared."""
        return self._replayable

    def start(self) -> Observation:
        """Return the first observation.

        Raises:
            EnvironmentFault: it was started before, or is closed.
        """
        if self._started or self.closed:
            raise EnvironmentFault("ScriptedEnvironment.start: an environment is single-use; make a new one")
        self._started = True
        return self._observation

    def step(self, action: str) -> StepResult | Awaitable[StepResult]:
        """Return the next reply of the list.

        Raises:
            EnvironmentFault: it is not running, or the list is used up.
        """
        if not self._started or self.closed:
            raise EnvironmentFault("ScriptedEnvironment.step: call start() first and nothing after close()")
        if len(self.actions) >= len(self._results):
            raise EnvironmentFault(
                f"ScriptedEnvironment.step: {len(self._results)} replies are listed; "
                f"step {len(self.actions) + 1} was taken"
            )
        result = self._results[len(self.actions)]
        self.actions.append(action)
        return self._later(result) if self._delay_s > 0 else result

    def close(self) -> None:
        """Release it.

        Raises:
            EnvironmentFault: it is closed already.
        """
        if self.closed:
            raise EnvironmentFault("ScriptedEnvironment.close: called twice")
        self.closed = True

    async def _later(self, result: StepResult) -> StepResult:
        await asyncio.sleep(self._delay_s)
        return result
