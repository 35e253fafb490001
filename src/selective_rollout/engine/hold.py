"""Who may take the next step: holding at a check, cutting, parking, and the survivor's turn.

Each member asks `permit` before every step and reports its end. No slot, thread or request is held while a
member waits here. Parked members are closed only once the survivor has answered, so that another one can take
over if the survivor breaks.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from selective_rollout.engine.survivor import first_of, survivor_order
from selective_rollout.gate.decision import GateDecision, Reason
from selective_rollout.gate.group import GroupGate
from selective_rollout.gate.streaming import StreamGate
from selective_rollout.types import Hold

T = TypeVar("T")


class Word(enum.Enum):
    """What a member is told when it asks for its next step."""

    GO = enum.auto()
    WAIT = enum.auto()
    STOP = enum.auto()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a control did to its group, once every member has ended."""

    stopped: bool = False
    """Whether anything was cut short."""
    cut_at: int | None = None
    stream_cut_at: int | None = None
    """Position, in symbols, of the stream gate's decision that was carried out."""
    late_veto: bool = False
    survivor: int | None = None
    answer: str | None = None


class Control(Protocol):
    """Steers the members of one group."""

    async def permit(self, rollout: int) -> bool:
        """Wait until the rollout may take its next step; False: it is stopped for good."""

    def note(self, decision: GateDecision) -> None:
        """React to what the gate said."""

    def note_stream(self) -> None:
        """React to what the group's stream gate said, if it has one."""

    def ended(self, rollout: int, *, failed: bool, answer: str | None) -> None:
        """A member ended on its own."""

    def verdict(self) -> Verdict:
        """What came of it; asked once every member has ended."""


@dataclass(slots=True)
class _Member:
    ended: bool = False
    failed: bool = False
    answer: str | None = None


class GateControl:
    """Carries out a gate's decisions on one group.

    Args:
        gate: the group's gate.
        hold: who waits at a check.
        enforce: False (observe mode, audited groups): nobody is held or stopped.
        on_stop: called with each member whose work in flight, late scoring included, has to stop now.
        stream: the group's gate over its streams, if they are watched.
        timeout_s: longest hold; then everybody is released and the gate is off for the group.
    """

    def __init__(
        self,
        gate: GroupGate,
        *,
        hold: Hold,
        enforce: bool,
        on_stop: Callable[[int], None],
        stream: StreamGate | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        self._cut: GateDecision | None = None
        self._cut_by_stream = False
        self._late_veto = False
        self._survivor: int | None = None
        self._gate = gate
        self._stream = stream
        self._stream_noted = False
        self._hold = hold
        self._enforce = enforce
        self._on_stop = on_stop
        self._timeout_s = timeout_s
        self._order = survivor_order(gate.group_id, gate.size)
        self._members = [_Member() for _ in range(gate.size)]
        self._answered = False
        self._changed = asyncio.Event()

    async def permit(self, rollout: int) -> bool:
        """Wait until the rollout may take its next step; False: it is stopped for good."""
        held_since: float | None = None
        while (word := self._word(rollout)) is Word.WAIT:
            if self._cut is not None:
                await self._changed.wait()
                continue
            held_since = time.monotonic() if held_since is None else held_since
            if not await self._change_within(held_since + self._timeout_s - time.monotonic()):
                self._gate.disable()
                if self._stream is not None:
                    self._stream.disable()
                self._notify()
        return word is Word.GO

    def note(self, decision: GateDecision) -> None:
        """Carry out a decision that fires; wake the held members after any that was made."""
        if decision.fires and self._enforce and self._cut is None:
            confirmed = self._gate.confirm()
            self._late_veto |= confirmed.reason is Reason.LATE_VETO
            if confirmed.fires:
                if self._stream is not None:
                    self._stream.disable()
                self._carry_out(confirmed)
        self._notify()

    def note_stream(self) -> None:
        """Carry out the stream gate's decision if it has fired; members are stopped in mid-sentence."""
        if self._stream is None or self._stream.fired is None or self._stream_noted:
            return
        self._stream_noted = True
        if self._enforce and self._cut is None:
            confirmed = self._stream.confirm()
            self._late_veto |= confirmed.reason is Reason.LATE_VETO
            if confirmed.fires:
                self._cut_by_stream = True
                self._carry_out(confirmed)
        self._notify()

    def ended(self, rollout: int, *, failed: bool, answer: str | None) -> None:
        """A member ended on its own; a survivor that failed is replaced by the next in order."""
        member = self._members[rollout]
        member.ended, member.failed, member.answer = True, failed, answer
        if self._cut is not None and rollout == self._survivor:
            self._choose_survivor(self._cut)
        self._notify()

    def verdict(self) -> Verdict:
        """What came of it; asked once every member has ended."""
        cut_at = self._cut.step if self._cut is not None else None
        return Verdict(
            stopped=self._cut is not None,
            cut_at=None if self._cut_by_stream else cut_at,
            stream_cut_at=cut_at if self._cut_by_stream else None,
            late_veto=self._late_veto and self._cut is None,
            survivor=self._survivor,
            answer=self._members[self._survivor].answer if self._survivor is not None else None,
        )

    def _word(self, rollout: int) -> Word:
        if self._cut is None:
            return Word.WAIT if self._is_held(rollout) else Word.GO
        if self._gate.config.outcome == "drop" or self._answered:
            return Word.STOP
        return Word.GO if rollout == self._survivor else Word.WAIT

    def _is_held(self, rollout: int) -> bool:
        check = self._gate.next_check
        if not self._enforce or self._hold == "none" or check is None:
            return False
        if self._gate.actions_of(rollout) < check:
            return False
        return self._hold == "all" or rollout != self._leader()

    def _leader(self) -> int | None:
        return first_of(self._order, [i for i, member in enumerate(self._members) if not member.failed])

    def _carry_out(self, decision: GateDecision) -> None:
        self._cut = decision
        if self._gate.config.outcome != "drop":
            self._choose_survivor(decision)
        for rollout in range(len(self._members)):
            if self._word(rollout) is not Word.GO:
                self._on_stop(rollout)

    def _choose_survivor(self, decision: GateDecision) -> None:
        present = decision.facts.members if decision.facts is not None else ()
        sound = [rollout for rollout in present if not self._members[rollout].failed]
        self._survivor = first_of(self._order, sound)
        self._answered = self._survivor is None or self._members[self._survivor].ended

    async def _change_within(self, seconds: float) -> bool:
        # Not wait_for: on Python 3.11 it drops a cancellation that comes in the same turn as the wake-up.
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def off_the_clock(limit: asyncio.Timeout | None, waiting: Coroutine[Any, Any, T]) -> T:
    """Wait for slower siblings; the time it takes is added to the limit of whoever waits."""
    deadline = limit.when() if limit is not None else None
    if limit is None or deadline is None:
        return await waiting
    clock = asyncio.get_running_loop()
    asked = clock.time()
    limit.reschedule(None)
    try:
        return await waiting
    finally:
        limit.reschedule(deadline + clock.time() - asked)
