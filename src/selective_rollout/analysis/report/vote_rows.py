"""The ways to come by a group's answer side by side, in words: for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from selective_rollout.analysis.accounting import Amount
from selective_rollout.analysis.inference import Schedule
from selective_rollout.analysis.prices import money_text
from selective_rollout.analysis.report.inference import AnswerTotals
from selective_rollout.analysis.report.words import count, percent

_SCHEDULES: Final[dict[Schedule, str]] = {
    "parallel": "all at once",
    "two_waves": "in two waves",
    "one_at_a_time": "one at a time",
}


class Cell(NamedTuple):
    """A value, and what stands beside or below it in small print."""

    value: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.value} {self.note}".rstrip()


@dataclass(frozen=True, slots=True)
class VoteRow:
    """One way, and what it leaves ungenerated."""

    name: str
    stopped: Cell
    """Groups stopped early."""
    steps: Cell
    tokens: Cell
    money: Cell
    time: Cell
    """Steps taken one after another, relative to no gate; empty if an earlier row says it."""


def vote_rows(answers: AnswerTotals) -> list[VoteRow]:
    """No gate, the gate's survivor (lossless and lossy apart), and the exact rule under each schedule."""
    return [_no_gate(answers), *_survivor(answers), *_exact(answers)]


def _no_gate(answers: AnswerTotals) -> VoteRow:
    spent = answers.spent
    return VoteRow(
        "no gate",
        Cell("0", f"of {answers.groups:,}"),
        Cell("0", f"of {spent.steps:,}"),
        Cell("0", f"of {count(spent.known_tokens)}"),
        Cell("0", f"of {money_text(answers.money(spent))}"),
        _time(answers, answers.rounds),
    )


def _survivor(answers: AnswerTotals) -> Iterator[VoteRow]:
    time = _time(answers, answers.survivor_rounds)
    yield _row(answers, "survivor, lossless", answers.lossless, time)
    yield _row(answers, "survivor, lossy", answers.lossy, Cell(""))


def _exact(answers: AnswerTotals) -> Iterator[VoteRow]:
    for schedule, stopping in answers.exact.items():
        name = f"exact rule, {_SCHEDULES[schedule]}"
        yield _row(answers, name, stopping.saving, _time(answers, stopping.rounds))


def _row(answers: AnswerTotals, name: str, amount: Amount, time: Cell) -> VoteRow:
    share = f"({percent(amount.steps / answers.spent.steps)})" if answers.spent.steps else ""
    return VoteRow(
        name,
        Cell(count(amount.groups)),
        Cell(count(amount.steps), share),
        Cell(count(amount.known_tokens)),
        Cell(money_text(answers.money(amount))),
        time,
    )


def _time(answers: AnswerTotals, rounds: int) -> Cell:
    return Cell(f"{rounds / answers.rounds:.2f}" if answers.rounds else "unknown")
