"""`GateRegistry`: many groups at once on one event loop.

A thin asyncio facade over `GroupGate` for loops that do not own the group, such as a trainer's rollout
workers: a member reports and goes on, and whoever can stop the group awaits `wait_stopped`. Nothing here
waits for siblings, and memory is bounded by the number of open groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from selective_rollout.errors import GroupError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import GateDecision
from selective_rollout.gate.group import GroupGate
from selective_rollout.types import SamplingInfo


@dataclass(slots=True)
class _OpenGroup:
    gate: GroupGate
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the group has fired or can never fire."""


class GateRegistry:
    """Open groups by explicit id.

    Args:
        config: the rule of every group.
        max_open: most groups open at once; a group that is never closed must not leak without a word.
    """

    def __init__(self, config: GateConfig, *, max_open: int = 10_000) -> None:
        self.config = config
        self._max_open = max_open
        self._groups: dict[str, _OpenGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def open(
        self,
        group_id: str,
        size: int,
        *,
        sampling: Sequence[SamplingInfo] | None = None,
        history: Sequence[float] | None = None,
        history_p: float | None = None,
        tau: float | None = None,
    ) -> GroupGate:
        """Start watching a group. Opening an open group again, with the same size, returns its gate.

        Raises:
            GroupError: the id is open with another size, or `max_open` groups are open.
        """
        known = self._groups.get(group_id)
        if known is not None:
            if known.gate.size != size:
                raise GroupError(
                    f"group {group_id!r} is open with {known.gate.size} rollouts, not with {size}"
                )
            return known.gate
        if len(self._groups) >= self._max_open:
            raise GroupError(
                f"group {group_id!r}: {self._max_open} groups are open; close those that have ended, "
                "or raise max_open"
            )
        gate = GroupGate(
            self.config,
            size,
            group_id=group_id,
            sampling=sampling,
            history=history,
            history_p=history_p,
            tau=tau,
        )
        self._groups[group_id] = _OpenGroup(gate)
        return gate

    def report(
        self,
        group_id: str,
        rollout: int,
        action: Hashable,
        *,
        observation: str | None = None,
        state_key: str | None = None,
        is_error: bool | None = None,
    ) -> GateDecision:
        """Append one action; see `GroupGate.report`.

        Raises:
            GroupError: the group is not open, or the rollout unknown or ended.
        """
        group = self._open_group(group_id)
        decision = group.gate.report(
            rollout, action, observation=observation, state_key=state_key, is_error=is_error
        )
        return self._noted(group, decision)

    def finish(
        self,
        group_id: str,
        rollout: int,
        reward: object = None,
        answer: str | None = None,
        *,
        action: Hashable | None = None,
        observation: str | None = None,
        state_key: str | None = None,
        is_error: bool | None = None,
    ) -> GateDecision:
        """End a rollout normally; see `GroupGate.finish`.

        Raises:
            GroupError: the group is not open, or the rollout unknown or ended.
        """
        group = self._open_group(group_id)
        decision = group.gate.finish(
            rollout,
            reward,
            answer,
            action=action,
            observation=observation,
            state_key=state_key,
            is_error=is_error,
        )
        return self._noted(group, decision)

    def fail(self, group_id: str, rollout: int) -> GateDecision:
        """Mark a rollout as broken; see `GroupGate.fail`.

        Raises:
            GroupError: the group is not open, or the rollout unknown or ended.
        """
        group = self._open_group(group_id)
        return self._noted(group, group.gate.fail(rollout))

    async def wait_stopped(self, group_id: str) -> GateDecision:
        """Wait until the group's word is final: it fired, cannot fire any more, or was closed.

        Raises:
            GroupError: the group is not open.
        """
        group = self._open_group(group_id)
        await group.settled.wait()
        return group.gate.confirm()

    def close(self, group_id: str) -> GroupGate:
        """Stop watching a group and wake whoever waits for it; returns the gate with all it decided.

        Raises:
            GroupError: the group is not open.
        """
        group = self._open_group(group_id)
        del self._groups[group_id]
        if group.gate.fired is None:
            group.gate.disable()
        group.settled.set()
        return group.gate

    def _noted(self, group: _OpenGroup, decision: GateDecision) -> GateDecision:
        if decision.fires or group.gate.next_check is None:
            group.settled.set()
        return decision

    def _open_group(self, group_id: str) -> _OpenGroup:
        group = self._groups.get(group_id)
        if group is None:
            raise GroupError(f"group {group_id!r} is not open; open it with its size before reporting")
        return group
