"""One step of one rollout: from its state to its next state, with every failure as data."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from selective_rollout.actions import canonicalise, read_action
from selective_rollout.actions.read import is_cut_off
from selective_rollout.draws import sampling_seed
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.conversation import replies
from selective_rollout.env.base import StepResult
from selective_rollout.errors import EnvironmentFault, PolicyError
from selective_rollout.integrations.langgraph.retry import may_retry, pause_s
from selective_rollout.integrations.langgraph.session import Session, settled
from selective_rollout.integrations.langgraph.state import (
    RolloutState,
    StepInput,
    ledger_of,
    ledger_state,
    plain_copy,
    step_state,
    usage_state,
)
from selective_rollout.policy.base import Completion, Meter, Policy, RequestInfo
from selective_rollout.rewards import parse_reward
from selective_rollout.trace.group_log import observation_hash
from selective_rollout.types import RolloutStatus, Step, Task, Usage


@dataclass(slots=True)
class _Request:
    """What is known of a step's request, also when the step broke."""

    meter: Meter = field(default_factory=Meter)
    completion: Completion | None = None
    attempts: int = 1
    """How often the step has been tried."""
    has_acted: bool = False
    """Whether the environment was given the action, and so may have changed."""
    _wasted: int = 0

    @property
    def usage(self) -> Usage | None:
        """Tokens spent; None if nothing was asked for."""
        if self.completion is not None:
            return self.completion.usage
        return self.meter.received if self.meter.started else None

    @property
    def wasted(self) -> int:
        """Completion tokens that led to nothing."""
        return self._wasted + self.meter.wasted

    def begin_again(self) -> None:
        """The step is tried once more; a completion that the world never answered is kept."""
        self.attempts += 1
        self.has_acted = False
        if self.completion is None:
            self._wasted += self.meter.wasted + self.meter.completion
            self.meter = Meter()


async def take_step(group: StepInput, *, session: Session, policy: Policy, config: RunConfig) -> RolloutState:
    """Take a rollout's next step. `group` and all in it stay as they are.

    Whatever breaks is in the result as a failed rollout; only a cancellation from outside passes.
    """
    before = group["rollout"]
    request = _Request()
    began = time.monotonic()
    left = None if config.rollout_timeout_s is None else config.rollout_timeout_s - before["elapsed_s"]
    try:
        async with asyncio.timeout(left):
            after = await _attempt(group, session, policy, config, request)
    except TimeoutError:
        after = _failed(
            before, "timeout", f"the rollout took longer than {config.rollout_timeout_s:g} s in its steps"
        )
    after["elapsed_s"] = before["elapsed_s"] + time.monotonic() - began
    return _booked(before, after, request)


async def _attempt(
    group: StepInput, session: Session, policy: Policy, config: RunConfig, request: _Request
) -> RolloutState:
    before, retry = group["rollout"], session.retry
    while True:
        try:
            return await _step(group, session, policy, config, request)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return _failed(before, "error", "the work was cancelled from within")
        except Exception as error:
            is_lost = request.has_acted and not session.rewind(before["index"])
            if is_lost or retry is None or not may_retry(retry, error, request.attempts):
                return _failed(before, *_failure(error, request.attempts))
            await asyncio.sleep(pause_s(retry, request.attempts))
            request.begin_again()


def _failure(error: Exception, attempts: int) -> tuple[str, str]:
    """Kind and message."""
    often = "" if attempts == 1 else f" (tried {attempts} times)"
    if isinstance(error, PolicyError):
        return error.kind, f"{error.message}{often}"
    if isinstance(error, EnvironmentFault):
        return "environment", f"{error}{often}"
    return "error", f"{type(error).__name__}: {error}{often}"


async def _step(
    group: StepInput, session: Session, policy: Policy, config: RunConfig, request: _Request
) -> RolloutState:
    before = group["rollout"]
    task = Task(group["task_id"], group["prompt"], plain_copy(group["metadata"], "metadata"))
    world = await session.world_of(task, before, config.actions)
    messages = before["messages"]
    if not messages:
        opening = session.parts.opening(task, world.opening)
        messages = plain_copy([dict(message) for message in opening], "the opening messages")
    info = RequestInfo(
        group_id=group["group_id"],
        rollout=before["index"],
        step=len(before["steps"]) + 1,
        seed=sampling_seed(config.seed, group["group_id"], before["index"]),
        admissible=world.admissible,
        meter=request.meter,
    )
    if request.completion is None:
        request.completion = await policy.complete([dict(message) for message in messages], info)
    completion = request.completion
    if is_cut_off(completion.finish_reason):
        cut_off = before.copy()
        cut_off["messages"], cut_off["status"] = messages, RolloutStatus.TRUNCATED.value
        return cut_off
    said = plain_copy(dict(completion.message), "a completion's message")
    raw = read_action(said, config.actions)
    request.has_acted = True
    result = await settled(world.environment.step(str(raw)))
    world.admissible = result.admissible
    step = Step(
        index=info.step,
        action=plain_copy(canonicalise(raw, config.actions), "an action"),
        observation_hash=observation_hash(result.observation),
        is_error=result.is_error,
        state_key=result.state_key,
        usage=completion.usage,
        finish_reason=completion.finish_reason,
    )
    heard = plain_copy([dict(reply) for reply in replies(said, result.observation)], "an observation")
    after = before.copy()
    after["messages"] = [*messages, said, *heard]
    after["steps"] = [*before["steps"], step_state(step, request.wasted, request.attempts)]
    return _ended(after, result, group, config)


def _ended(after: RolloutState, result: StepResult, group: StepInput, config: RunConfig) -> RolloutState:
    """Close the rollout if this was its last step."""
    if result.terminated or result.truncated or len(after["steps"]) >= config.max_steps:
        where = f"group {group['group_id']!r} rollout {after['index']}"
        after["reward"] = parse_reward(result.reward, where=where)
        after["answer"] = plain_copy(result.answer, "an answer")
        after["status"] = (RolloutStatus.FINISHED if result.terminated else RolloutStatus.TRUNCATED).value
    return after


def _failed(before: RolloutState, kind: str, message: str) -> RolloutState:
    after = before.copy()
    after["status"] = RolloutStatus.FAILED.value
    after["failure"] = plain_copy({"kind": kind, "message": message}, "a failure")
    return after


def _booked(before: RolloutState, after: RolloutState, request: _Request) -> RolloutState:
    """Book the tokens; those of a completion that became no step are kept apart."""
    usage, wasted = request.usage, request.wasted
    if usage is None:
        return after
    if request.meter.started or usage != Usage():
        ledger = ledger_of(before["ledger"])
        ledger.add(usage, wasted=wasted)
        after["ledger"] = ledger_state(ledger)
    if len(after["steps"]) == len(before["steps"]):
        after["lost"], after["wasted"] = usage_state(usage), wasted
    return after
