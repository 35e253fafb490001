"""One recorded rollout, read in full."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from selective_rollout.actions import RawAction
from selective_rollout.actions.parse import call_from_text
from selective_rollout.errors import TraceError
from selective_rollout.rewards import parse_reward
from selective_rollout.trace.importers.columns import ABSENT, Columns, Record
from selective_rollout.trace.importers.settle import Settled, Symbol, settle
from selective_rollout.trace.importers.status import ending
from selective_rollout.trace.importers.tokens import completion_sum, read_usage, token_count, total
from selective_rollout.trace.importers.turns import (
    Reading,
    Turn,
    each_of,
    read_turns,
    text_of,
)
from selective_rollout.types import Rollout, RolloutStatus, Usage

AnswerFn = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class ImportedRollout(Rollout):
    """A rollout with what the trace wants to know beyond it.

    Attributes:
        where: file:line of its record.
        source_id: its id at the source, None if it has none.
        attempt: number of the attempt, None if the source does not number them.
        lost: tokens of a last completion that became no step.
        wasted: completion tokens known of turns that became no step.
        total: tokens of the whole rollout, where the source tells no more.
        left_out: the reward of a rollout that infrastructure lost or a gate stopped.
    """

    where: str = ""
    source_id: str | None = None
    attempt: int | None = None
    lost: Usage | None = None
    wasted: int = 0
    total: Usage | None = None
    retried: int = 0
    ghosts: int = 0
    left_out: float | None = None

    @property
    def completion_tokens(self) -> int:
        """Completion tokens known to have been generated for this attempt."""
        if self.total is not None:
            return completion_sum([self.total])
        return completion_sum([*(step.usage for step in self.steps), self.lost]) + self.wasted


@dataclass(frozen=True, slots=True)
class RolloutReader:
    """Reads rollouts out of records.

    Attributes:
        columns: which columns mean what.
        reading: how actions are read.
        symbol: makes their canonical symbols.
        reward_key: key of rewards that are objects.
        answer_fn: makes an answer of a text, in a form that equal answers share.
        answers_in_text: the last message of a conversation states the answer.
    """

    columns: Columns
    reading: Reading
    symbol: Symbol
    reward_key: str | None
    answer_fn: AnswerFn
    answers_in_text: bool

    def read(self, record: Record, where: str) -> ImportedRollout:
        """Read one record.

        Raises:
            TraceError: a column cannot be read; the message starts with file:line.
            RewardError: the reward cannot be read as one number.
        """
        try:
            return self._read(record, where)
        except RecursionError:
            raise TraceError(f"{where}: nested too deeply") from None

    def _read(self, record: Record, where: str) -> ImportedRollout:
        turns = self._turns(record, where)
        totals = self._tokens(record, turns or [], where)
        settled = settle(turns or [], self.symbol)
        reward = self._reward(record, where)
        status, failure = ending(
            self.columns.get("status", record),
            self.columns.get("error", record),
            acted=None if turns is None else bool(turns),
            scored=reward is not None,
            declared=self.columns.statuses,
            where=where,
        )
        if settled.cut_off and status.ended_normally:
            status = RolloutStatus.TRUNCATED
        keeps_reward = status.ended_normally
        return ImportedRollout(
            index=0,
            steps=settled.steps,
            status=status,
            reward=reward if keeps_reward else None,
            answer=self._answer(record, turns or [], settled) if keeps_reward else None,
            failure=failure,
            where=where,
            source_id=self.columns.identity("rollout", record, where),
            attempt=token_count(self.columns.get("attempt", record), f"{where}: attempt"),
            lost=settled.lost,
            wasted=settled.wasted,
            total=totals,
            retried=settled.retried,
            ghosts=settled.ghosts,
            left_out=None if keeps_reward else reward,
        )

    def _turns(self, record: Record, where: str) -> list[Turn] | None:
        """The turns; None if the record has no column of actions at all."""
        value = self.columns.value("actions", record)
        if value is ABSENT:
            return None
        turns = read_turns(value, self.reading, where)
        for role, put in _PER_TURN.items():
            given = self.columns.get(role, record)
            if given is None:
                continue
            if role == "finish_reason" and isinstance(given, str) and not given.startswith("["):
                given = [None] * len(turns[1:]) + [given] * len(turns[-1:])  # the rollout's is its last one's
            for turn, item in each_of(given, turns, f"{where}: {role}"):
                put(turn, item)
        return turns

    def _tokens(self, record: Record, turns: list[Turn], where: str) -> Usage | None:
        """Book tokens per turn where they are told per turn; return totals where they are not."""
        value = self.columns.get("tokens", record)
        if value is None:
            return None
        place = f"{where}: tokens"
        if isinstance(value, list):
            for turn, item in each_of(value, turns, place):
                turn.usage = read_usage(item, place)
            return None
        if total(turn.usage for turn in turns) is not None:
            return None
        usage = read_usage(value, place)
        if len(turns) != 1:
            return usage
        turns[0].usage = usage
        return None

    def _reward(self, record: Record, where: str) -> float | None:
        values = self.columns.each("reward", record).values()
        rewards = [parse_reward(value, reward_key=self.reward_key, where=where) for value in values]
        scored = [reward for reward in rewards if reward is not None]
        return math.fsum(scored) if scored else None

    def _answer(self, record: Record, turns: list[Turn], settled: Settled) -> str | None:
        given = self.columns.value("answer", record)
        if given is not ABSENT:
            return None if given is None else self.answer_fn(given if isinstance(given, str) else str(given))
        if not (self.answers_in_text and turns and not settled.cut_off):
            return None
        last = turns[-1]
        return self.answer_fn(last.completion) if last.completion and not last.action.calls else None


def _put_observation(turn: Turn, value: Any) -> None:
    turn.observation = None if value is None else text_of(value)


def _put_is_error(turn: Turn, value: Any) -> None:
    turn.is_error = value if isinstance(value, bool) else None


def _put_finish_reason(turn: Turn, value: Any) -> None:
    turn.finish_reason = value if isinstance(value, str) and value else turn.finish_reason


def _put_tool(turn: Turn, value: Any) -> None:
    """Name the tool of an action that consists of its arguments only."""
    text = turn.action.text
    if isinstance(value, str) and value and not turn.action.calls and not text.startswith(f"{value}("):
        turn.action = RawAction(calls=(call_from_text(value, text),))


_PER_TURN: Final = {
    "observations": _put_observation,
    "is_error": _put_is_error,
    "finish_reason": _put_finish_reason,
    "tools": _put_tool,
}
