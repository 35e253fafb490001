"""A recorded group at inference: its full vote, its survivor, and the exact rule that stops a vote early.

The exact rule stops as soon as the leading answer cannot be overtaken, so it needs no calibration: its answer
is the full vote's, whatever the members still out would say. What it saves depends on who runs when. Time is
counted in steps, all members of a wave taking one together; a trace records no other clock.

A vote that is not on record is never guessed. A finished member without an answer counts as a vote still
out, so that the rule stops no sooner than it could have; one that ran into a limit or was lost to
infrastructure has no vote, as in the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal, TypeAlias

from selective_rollout.analysis.accounting import survivor_of
from selective_rollout.draws import survivor_order
from selective_rollout.gate.vote import first_wave, leading, unassailable
from selective_rollout.types import Group, Rollout, RolloutStatus

Schedule: TypeAlias = Literal["parallel", "two_waves", "one_at_a_time"]
"""Who runs when: all at once; the smallest majority first and the rest only if the vote is still open, as the
engine does; or each member after the other. The order is the group's own."""

SCHEDULES: Final[tuple[Schedule, ...]] = ("parallel", "two_waves", "one_at_a_time")


def leaders_of(group: Group) -> frozenset[str] | None:
    """The answers that lead the full vote of a group: one, or several in a tie.

    None if it is not known: a member was never recorded, never ended or was stopped; there are fewer than two
    answers; or finished members without an answer could change who leads.
    """
    votes = {rollout.index: vote_of(rollout) for rollout in group.rollouts}
    answers = {index: vote for index, vote in votes.items() if vote is not None}
    if not _all_ended(group) or len(answers) < 2:
        return None
    missing = sum(map(vote_is_missing, group.rollouts))
    if not missing:
        return leading(answers)
    winner = unassailable(Counter(answers.values()), missing)
    return None if winner is None else frozenset({winner})


def survivor_agrees(group: Group) -> bool | None:
    """Whether the survivor of a cut answers as the full vote does, alone or in a tie; None if not known.

    A survivor without an answer does not agree. Who survives does not depend on where the group is cut.
    """
    leaders = leaders_of(group)
    if leaders is None:
        return None
    survivor = survivor_of(group)
    return survivor is not None and survivor.answer in leaders


def vote_of(rollout: Rollout) -> str | None:
    """The vote a member has cast; None: none, or none on record."""
    return rollout.answer if rollout.status.ended_normally else None


def vote_is_missing(rollout: Rollout) -> bool:
    """Whether a member finished, so that it should have an answer, and none is on record."""
    return rollout.status is RolloutStatus.FINISHED and rollout.answer is None


@dataclass(frozen=True, slots=True)
class ExactVote:
    """How far a group gets under the exact rule."""

    answer: str | None
    """The answer it was stopped with; None: every member ran to its end, and the full vote counts."""
    steps: Mapping[int, int]
    """Steps taken, by rollout."""
    rounds: int
    """Steps taken one after another, which is how long it takes."""


def exact_votes(group: Group) -> dict[Schedule, ExactVote]:
    """Run a recorded group under each schedule until its vote is decided.

    Args:
        group: a group of which every member is recorded to its end (`leaders_of` is not None).
    """
    order = survivor_order(group.id, group.size)
    rollouts = {rollout.index: rollout for rollout in group.rollouts}
    return {schedule: _run(rollouts, _waves(schedule, order)) for schedule in SCHEDULES}


def _run(rollouts: Mapping[int, Rollout], waves: Sequence[Sequence[int]]) -> ExactVote:
    votes: Counter[str] = Counter()
    steps: dict[int, int] = {}
    out, rounds = len(rollouts), 0
    for wave in waves:
        members = sorted((rollouts[index] for index in wave), key=_length)
        for length, ending in groupby(members, _length):
            for rollout in ending:
                steps[rollout.index] = length
                out -= not vote_is_missing(rollout)
                if (vote := vote_of(rollout)) is not None:
                    votes[vote] += 1
            winner = unassailable(votes, out)
            if winner is not None and len(steps) < len(rollouts):
                begun = {index: length for index in wave if index not in steps}
                return ExactVote(winner, dict.fromkeys(rollouts, 0) | steps | begun, rounds + length)
        rounds += _length(members[-1])
    return ExactVote(None, steps, rounds)


def _waves(schedule: Schedule, order: Sequence[int]) -> Sequence[Sequence[int]]:
    if schedule == "parallel":
        return [order]
    if schedule == "one_at_a_time":
        return [[index] for index in order]
    first = first_wave(order)
    return [wave for wave in (first, order[len(first) :]) if wave]


def _length(rollout: Rollout) -> int:
    return len(rollout.steps)


def _all_ended(group: Group) -> bool:
    recorded = {rollout.index for rollout in group.rollouts}
    ended = (r.status.ended_normally or r.status is RolloutStatus.FAILED for r in group.rollouts)
    return recorded == set(range(group.size)) and all(ended)
