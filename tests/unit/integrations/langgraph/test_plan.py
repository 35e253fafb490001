"""Who takes the next step, as a function of the state alone."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from selective_rollout.engine.survivor import survivor_order
from selective_rollout.integrations.langgraph.plan import Plan, plan_next
from selective_rollout.integrations.langgraph.state import GroupState, Verdict, fresh_rollout

G = 4
ORDER = survivor_order("g", G)
FIRST, SECOND, THIRD, FOURTH = ORDER


def state(
    outcome: str, ended: Mapping[int, str | None] | None = None, *, mode: str = "enforce", size: int = G
) -> GroupState:
    """A group in which some have ended: with an answer, or failed where it is "FAILED"."""
    rollouts = {str(index): fresh_rollout(index) for index in range(size)}
    for index, answer in (ended or {}).items():
        failed = answer == "FAILED"
        rollouts[str(index)]["status"] = "failed" if failed else "finished"
        rollouts[str(index)]["answer"] = None if failed else answer
    return GroupState(
        group_id="g",
        group_size=size,
        rollouts=rollouts,
        settings={"mode": mode, "gate": {"outcome": outcome}},
        decisions=[{"fires": True, "members": list(range(size))}],
    )


def verdict(cut_at: int | None = None, *, audited: bool = False) -> Verdict:
    return Verdict(
        cut_as=None,
        cut_at=cut_at,
        would_cut_at=None,
        audited=audited,
        late_veto=False,
        survivor=None,
        answer=None,
    )


def test_without_a_cut_everybody_who_runs_goes_on() -> None:
    assert plan_next(state("drop", {1: "a"}), verdict()) == Plan((0, 2, 3))


def test_a_dropped_group_is_over() -> None:
    assert plan_next(state("drop"), verdict(3)) == Plan((), stopped=True)


def test_the_first_in_order_survives() -> None:
    assert plan_next(state("survivor"), verdict(3)) == Plan((FIRST,), FIRST, stopped=True)


def test_a_survivor_that_has_ended_has_answered() -> None:
    over = plan_next(state("survivor", {FIRST: "desk"}), verdict(3))
    assert over == Plan((), FIRST, "desk", stopped=True)


def test_a_failed_survivor_is_replaced() -> None:
    failed = {FIRST: "FAILED", SECOND: "FAILED"}
    assert plan_next(state("survivor", failed), verdict(3)).survivor == THIRD
    everybody = dict.fromkeys(range(G), "FAILED")
    assert plan_next(state("survivor", everybody), verdict(3)) == Plan((), stopped=True)


def test_absent_members_do_not_survive() -> None:
    group = state("survivor")
    group["decisions"][0]["members"] = [THIRD, FOURTH]
    assert plan_next(group, verdict(3)).survivor == THIRD


def test_a_vote_begins_with_a_bare_majority() -> None:
    first_wave = tuple(sorted(ORDER[:3]))
    assert plan_next(state("vote"), verdict()) == Plan(first_wave)
    open_vote = {FIRST: "a", SECOND: "b", THIRD: "FAILED"}
    assert plan_next(state("vote", open_vote), verdict()) == Plan((FOURTH,))


def test_a_vote_that_cannot_be_overtaken_is_over() -> None:
    decided = dict.fromkeys(ORDER[:3], "a")
    assert plan_next(state("vote", decided), verdict()) == Plan((), answer="a", stopped=True)


def test_a_vote_is_not_cut_short_while_nothing_is_enforced() -> None:
    decided = dict.fromkeys(ORDER[:3], "a")
    for plan in (
        plan_next(state("vote", decided, mode="observe"), verdict()),
        plan_next(state("vote", decided), verdict(audited=True)),
    ):
        assert plan == Plan((FOURTH,))


@given(st.lists(st.sampled_from(["a", "b", "c", None, "FAILED"]), min_size=3, max_size=9))
def test_a_vote_cut_short_ends_as_the_full_one(votes: list[str | None]) -> None:
    """Oracle: run the same group with all its votes, uncut."""
    size = len(votes)
    full = plan_next(state("vote", dict(enumerate(votes)), mode="observe", size=size), verdict()).answer
    cast: dict[int, Any] = {}
    while (plan := plan_next(state("vote", cast, size=size), verdict())).going:
        cast[plan.going[0]] = votes[plan.going[0]]
    assert plan.answer == full
    assert plan.stopped == (len(cast) < size)
