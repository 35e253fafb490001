"""The engine: sequences of one request that advance together, one token per step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from selective_rollout.testing.counters import Counters, RequestRecord
from selective_rollout.testing.sequence import SequencePlan, Token

_HOLD_EVERY = 7
_SKIP_EVERY = 11


@dataclass(frozen=True, slots=True)
class Emission:
    """What one choice sends at one step."""

    index: int
    tokens: tuple[Token, ...]
    """Tokens not sent before; empty for a chunk without text."""
    completion_tokens: int
    """Tokens of this choice so far."""
    finish_reason: str | None = None
    stop_reason: str | None = None


class Choice:
    """One sequence on its way through its plan."""

    def __init__(self, index: int, plan: SequencePlan) -> None:
        self.index = index
        self.plan = plan
        self.position = 0
        """Tokens generated so far."""
        self.finish_reason: str | None = None
        self._sent = 0

    @property
    def tokens(self) -> tuple[Token, ...]:
        """Tokens generated so far."""
        return self.plan.tokens[: self.position]

    def advance(self, *, hold_back: bool) -> Emission | None:
        """Generate one token; None if nothing is sent for it yet.

        Args:
            hold_back: as vLLM's detokenizer does, wait with some text, and keep the last text for the chunk
                that carries the finish reason.
        """
        self.position += 1
        left = len(self.plan.tokens) - self.position
        if left == 0:
            self.finish_reason = self.plan.finish_reason
            return self._emit()
        if hold_back and left == 1 and self.plan.tokens[-1].kind == "eos":
            return None
        if hold_back and self.position % _HOLD_EVERY == 0:
            return Emission(self.index, (), self.position)
        return self._emit()

    def abort(self) -> Emission:
        """Stop here."""
        self.finish_reason = "abort"
        return self._emit()

    def _emit(self) -> Emission:
        tokens = self.plan.tokens[self._sent : self.position]
        self._sent = self.position
        stop_reason = self.plan.stop_reason if self.finish_reason == "stop" else None
        return Emission(self.index, tokens, self.position, self.finish_reason, stop_reason)


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take."""

    first_s: float
    """From the start to the first step."""
    step_s: float
    stall_after: int | None = None
    """Steps after which nothing moves any more."""


class Generation:
    """All sequences of one request.

    The first one begins one step before its siblings; with `uneven`, they drift further apart, and some
    text is held back for a later chunk. A stop takes effect at the end of the step being computed, whose
    tokens are generated and counted all the same.
    """

    def __init__(
        self,
        plans: Sequence[SequencePlan],
        pace: Pace,
        *,
        uneven: bool,
        counters: Counters,
        record: RequestRecord,
    ) -> None:
        self.choices = [Choice(index, plan) for index, plan in enumerate(plans)]
        self.steps_done = 0
        self._pace = pace
        self._drift = uneven and len(plans) > 1
        self._hold_back = uneven
        self._counters = counters
        self._record = record
        self._stop = asyncio.Event()
        self._cause: Literal["abort", "disconnect"] | None = None

    @property
    def done(self) -> bool:
        """Whether every sequence has ended by itself or by an abort."""
        return all(choice.finish_reason is not None for choice in self.choices)

    def stop(self, cause: Literal["abort", "disconnect"]) -> None:
        """Stop every sequence at the end of the current step."""
        self._cause = self._cause or cause
        self._stop.set()

    async def step(self) -> list[Emission] | None:
        """Compute one step; None once every sequence has ended."""
        live = [choice for choice in self.choices if choice.finish_reason is None]
        if not live:
            return None
        if self.steps_done == 0:
            await self._wait(self._pace.first_s)
        if self.steps_done == self._pace.stall_after:
            await self._stop.wait()
        if self._cause is not None:
            aborted = [choice.abort() for choice in live]
            return aborted if self._cause == "abort" else None
        await asyncio.sleep(self._pace.step_s)
        due = [choice for choice in live if self._is_due(choice)]
        self._counters.generated(self._record, len(due))
        emissions = [choice.advance(hold_back=self._hold_back) for choice in due]
        self.steps_done += 1
        for choice in due:
            if choice.finish_reason is not None:
                self._counters.ended(self._record, choice.finish_reason)
        return [emission for emission in emissions if emission is not None]

    def _is_due(self, choice: Choice) -> bool:
        if self.steps_done == 0:
            return choice.index == 0
        return not self._drift or (self.steps_done + 3 * choice.index) % _SKIP_EVERY != 0

    async def _wait(self, seconds: float) -> None:
        """Sleep, unless stopped before."""
        if seconds > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), seconds)
