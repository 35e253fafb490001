"""The vote over a group's answers: who leads, and when nobody can overtake the leader any more.

Pure functions, shared by the engine, which stops a group by them, and by the analysis, which tells what that
would have saved on recorded groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence


def unassailable(votes: Mapping[str, int], outstanding: int) -> str | None:
    """The answer that wins whatever the `outstanding` members answer, or None.

    A possible tie counts as open: ties have no winner that a full vote would agree on.
    """
    leader = max(votes, key=votes.__getitem__, default=None)
    if leader is None:
        return None
    runner_up = max((count for answer, count in votes.items() if answer != leader), default=0)
    return leader if votes[leader] > runner_up + outstanding else None


def leading(answers: Mapping[int, str]) -> frozenset[str]:
    """The most frequent answers of `answers[rollout]`: one, or several in a tie; empty without answers."""
    votes = Counter(answers.values())
    most = max(votes.values(), default=0)
    return frozenset(answer for answer, count in votes.items() if count == most)


def plurality(answers: Mapping[int, str], order: Sequence[int]) -> str | None:
    """The most frequent answer; of a tie the one whose voter comes first in the group's order."""
    leaders = leading(answers)
    return next((answers[r] for r in order if r in answers and answers[r] in leaders), None)


def first_wave(order: Sequence[int]) -> Sequence[int]:
    """Who runs before the others where a vote runs in two waves: the smallest majority, first in order."""
    return order[: len(order) // 2 + 1]
