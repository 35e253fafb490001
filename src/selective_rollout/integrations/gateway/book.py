"""All groups behind the gateway, by client scope and id, in bounded memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from selective_rollout.draws import is_audited
from selective_rollout.engine.rule import warn_of_alarm
from selective_rollout.errors import GroupError
from selective_rollout.gate.audit import Seen
from selective_rollout.integrations.gateway.address import Address
from selective_rollout.integrations.gateway.config import GatewayConfig
from selective_rollout.integrations.gateway.desk import Desk, GroupFacts, Write
from selective_rollout.rewards import group_label
from selective_rollout.types import Group, Mode, Rollout

_MOST_FORGOTTEN: Final = 200_000


class Book:
    """Opens groups, finds them, and lets go of them.

    Args:
        config: how the gateway is set up.
        write: takes the events of the trace.
        clock: seconds that never go backwards.
    """

    def __init__(
        self, config: GatewayConfig, write: Write, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._write = write
        self.clock = clock
        self._open: dict[str, Desk] = {}
        self._ended: OrderedDict[str, Desk] = OrderedDict()
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        """Ids that were used and are no longer known; using one again would garble the trace."""
        self._begun = 0
        self._open_rollouts = self._ended_rollouts = 0
        self.closed = False
        """Whether new groups are no longer taken, since nothing can be recorded."""
        self._reviewed: set[str] = set()
        """Ended groups, among those still known, that the alarm has heard of."""

    def __iter__(self) -> Iterator[Desk]:
        """Open groups first, then those that have ended, the most recent first."""
        yield from self._open.values()
        yield from reversed(self._ended.values())

    @property
    def open_count(self) -> int:
        """Groups under way."""
        return len(self._open)

    @property
    def ended_count(self) -> int:
        """Groups that have ended and are still known."""
        return len(self._ended)

    def find(self, scope: str, name: str) -> Desk | None:
        """A group that is known."""
        key = f"{scope}/{name}" if scope else name
        desk = self._open.get(key)
        if desk is None and (desk := self._ended.get(key)) is not None:
            self._ended.move_to_end(key)
        return desk

    def seat(self, scope: str, address: Address) -> Desk | None:
        """The group of a request, opened if it is new.

        Returns:
            None if the request is passed on unrecorded: too many groups are open, or this one is long over.

        Raises:
            GroupError: the group has another size or task.
        """
        desk = self.find(scope, address.group)
        if desk is None:
            return self.declare(scope, address.group, address.size, address.task, {})
        facts = desk.facts
        if facts.size != address.size:
            raise GroupError(f"group {facts.name!r} has size {facts.size}, not {address.size}")
        if address.task is not None and address.task != facts.task_id:
            raise GroupError(f"group {facts.name!r} belongs to task {facts.task_id!r}, not {address.task!r}")
        return desk

    def declare(
        self, scope: str, name: str, size: int, task: str | None, metadata: Mapping[str, Any]
    ) -> Desk | None:
        """Open a new group; None if there is no room, or the id was used before."""
        key = f"{scope}/{name}" if scope else name
        if self.closed or not self._has_room(size) or key in self._forgotten:
            return None
        run = self._config.run
        mode: Mode = "observe" if self._config.alarm is not None and self._config.alarm.rung else run.mode
        facts = GroupFacts(
            scope=scope,
            name=name,
            size=size,
            task_id=task or key,
            mode=mode,
            audited=mode == "enforce" and is_audited(run.seed, key, run.audit_rate),
            metadata=metadata,
            place=self._begun,
        )
        self._begun += 1
        return self.take(Desk(facts, self._config, self._write, self.clock()))

    def take(self, desk: Desk) -> Desk:
        """Keep a group, also one that a trace holds."""
        if desk.ended:
            self._ended[desk.facts.trace_id] = desk
            self._ended_rollouts += desk.facts.size
        else:
            self._open[desk.facts.trace_id] = desk
            self._open_rollouts += desk.facts.size
        return desk

    def forget(self, trace_id: str) -> None:
        """Remember of a group only that its id is used."""
        self._forgotten[trace_id] = None
        while len(self._forgotten) > _MOST_FORGOTTEN:
            self._forgotten.popitem(last=False)

    def settle(self, desk: Desk) -> None:
        """File a group that has ended under those, and tell the alarm of it once its rewards are known."""
        if not desk.ended:
            return
        if self._open.pop(desk.facts.trace_id, None) is not None:
            self._open_rollouts -= desk.facts.size
            self.take(desk)
            limits = self._config.limits
            while len(self._ended) > limits.ended_groups or self._ended_rollouts > 4 * limits.open_rollouts:
                self._leave(next(iter(self._ended)))
        scored = all(m.reward is not None for m in desk.members if m.status.ended_normally)
        if scored or desk.cut_as is not None:
            self._review(desk)

    def sweep(self) -> None:
        """End what has fallen silent, and let go of what ended long ago."""
        now = self.clock()
        for desk in tuple(self._open.values()):
            desk.sweep(now)
            self.settle(desk)
        old = now - self._config.limits.ended_ttl_s
        for key, desk in tuple(self._ended.items()):
            if max(desk.touched_at, desk.ended_at or 0.0) < old:
                self._leave(key)

    def _has_room(self, size: int) -> bool:
        limits = self._config.limits
        return len(self._open) < limits.open_groups and self._open_rollouts + size <= limits.open_rollouts

    def _leave(self, key: str) -> None:
        desk = self._ended.pop(key)
        self._ended_rollouts -= desk.facts.size
        self._review(desk)
        self._reviewed.discard(key)
        self.forget(key)

    def _review(self, desk: Desk) -> None:
        """Tell the alarm of a group, once; those of an earlier process take no part."""
        alarm, key = self._config.alarm, desk.facts.trace_id
        if alarm is None or desk.facts.place < 0 or key in self._reviewed:
            return
        self._reviewed.add(key)
        rung = alarm.rung
        if alarm.note(desk.facts.place, _seen(desk, self._config)) and not rung:
            warn_of_alarm(alarm, stacklevel=2)


def _seen(desk: Desk, config: GatewayConfig) -> Seen:
    """What the audits learn from a group whose rewards have come, or never will."""
    rollouts = tuple(Rollout(m.index, (), m.status, m.reward) for m in desk.members)
    group = Group(desk.facts.trace_id, desk.facts.size, rollouts, desk.facts.task_id)
    label = group_label(group, tolerance=config.rule.reward_tolerance)
    fired = desk.gate.fired is not None and not desk.control.verdict().late_veto
    cut = desk.cut_as is not None
    return Seen(cut, desk.facts.audited and fired and not cut, label.zero_variance)
