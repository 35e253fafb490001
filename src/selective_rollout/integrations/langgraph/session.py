"""What one run of the graph holds beside its state: the policy, the environments, the book.

All of it lives exactly as long as the run. A run that goes on from a checkpoint starts with nothing and
rebuilds what it needs from the state.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, cast

from langgraph.types import RetryPolicy

from selective_rollout.actions import ActionOptions, read_action
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.conversation import Opening
from selective_rollout.engine.loop import LoopThread
from selective_rollout.engine.past import past_of
from selective_rollout.engine.rule import AcceptedRule
from selective_rollout.engine.watch import AuditWatch, observing
from selective_rollout.env.base import Environment, EnvironmentFactory, Observation
from selective_rollout.errors import ConfigError, EnvironmentFault
from selective_rollout.gate.certificate import accepts
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.integrations.langgraph.book import Book
from selective_rollout.integrations.langgraph.result import GroupResult
from selective_rollout.integrations.langgraph.settings import GroupContext, restore
from selective_rollout.integrations.langgraph.state import (
    GroupFacts,
    GroupState,
    Plain,
    RolloutState,
    Verdict,
    turns,
)
from selective_rollout.policy import Endpoint, Policy, SamplingParams
from selective_rollout.policy.openai_client import OpenAIPolicy
from selective_rollout.trace.group_log import observation_hash
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Task

T = TypeVar("T")

PolicyFactory: TypeAlias = Callable[[], Policy]
"""Makes the policy of one run, which is closed when the run ends."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What every run of a graph shares."""

    policy: Policy | PolicyFactory | None
    environment: EnvironmentFactory
    opening: Opening
    config: RunConfig
    recorder: Recorder | None
    accepted: AcceptedRule
    """The rule that the graph was built with, and what certifies it."""
    watch: AuditWatch
    retry: RetryPolicy | None = None
    history: PromptHistory | None = None
    loop: LoopThread = field(default_factory=LoopThread)
    attempts: dict[str, int] = field(default_factory=dict)
    """Latest attempt of groups that have not ended; a checkpoint may not know of one that broke at once."""

    def past_of(self, gate: GateConfig, task_id: str, metadata: Plain, group_size: int) -> Plain:
        """What the rule reads of a prompt when its group opens, and the group's own tau."""
        past = past_of(self.history, gate, task_id, group_size)
        return {
            "rewards": None if past.rewards is None else list(past.rewards),
            "p_zero_variance": past.p_zero_variance,
            "tau": self.accepted.tau_for(metadata),
        }


@dataclass(slots=True)
class World:
    """A live environment and what it last said."""

    environment: Environment
    opening: Observation
    admissible: tuple[str, ...] | None


class Session:
    """The live side of one run.

    Args:
        parts: what the graph was built with.
        context: what the run was given.

    Raises:
        ConfigError: the context does not fit.
    """

    def __init__(self, parts: Parts, context: GroupContext) -> None:
        self.parts = parts
        self.gate, self.config = context.apply(parts.accepted.rule, parts.config)
        self.retry = context.retry(parts.retry)
        self.has_opened = False
        """Whether the group was opened in this run, and not in an earlier one."""
        self._context = context
        self._settings: tuple[GateConfig, RunConfig] | None = None
        self._policy: Policy | None = None
        self._worlds: dict[int, World] = {}
        self._book: Book | None = None
        self._place: int | None = None
        """Of a group that was opened here and is under way, in the order of the audits' alarm."""
        self._in_flight: set[Future[Any]] = set()
        self._is_aborted = False

    def require_covered(self) -> None:
        """Refuse to enforce a rule that the context has changed beyond its certificate.

        Raises:
            ConfigError: names what stands against it.
        """
        certificate = self.parts.accepted.certificate
        if certificate is None or self.config.mode != "enforce":
            return
        reasons = accepts(certificate, self.gate, per_stratum=True)
        if reasons:
            raise ConfigError(f"context: the certificate does not cover this rule: {'; '.join(reasons)}")

    def take_place(self) -> None:
        """Line up for the audits' alarm; once it has rung, the group is only observed."""
        watch = self.parts.watch
        if watch.rung:
            self.config = observing(self.config)
        self._place = watch.begin(self.config)

    def review(self, state: GroupState | None) -> None:
        """Tell the audits' alarm of a group that ended in this state; None if nothing can be said."""
        place, self._place = self._place, None
        if place is not None:
            self.parts.watch.end(place, None if state is None else GroupResult.from_state(state))

    def policy_for(self, config: RunConfig) -> Policy:
        """The policy; made on first use if the graph was built without one.

        Raises:
            PrerequisiteError: no endpoint is set.
            ConfigError: no model is named.
        """
        if self._policy is None:
            given = self.parts.policy
            if given is None:
                sampling = SamplingParams(temperature=config.temperature)
                self._policy = OpenAIPolicy(Endpoint.resolve(), sampling, concurrency=config.concurrency)
            else:
                is_made = hasattr(given, "complete")
                self._policy = cast(Policy, given) if is_made else cast(PolicyFactory, given)()
        return self._policy

    def settings_of(self, group: GroupFacts) -> tuple[GateConfig, RunConfig]:
        """The settings that the group was opened with.

        Raises:
            ConfigError: this run's context contradicts them.
        """
        if self._settings is None:
            self._settings = restore(group, self._context, self.parts.config)
        return self._settings

    def book_of(self, group: GroupFacts) -> Book:
        """The group's book; begun, and with it an attempt in the trace, on first use."""
        if self._book is None:
            gate, config = self.settings_of(group)
            attempts, group_id = self.parts.attempts, group["group_id"]
            attempt = group["attempt"]
            if not self.has_opened:
                attempt = max(attempt, attempts.get(group_id, 0)) + 1
            attempts[group_id] = attempt
            self._book = Book(group, gate, config, self.parts.recorder, attempt, self.parts.history)
        return self._book

    def close_book(self, verdict: Verdict, rewards: Sequence[float | None]) -> None:
        """Write the group's end.

        Args:
            verdict: what became of the group.
            rewards: of its rollouts.
        """
        if self._book is not None:
            self._book.close(verdict, rewards)
            self.parts.attempts.pop(self._book.gate.group_id, None)

    async def world_of(self, task: Task, rollout: RolloutState, options: ActionOptions) -> World:
        """The rollout's environment; opened on first use, and brought to where the state says it stands.

        Raises:
            EnvironmentFault: it cannot be brought there.
        """
        index = rollout["index"]
        if index not in self._worlds:
            environment = self.parts.environment(task, index)
            try:
                self._worlds[index] = await _arrived(environment, rollout, options)
            except BaseException:
                with suppress(Exception):
                    environment.close()
                raise
        return self._worlds[index]

    def rewind(self, rollout: int) -> bool:
        """Close the environment of a rollout, which broke in a step; another one can take its place.

        Returns:
            False if it cannot be brought there.
        """
        world = self._worlds.get(rollout)
        self.leave(rollout)
        return world is not None and world.environment.replayable

    def leave(self, rollout: int) -> None:
        """Close a rollout's environment; trouble in closing must not mask how the rollout ended."""
        world = self._worlds.pop(rollout, None)
        if world is not None:
            with suppress(Exception):
                world.environment.close()

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine from a thread without an event loop.

        Raises:
            concurrent.futures.CancelledError: the run was aborted.
        """
        future = self.parts.loop.submit(work)
        self._in_flight.add(future)
        if self._is_aborted:  # set before `abort` looks at what is in flight, so one of the two cancels it
            future.cancel()
        try:
            return future.result()
        finally:
            self._in_flight.discard(future)

    def abort(self) -> None:
        """Cancel everything that `wait_for` waits for, now and from here on."""
        self._is_aborted = True
        for future in tuple(self._in_flight):
            future.cancel()

    def close(self) -> None:
        """`aclose` from a thread without an event loop."""
        self.parts.loop.submit(self.aclose()).result()

    async def aclose(self) -> None:
        """Close the environments, and the policy if it was made for this run."""
        self.review(None)
        for rollout in tuple(self._worlds):
            self.leave(rollout)
        policy, self._policy = self._policy, None
        if policy is not None and policy is not self.parts.policy:
            await policy.aclose()


async def _arrived(environment: Environment, rollout: RolloutState, options: ActionOptions) -> World:
    """Start an environment, and step it through what its rollout has already done."""
    opening = await settled(environment.start())
    world = World(environment, opening, opening.admissible)
    steps = rollout["steps"]
    if steps and not environment.replayable:
        raise EnvironmentFault(
            f"rollout {rollout['index']} cannot be taken up after step {len(steps)} by another run of the "
            "graph: its environment is not replayable"
        )
    for step, (said, _) in zip(steps, turns(rollout), strict=True):
        result = await settled(environment.step(str(read_action(said, options))))
        if observation_hash(result.observation) != step["observation_hash"]:
            raise EnvironmentFault(
                f"rollout {rollout['index']} cannot be taken up: its environment is declared replayable, but "
                f"answered step {step['index']} differently when it was taken again"
            )
        world.admissible = result.admissible
    return world


async def settled(reply: T | Awaitable[T]) -> T:
    """Environments may be plain or asynchronous."""
    return await reply if inspect.isawaitable(reply) else reply
