"""Signals of futility: how little the members' steps still bring about, and the prompt's own past.

Each is a mean over the present members, every member counting the same however many steps it took; members
without a step that counts are left out. None if no member remains or a reply in question is unknown.
"""

from __future__ import annotations

from statistics import fmean

from selective_rollout.gate.signals.view import GroupView


def termination_fraction(view: GroupView, k: int) -> float | None:
    """Share of present members that ended normally with fewer than k actions; in [0, 1], direction +1.

    The paper's: those whose row shows END at step k. A member whose k-th action was its last does not count
    yet.
    """
    rows = view.prefixes(k)
    return sum(len(row) < k for row in rows) / len(rows) if rows else None


def repeat_rate(view: GroupView, k: int) -> float | None:
    """Share of a member's actions that it had taken before; in [0, 1), direction +1.

    Loops mark hopeless members in some text games, yet on the paper's ALFWorld groups the sign is the
    opposite (`mean_repeat_K` of its table): never use it unfitted.
    """
    return _mean([1 - len(set(row)) / len(row) for row in view.prefixes(k) if row])


def observation_novelty(view: GroupView, k: int) -> float | None:
    """Distinct observations per step of a member; in (0, 1], direction -1.

    Members that see nothing new any more tend to fail alike. Compares hashes within a member only.
    """
    rows = view.replies(view.observation_hashes, k)
    return None if rows is None else _mean([len(set(row)) / len(row) for row in rows if row])


def error_share(view: GroupView, k: int) -> float | None:
    """Share of a member's steps that were answered with an error; in [0, 1], direction +1."""
    rows = view.replies(view.errors, k)
    return None if rows is None else _mean([sum(row) / len(row) for row in rows if row])


def history_p_zero_variance(view: GroupView, k: int) -> float | None:
    """Probability of zero variance from the prompt's earlier rewards; in [0, 1], direction +1.

    Known before step 1 and the same at every k.
    """
    return view.history_p


def _mean(shares: list[float]) -> float | None:
    return fmean(shares) if shares else None
