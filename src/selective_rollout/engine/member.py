"""One rollout: a conversation with a policy inside an environment, stoppable at any moment.

A failure of the endpoint or the environment ends the rollout as data. A foreign cancellation is never
swallowed: it leaves through every await, cancelling the work in flight on its way.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from selective_rollout.actions import canonicalise, read_action
from selective_rollout.actions.read import is_cut_off
from selective_rollout.draws import sampling_seed
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.conversation import Opening, replies
from selective_rollout.engine.feed import StreamFeed
from selective_rollout.engine.hold import Control, off_the_clock
from selective_rollout.engine.record import RolloutRecord
from selective_rollout.env.base import Environment, EnvironmentFactory, StepResult
from selective_rollout.errors import EnvironmentFault, PolicyError
from selective_rollout.gate.decision import GateDecision
from selective_rollout.policy.base import Completion, Message, Meter, Policy, RequestInfo
from selective_rollout.policy.usage import estimate_completion
from selective_rollout.trace.group_log import GroupLog, observation_hash
from selective_rollout.types import Rollout, RolloutFailure, RolloutStatus, Step, Task, Usage

T = TypeVar("T")

Score = Callable[[Task, Rollout], object]
"""Scores a rollout that has ended; may be a coroutine function. The value is read by `parse_reward`."""


class _Stopped(Exception):
    """The work in flight was interrupted by the group's cut."""


@dataclass(slots=True)
class Member(RolloutRecord):
    """Runs one rollout of a group and keeps its record.

    Args of the constructor are the fields below up to `feed`; `resumed` are the steps to take over from an
    earlier attempt.
    """

    task: Task
    group_id: str
    policy: Policy
    environment: EnvironmentFactory
    opening: Opening
    score: Score | None
    config: RunConfig
    control: Control
    log: GroupLog
    resumed: Sequence[Step] = ()
    siblings: int = 1
    """Rollouts of the group that begin as this one does, itself included."""
    feed: StreamFeed | None = None
    """Hears the completions, where the group's streams are watched."""

    _messages: list[Message] = field(default_factory=list)
    _in_flight: asyncio.Task[Any] | None = None
    _stop_word: asyncio.Future[None] | None = None
    """Resolved once the work in flight was told to stop."""
    _is_request: bool = False
    _limit: asyncio.Timeout | None = None
    _meter: Meter | None = None
    _stopped_at: int | None = None
    """Completion tokens the request in flight had received when the group was cut."""
    _wasted: int = 0
    _overrun: int = 0

    async def run(self) -> None:
        """Take steps until the rollout ends, fails or is stopped."""
        try:
            async with asyncio.timeout(self.config.rollout_timeout_s) as self._limit:
                await self._run_in_environment()
        except TimeoutError:
            if self._limit is None or not self._limit.expired():
                raise
            self._fail("timeout", f"the rollout took longer than {self.config.rollout_timeout_s:g} s")

    def stop(self) -> None:
        """Interrupt the work in flight, as far as the stop policy allows."""
        if self._meter is not None:
            self._stopped_at = self._meter.completion
        if self.config.stop == "drain" or (self.config.stop == "safe" and not self._is_request):
            return
        task, word = self._in_flight, self._stop_word
        if task is not None and word is not None and not (task.done() or word.done()):
            word.set_result(None)
            task.cancel()

    async def _run_in_environment(self) -> None:
        try:
            if not (self.resumed and await self._take_over()):
                async with self._opened() as environment:
                    observation = await _done(environment.start)
                    self._messages = self.opening(self.task, observation)
                    await self._take_steps(environment, observation.admissible)
            if self.score is not None and self.status.ended_normally:
                await self._score(self.score)
        except PolicyError as error:
            self._fail(error.kind, error.message)
        except EnvironmentFault as error:
            self._fail("environment", str(error))
        except Exception as error:
            self._fail("error", f"{type(error).__name__}: {error}")

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Environment]:
        """A fresh environment, closed whatever happens; trouble in closing must not mask how it ended."""
        environment = self.environment(self.task, self.index)
        try:
            yield environment
        finally:
            with suppress(Exception):
                environment.close()

    async def _take_over(self) -> bool:
        """Continue an earlier attempt by re-stepping its recorded actions.

        Returns:
            False, with nothing recorded, if the environment does not answer as it did then.
        """
        async with self._opened() as environment:
            observation = await _done(environment.start)
            results: list[StepResult] = []
            for step in self.resumed:
                results.append(await _done(partial(environment.step, step.action)))
                if observation_hash(results[-1].observation) != step.observation_hash:
                    return False
            self._messages = self.opening(self.task, observation)
            for step, result in zip(self.resumed, results, strict=True):
                message = {"role": "assistant", "content": step.completion or step.action}
                self._messages += [message, *replies(message, result.observation)]
                self._record(step.action, Completion(message, step.usage or Usage()), result, replayed=True)
            if self.status is RolloutStatus.RUNNING:
                await self._take_steps(environment, results[-1].admissible)
        return True

    async def _take_steps(self, environment: Environment, admissible: tuple[str, ...] | None) -> None:
        while self.status is RolloutStatus.RUNNING:
            if not await off_the_clock(self._limit, self.control.permit(self.index)):
                self._cut()
                return
            with suppress(_Stopped):
                admissible = await self._step(environment, admissible)

    async def _step(
        self, environment: Environment, admissible: tuple[str, ...] | None
    ) -> tuple[str, ...] | None:
        completion = await self._complete(admissible)
        if is_cut_off(completion.finish_reason):
            self.lost.append(completion.usage)
            self._finish(truncated=True)
            return None
        raw = read_action(completion.message, self.config.actions)
        action = canonicalise(raw, self.config.actions)
        try:
            result = await self._interruptible(_done(partial(environment.step, str(raw))), is_request=False)
        except BaseException:
            self.lost.append(completion.usage)
            raise
        self._messages += [completion.message, *replies(completion.message, result.observation)]
        self._record(action, completion, result)
        return result.admissible

    async def _complete(self, admissible: tuple[str, ...] | None) -> Completion:
        """Ask for the next completion and book its tokens, whatever becomes of it."""
        self._meter = meter = Meter()
        info = RequestInfo(
            group_id=self.group_id,
            rollout=self.index,
            step=len(self.steps) + 1,
            seed=sampling_seed(self.config.seed, self.group_id, self.index),
            admissible=admissible,
            siblings=1 if self.steps else self.siblings,
            meter=meter,
            listener=self.feed,
        )
        if self.feed is not None:
            self.feed.begin()
        usage, estimate = Usage(), None
        try:
            completion = await self._interruptible(
                self.policy.complete(self._messages, info), is_request=True
            )
            usage, estimate = completion.usage, estimate_completion(completion.message)
        except BaseException:
            if meter.started:
                usage = meter.received
                self.lost.append(usage)
            if self.feed is not None:
                self.feed.broke()
            raise
        finally:
            overrun = self._overrun_of(usage)
            self._overrun += overrun
            self._wasted = meter.wasted
            if meter.started or usage != Usage():
                self.ledger.add(usage, overrun=overrun, wasted=meter.wasted, estimate=estimate)
            self._meter = self._stopped_at = None
        if self.feed is not None:
            self.feed.complete(completion.message)
        return completion

    async def _score(self, score: Score) -> None:
        """Score a rollout that has ended; the gate never waits for it, and a cut interrupts it."""
        try:
            value = await self._interruptible(_done(partial(score, self.task, self.rollout)), is_request=True)
            self.reward = self.log.reward(self.index, value)
        except _Stopped:
            return
        except Exception as error:
            self.failure = RolloutFailure("score", f"{type(error).__name__}: {error}")
            self.log.reward(self.index, None, failure=self.failure)

    def _overrun_of(self, usage: Usage) -> int:
        """Tokens of this request that arrived after the cut; unknown counts as none received."""
        if self._stopped_at is None or usage.completion is None:
            return 0
        return max(0, usage.completion - self._stopped_at)

    async def _interruptible(self, work: Coroutine[Any, Any, T], *, is_request: bool) -> T:
        """Await work that `stop` may cancel, telling our own cancellation from a foreign one.

        Cancelled work has `stop_timeout_s` to end. What it returns or raises from then on is ignored.

        Raises:
            _Stopped: `stop` cancelled the work.
        """
        task = asyncio.create_task(work)
        task.add_done_callback(_forget)
        word = asyncio.get_running_loop().create_future()
        self._in_flight, self._stop_word, self._is_request = task, word, is_request
        try:
            await asyncio.wait({task, word}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._in_flight = None
            if not task.done():
                if not word.done():
                    task.cancel()
                await asyncio.wait({task}, timeout=self.config.stop_timeout_s)
        if word.done():
            raise _Stopped
        if task.cancelled():
            raise RuntimeError("the work was cancelled from within")
        return task.result()

    def _record(
        self, action: str, completion: Completion, result: StepResult, *, replayed: bool = False
    ) -> None:
        """Write the step, and tell the gate of it; a last step goes to the gate together with its end."""
        text = completion.message.get("content")
        step = Step(
            index=len(self.steps) + 1,
            action=action,
            completion=text if isinstance(text, str) else None,
            observation=result.observation,
            observation_hash=observation_hash(result.observation),
            is_error=result.is_error,
            state_key=result.state_key,
            usage=completion.usage,
            finish_reason=completion.finish_reason,
        )
        self.steps.append(step)
        self.log.write_step(self.index, step, wasted=self._wasted, replayed=replayed)
        self._wasted = 0
        out_of_steps = len(self.steps) >= self.config.max_steps
        if result.terminated or result.truncated or out_of_steps:
            self.reward = result.reward if self.score is None else None
            self.answer = result.answer
            self._finish(truncated=not result.terminated, last_action=action)
        else:
            self._note(self.log.report(self.index, action))

    def _finish(self, *, truncated: bool, last_action: str | None = None) -> None:
        self.status = RolloutStatus.TRUNCATED if truncated else RolloutStatus.FINISHED
        decision = self.log.finish(
            self.index,
            self.reward,
            self.answer,
            truncated=truncated,
            last_action=last_action,
            lost=self.lost_usage,
            wasted=self._wasted,
            overrun=self._overrun,
        )
        self.control.ended(self.index, failed=False, answer=self.answer)
        self._note(decision)

    def _fail(self, kind: str, message: str) -> None:
        self.status = RolloutStatus.FAILED
        self.failure = RolloutFailure(kind, message)
        decision = self.log.fail(
            self.index, kind, message, lost=self.lost_usage, wasted=self._wasted, overrun=self._overrun
        )
        self.control.ended(self.index, failed=True, answer=None)
        self._note(decision)

    def _cut(self) -> None:
        self.status = RolloutStatus.CUT
        self.log.cut(self.index, lost=self.lost_usage, wasted=self._wasted, overrun=self._overrun)

    def _note(self, decision: GateDecision | None) -> None:
        if decision is not None:
            self.control.note(decision)
        self.control.note_stream()


def _forget(task: asyncio.Task[Any]) -> None:
    """Look at how work ended, so that nobody complains if it was abandoned and broke later."""
    if not task.cancelled():
        task.exception()


async def _done(work: Callable[[], T | Awaitable[T]]) -> T:
    """Environments and scorers may be plain or asynchronous."""
    result = work()
    return await result if inspect.isawaitable(result) else result
