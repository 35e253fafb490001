"""`run_group`: the rollouts of one task as a group with an identity of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from verifiers.v1 import Env, Episode, GroupInfo, ModelContext, Task, Trace
from verifiers.v1.configs.agent import agent_config_fields, resolve_agent

from selective_rollout.actions import DEFAULT_OPTIONS, ActionOptions
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.training import TrainingGate, TrainingGroup
from selective_rollout.errors import ConfigError
from selective_rollout.integrations.verifiers.seat import Seat, sampling_info
from selective_rollout.integrations.verifiers.task import gated

OnComplete: TypeAlias = Callable[[Episode], Awaitable[None]]
OnTrace: TypeAlias = Callable[[Trace], None]


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The rollouts of one task, and what the gate made of them."""

    episodes: tuple[Episode, ...]
    """As verifiers made them. Those of a cut group hold what was sampled until then; their rewards mean
    nothing, also where a member had finished before the cut."""
    outcome: GroupOutcome

    @property
    def trainable(self) -> bool:
        """False for a group that was cut: none of its episodes may reach a batch, metric or curriculum."""
        return self.outcome.trainable


async def run_group(
    gate: TrainingGate,
    env: Env,
    task: Task,
    ctx: ModelContext,
    *,
    group_id: str,
    size: int,
    agent: str | None = None,
    task_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    actions: ActionOptions = DEFAULT_OPTIONS,
    semaphore: asyncio.Semaphore | None = None,
    on_complete: OnComplete | None = None,
    on_trace: OnTrace | None = None,
) -> GroupResult:
    """Run `size` rollouts of a task side by side, gated as one group; inside `env.serving()`.

    The task needs no hook of its own. A cut breaks off the model calls in flight and refuses the next ones;
    tools that run are let end. An attempt that verifiers retries counts as failed; the next attempt decides
    nothing, and stops with the group.

    Args:
        gate: the run's gate.
        env: an environment of this process.
        task: the task.
        ctx: model, client and sampling.
        group_id: explicit identity, unique over the run; the same task may be run by several groups at once.
        size: rollouts of the group.
        agent: whose rollouts are compared, in an environment of several agents; their first run in each
            episode counts.
        task_id: the prompt's own identity; None: the task's key.
        metadata: declared facts, e.g. strata.
        actions: how messages become actions.
        semaphore: as of `Env.run_slot`. One that lets fewer than `size` run at once makes the gate wait for
            the last of them.
        on_complete: as of `Env.run_slot`; the episode carries its group.
        on_trace: as of `Env.run_slot`.

    Raises:
        ConfigError: the environment has several agents and none is named, or the named one is missing.
    """
    agent = _agent_of(env, agent)
    resolved = resolve_agent(agent_config_fields(env.config)[agent], sampling=ctx.sampling)
    slots = env.slots(gated(task), size)
    group = gate.open(
        group_id,
        size,
        task_id=task_id or task.key,
        sampling=[sampling_info(resolved.sampling)] * size,
        metadata=metadata,
    )
    members = [_Member(group, rollout, agent, actions, on_trace) for rollout in range(size)]

    async def completed(episode: Episode) -> None:
        episode.group = GroupInfo(id=group_id)
        if on_complete is not None:
            await on_complete(episode)

    try:
        episodes = await _all(
            member.watch(env.run_slot(slot, ctx, semaphore, completed, member.seat))
            for member, slot in zip(members, slots, strict=True)
        )
    finally:
        outcome = group.close([member.reward for member in members])
        for member in members:
            member.leave()
    return GroupResult(tuple(episodes), outcome)


class _Member:
    """The attempts of one rollout."""

    def __init__(
        self,
        group: TrainingGroup,
        rollout: int,
        agent: str,
        options: ActionOptions,
        on_trace: OnTrace | None,
    ) -> None:
        self._group = group
        self._rollout = rollout
        self._agent = agent
        self._options = options
        self._on_trace = on_trace
        self._seats: list[Seat] = []

    @property
    def reward(self) -> float | None:
        """What the attempt that counts was given."""
        return self._seats[0].reward if self._seats else None

    def seat(self, trace: Trace) -> None:
        """Take in an attempt."""
        if self._on_trace is not None:
            self._on_trace(trace)
        if trace.agent.name != self._agent:
            return
        if self._seats and not self._seats[0].ended:
            self._seats[0].fail("retried", "verifiers began another attempt")
        rollout = None if self._seats else self._rollout
        self._seats.append(Seat(self._group, rollout, trace, self._options))

    async def watch(self, episode: Coroutine[Any, Any, Episode]) -> Episode:
        """Wait for the episode, and tell the group how it ended if the trace did not."""
        try:
            result = await episode
        except BaseException:
            if self._seats and not self._seats[0].ended:
                self._seats[0].fail("abandoned", "the episode was cancelled, or raised")
            raise
        if self._seats:
            self._seats[0].end()
        else:
            self._group.fail(self._rollout, "no_rollout", f"agent {self._agent!r} was not run")
        return result

    def leave(self) -> None:
        """The group is closed."""
        for seat in self._seats:
            seat.leave()


async def _all(coroutines: Any) -> list[Episode]:
    """Run them side by side; if one raises, which verifiers does for bugs only, end the others first."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _agent_of(env: Env, agent: str | None) -> str:
    names = list(agent_config_fields(env.config))
    if agent is None and len(names) == 1:
        return names[0]
    if agent is None or agent not in names:
        raise ConfigError(
            f"{type(env).__name__} has the agents {', '.join(names)}: name the one whose rollouts are "
            f"compared, not {agent!r}"
        )
    return agent
