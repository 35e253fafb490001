"""Who takes the next step: a pure function of the state, so a resumed run goes on as the first would have.

The graph moves in lockstep: between two steps every rollout stands at the same position or has ended. So
nobody is ever in flight at a check, and holding, parking and stopping are a matter of who is sent on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from selective_rollout.engine.survivor import first_of, survivor_order
from selective_rollout.gate.vote import first_wave, plurality, unassailable
from selective_rollout.integrations.langgraph.state import GroupState, RolloutState, Verdict
from selective_rollout.types import RolloutStatus


@dataclass(frozen=True, slots=True)
class Plan:
    """What comes next for a group."""

    going: tuple[int, ...]
    """Rollouts that take the next step; empty: the group is over."""
    survivor: int | None = None
    answer: str | None = None
    """The group's answer, as soon as it is known."""
    stopped: bool = False
    """Whether rollouts that could go on are stopped, now or once the survivor has answered."""


def plan_next(state: GroupState, verdict: Verdict) -> Plan:
    """Who takes the next step, given what the gate has said so far.

    Args:
        state: settings and rollouts are read.
        verdict: `cut_at` is set once a cut is to be carried out.
    """
    rollouts = {rollout["index"]: rollout for rollout in state["rollouts"].values()}
    running = tuple(index for index, rollout in rollouts.items() if _is_running(rollout))
    outcome = state["settings"]["gate"]["outcome"]
    order = survivor_order(state["group_id"], state["group_size"])
    answers = {
        index: rollout["answer"] for index, rollout in rollouts.items() if rollout["answer"] is not None
    }
    if outcome == "vote" and is_enforcing(state, verdict):
        return _plan_vote(running, answers, order)
    if verdict["cut_at"] is None:
        vote = plurality(answers, order) if outcome != "drop" and not running else None
        return Plan(running, answer=vote)
    if outcome == "drop":
        return Plan((), stopped=True)
    return _plan_survivor(state, rollouts, running, order)


def is_enforcing(state: GroupState, verdict: Verdict) -> bool:
    """Whether this group's cuts are carried out."""
    return state["settings"]["mode"] == "enforce" and not verdict["audited"]


def _plan_survivor(
    state: GroupState, rollouts: dict[int, RolloutState], running: tuple[int, ...], order: list[int]
) -> Plan:
    """One member goes on; should it fail, the next in the group's order does."""
    present = next(decision["members"] for decision in state["decisions"] if decision["fires"])
    sound = [index for index in present if rollouts[index]["status"] != RolloutStatus.FAILED]
    survivor = first_of(order, sound)
    if survivor is None:
        return Plan((), stopped=True)
    going = (survivor,) if survivor in running else ()
    return Plan(going, survivor, rollouts[survivor]["answer"], stopped=True)


def _plan_vote(running: tuple[int, ...], answers: dict[int, str], order: list[int]) -> Plan:
    """Two waves, the second only if the first leaves the vote open; nobody goes on once it is decided."""
    winner = unassailable(Counter(answers.values()), len(running)) if running else None
    if winner is not None:
        return Plan((), answer=winner, stopped=True)
    majority = tuple(index for index in running if index in first_wave(order))
    return Plan(majority or running, answer=plurality(answers, order) if not running else None)


def _is_running(rollout: RolloutState) -> bool:
    return rollout["status"] == RolloutStatus.RUNNING
