"""The exact vote: stop once the leading answer cannot be overtaken.

Lossless by construction: whatever the members still out would answer, the full vote's winner is known. Run
all at once it saves little, since members end together, so the group runs in two waves: a bare majority
first, the rest only if the outcome is still open.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

from selective_rollout.engine.hold import Verdict
from selective_rollout.engine.survivor import survivor_order
from selective_rollout.gate.decision import GateDecision
from selective_rollout.gate.group import GroupGate
from selective_rollout.gate.vote import first_wave, plurality, unassailable
from selective_rollout.types import Rollout


def full_vote(gate: GroupGate, rollouts: Iterable[Rollout]) -> str | None:
    """The answer of a group that ran to its end: its members' vote at inference, none in training."""
    if gate.config.outcome == "drop":
        return None
    cast = {rollout.index: rollout.answer for rollout in rollouts if rollout.answer is not None}
    return plurality(cast, survivor_order(gate.group_id, gate.size))


class VoteControl:
    """Runs a group in two waves and stops it as soon as the vote is decided.

    Args:
        group_id: draws who belongs to the first wave, and breaks ties.
        size: rollouts of the group.
        on_stop: called with each member whose work in flight has to stop now.
    """

    def __init__(self, group_id: str, size: int, on_stop: Callable[[int], None]) -> None:
        self.winner: str | None = None
        self._on_stop = on_stop
        self._order = survivor_order(group_id, size)
        self._first_wave = frozenset(first_wave(self._order))
        self._running = set(range(size))
        self._answers: dict[int, str] = {}
        self._stopped = False
        self._changed = asyncio.Event()

    @property
    def votes(self) -> Counter[str]:
        """Votes cast so far."""
        return Counter(self._answers.values())

    @property
    def decided(self) -> bool:
        """Whether the outcome is known although members are still out."""
        return self.winner is not None

    @property
    def answer(self) -> str | None:
        """The winner, or the leader of an undecided vote; None without votes."""
        return self.winner if self.winner is not None else plurality(self._answers, self._order)

    def verdict(self) -> Verdict:
        """What came of it; asked once every member has ended."""
        return Verdict(stopped=self._stopped, answer=self.answer)

    async def permit(self, rollout: int) -> bool:
        """Wait for the rollout's wave; False once the vote is decided."""
        while not self.decided and rollout not in self._first_wave and self._first_wave & self._running:
            await self._changed.wait()
        return not self.decided

    def note(self, decision: GateDecision) -> None:
        """The distance plays no part in an exact vote."""

    def note_stream(self) -> None:
        """Neither does that of the streams."""

    def ended(self, rollout: int, *, failed: bool, answer: str | None) -> None:
        """Count a vote; a member without an answer has none."""
        self._running.discard(rollout)
        if answer is not None and not failed:
            self._answers[rollout] = answer
        if not self.decided and self._running:
            self.winner = unassailable(self.votes, len(self._running))
            if self.decided:
                self._stopped = True
                for member in sorted(self._running):
                    self._on_stop(member)
        self._changed.set()
        self._changed = asyncio.Event()
