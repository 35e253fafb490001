"""A group whose members run in different processes: they report to one coordinator.

The coordinator owns the gate and the groups; `RemoteMember` is a member's side of it. Between them is a
`Link`, which carries plain calls: to an actor of Ray, or to whatever else answers. Nobody ever waits for a
process that is gone: without its coordinator a member runs on as if there were no gate, and a member that is
not heard of for `lease_s` ends the gate for its group.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, Unpack, cast

from selective_rollout.engine.training.gate import TrainingGate
from selective_rollout.engine.training.group import Facts, TrainingGroup
from selective_rollout.engine.training.guard import guarded
from selective_rollout.errors import ConfigError
from selective_rollout.types import SamplingInfo

Link: TypeAlias = Callable[..., Awaitable[Any]]
"""`link(method, *arguments)` calls the coordinator; raises ConnectionError if it is gone."""

Word: TypeAlias = Literal["running", "cut", "kept", "off"]
"""What became of a group; off: nobody watches it any more, and it is not cut."""

_REMEMBERED: Final = 4096


class CoordinatorLostWarning(UserWarning):
    """The coordinator of the gate is gone: rollouts run on without one."""


@dataclass(slots=True)
class _Place:
    group: TrainingGroup
    heard: dict[int, float]
    """When each member that has not left was last heard of, in seconds; till it joins, since the opening."""
    running: set[int]
    """Members that have not ended."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Coordinator:
    """Keeps the groups of members elsewhere; use it from one event loop.

    Args:
        gate: opens the groups.
        lease_s: a member that is silent for longer is gone.
    """

    def __init__(self, gate: TrainingGate, *, lease_s: float = 60.0) -> None:
        self.gate = gate
        self._lease_s = lease_s
        self._places: dict[str, _Place] = {}
        self._ended: OrderedDict[str, Word] = OrderedDict()

    async def join(
        self,
        group_id: str,
        rollout: int,
        size: int,
        task_id: str | None = None,
        sampling: Sequence[SamplingInfo] | None = None,
    ) -> None:
        """A member begins; the first one opens the group. See `TrainingGate.open`."""
        self._end_the_silent()
        if group_id not in self._ended and group_id not in self._places:
            group = self.gate.open(group_id, size, task_id=task_id, sampling=sampling)
            self._places[group_id] = _Place(
                group, dict.fromkeys(range(size), time.monotonic()), set(range(size))
            )
        self._hear(group_id, rollout)

    async def step(self, group_id: str, rollout: int, action: str, facts: Facts) -> bool:
        """See `TrainingGroup.step`; True, too, for a group that nobody watches."""
        place = self._hear(group_id, rollout)
        if place is None:
            return self._ended.get(group_id) != "cut"
        go_on = place.group.step(rollout, action, **facts)
        if not go_on:
            place.changed.set()
        return go_on

    async def finish(
        self,
        group_id: str,
        rollout: int,
        reward: object,
        answer: str | None,
        truncated: bool,
        action: str | None,
        facts: Facts,
    ) -> None:
        """See `TrainingGroup.finish`."""
        if (place := self._hear(group_id, rollout)) is not None:
            place.group.finish(rollout, reward, answer, truncated=truncated, action=action, **facts)
            self._note_end(place, rollout)

    async def score(self, group_id: str, rollout: int, reward: object) -> None:
        """See `TrainingGroup.score`."""
        if (place := self._hear(group_id, rollout)) is not None:
            place.group.score(rollout, reward)

    async def fail(self, group_id: str, rollout: int, kind: str, message: str) -> None:
        """See `TrainingGroup.fail`."""
        if (place := self._hear(group_id, rollout)) is not None:
            place.group.fail(rollout, kind, message)
            self._note_end(place, rollout)

    async def leave(self, group_id: str, rollout: int) -> None:
        """A member runs no more, however it ended; the last one closes the group."""
        place = self._places.get(group_id)
        if place is not None:
            place.heard.pop(rollout, None)
            self._note_end(place, rollout)
            if not place.heard:
                self._end(group_id, "cut" if place.group.stopped else "kept")

    async def watch(self, group_id: str, rollout: int, wait_s: float) -> Word:
        """Wait for news of the group, at most so long. Members renew their lease by asking."""
        place = self._hear(group_id, rollout)
        if place is not None and place.running and not place.group.stopped:
            try:
                await asyncio.wait_for(place.changed.wait(), wait_s)
            except TimeoutError:
                self._end_the_silent()
        if group_id in self._ended:
            return self._ended[group_id]
        place = self._places.get(group_id)
        if place is None:
            return "off"
        if place.group.stopped:
            return "cut"
        return "running" if place.running else "kept"

    def _hear(self, group_id: str, rollout: int) -> _Place | None:
        place = self._places.get(group_id)
        if place is not None and rollout in place.heard:
            place.heard[rollout] = time.monotonic()
        return place

    def _note_end(self, place: _Place, rollout: int) -> None:
        place.running.discard(rollout)
        if place.group.stopped or not place.running:
            place.changed.set()

    def _end_the_silent(self) -> None:
        """Give up the groups of members that are gone; what they recorded stays."""
        oldest = time.monotonic() - self._lease_s
        for group_id, place in list(self._places.items()):
            if min(place.heard.values()) < oldest:
                self._end(group_id, "cut" if place.group.stopped else "off")

    def _end(self, group_id: str, word: Word) -> None:
        place = self._places.pop(group_id)
        place.group.close()
        place.changed.set()
        self._ended[group_id] = word
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)


class RemoteMember:
    """One rollout of a group that is kept elsewhere; `async with` joins and leaves.

    Args:
        link: calls the coordinator.
        group_id: explicit identity, unique over the run.
        rollout: 0-based index in the group.
        size: rollouts of the group.
        task_id: see `TrainingGate.open`.
        sampling: see `TrainingGate.open`; the first member's word counts.
        wait_s: how long one question for news stays open; well below the coordinator's lease.
        patience_s: an answer that takes longer is as good as none.

    Raises:
        ConfigError: patience_s is not above wait_s.
    """

    def __init__(
        self,
        link: Link,
        group_id: str,
        rollout: int,
        size: int,
        *,
        task_id: str | None = None,
        sampling: Sequence[SamplingInfo] | None = None,
        wait_s: float = 10.0,
        patience_s: float = 30.0,
    ) -> None:
        if patience_s <= wait_s:
            raise ConfigError(f"patience_s must be above wait_s={wait_s:g}, not {patience_s:g}")
        self.id = group_id
        self.rollout = rollout
        self.stopped = False
        """Whether the group was cut: this rollout must not go on."""
        self.watched = True
        """Whether the coordinator still answers, and has not given the group up."""
        self._link = link
        self._opening = (size, task_id, sampling)
        self._wait_s = wait_s
        self._patience_s = patience_s
        self._scored_later = False
        self._on_stop: Callable[[], None] | None = None
        self._word: Word = "running"
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> RemoteMember:
        await self._ask("join", *self._opening)
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._watching is not None
        self._watching.cancel()
        await asyncio.wait([self._watching])
        if not self._scored_later:
            await self._ask("leave")

    async def step(self, action: str, **facts: Unpack[Facts]) -> bool:
        """See `TrainingGroup.step`; True, too, if nobody watches."""
        if await self._ask("step", action, facts, otherwise=True) is False:
            self._stop()
        return not self.stopped

    async def finish(
        self,
        reward: object = None,
        answer: str | None = None,
        *,
        truncated: bool = False,
        action: str | None = None,
        **facts: Unpack[Facts],
    ) -> None:
        """See `TrainingGroup.finish`."""
        await self._ask("finish", reward, answer, truncated, action, facts)

    async def fail(self, kind: str, message: str = "") -> None:
        """See `TrainingGroup.fail`."""
        await self._ask("fail", kind, message)

    async def kept(self, *, scored_later: bool = False) -> bool:
        """Once this rollout is done: wait until no member runs any more, or the group is cut or given up.

        Members hear the same answer, unless the coordinator dies in between.

        Args:
            scored_later: of a rollout that has finished: `score` is called once its reward is known. The
                group waits for that no longer than the lease.
        """
        if not scored_later:
            await self._ask("leave")
        assert self._watching is not None
        await asyncio.wait([self._watching])
        self._scored_later = scored_later and not self.stopped
        return not self.stopped

    async def score(self, reward: object) -> None:
        """Tell the reward of a kept rollout, after `kept(scored_later=True)`; it leaves with that."""
        await self._ask("score", reward)
        await self._ask("leave")

    @asynccontextmanager
    async def guarded(self) -> AsyncIterator[None]:
        """See `engine.training.guarded`."""
        # It asks for no more of a group than its id, whether it is stopped, and to be told.
        async with guarded(cast(TrainingGroup, self), self.rollout):
            yield

    def on_stop(self, rollout: int, callback: Callable[[], None] | None) -> None:
        """Have a function called when the group is cut; None takes it back."""
        self._on_stop = callback

    async def _watch(self) -> None:
        while self._word == "running" and self.watched:
            self._word = await self._ask("watch", self._wait_s, otherwise="off")
        if self._word == "cut":
            self._stop()
        elif self._word == "off":
            self.watched = False

    async def _ask(self, method: str, *arguments: Any, otherwise: Any = None) -> Any:
        if not self.watched:
            return otherwise
        try:
            async with asyncio.timeout(self._patience_s):
                return await self._link(method, self.id, self.rollout, *arguments)
        except (ConnectionError, TimeoutError) as error:
            self.watched = False
            reason = str(error) or "timeout"
            warnings.warn(
                f"the gate is off for group {self.id!r}: no answer from its coordinator ({reason})",
                CoordinatorLostWarning,
                stacklevel=3,
            )
            return otherwise

    def _stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            if self._on_stop is not None:
                self._on_stop()
