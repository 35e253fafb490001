"""The nodes of the graph. None of them changes the state that it is given."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Final, cast

from langchain_core.runnables import RunnableLambda
from langgraph.config import get_stream_writer
from langgraph.runtime import get_runtime
from langgraph.types import Send, StreamWriter

from selective_rollout.draws import is_audited
from selective_rollout.engine.ledger import Ledger
from selective_rollout.engine.rule import warn_about
from selective_rollout.gate.decision import Reason
from selective_rollout.integrations.langgraph.book import Book
from selective_rollout.integrations.langgraph.plan import Plan, is_enforcing, plan_next
from selective_rollout.integrations.langgraph.session import Session
from selective_rollout.integrations.langgraph.settings import record
from selective_rollout.integrations.langgraph.state import (
    GroupFacts,
    GroupState,
    GroupStatus,
    Plain,
    RolloutState,
    StepInput,
    Verdict,
    fresh_rollout,
    ledger_of,
    ledger_state,
)
from selective_rollout.integrations.langgraph.step import take_step
from selective_rollout.types import RolloutStatus

_NESTED: Final = "|"
"""In a checkpoint namespace: the graph runs as a node of another one."""


def open_group(state: GroupState) -> Plain:
    """Settle who the group is and under which settings it runs; `rollouts` starts afresh."""
    session = _session()
    session.has_opened = True
    session.take_place()
    gate, config = session.gate, session.config
    session.require_covered()
    warn_about(gate, config, session.parts.accepted.certified)
    session.policy_for(config)
    visit = state.get("visit", 0) + 1
    group_id = state.get("group_id") or _default_group_id(visit)
    task_id = state.get("task_id") or group_id
    rollouts: dict[str, RolloutState | None] = dict.fromkeys(state.get("rollouts", {}))
    rollouts |= {str(index): fresh_rollout(index) for index in range(config.group_size)}
    drawn = is_audited(config.seed, group_id, config.audit_rate)
    return {
        "group_id": group_id,
        "task_id": task_id,
        "metadata": state.get("metadata") or {},
        "group_size": config.group_size,
        "settings": {
            **record(gate, config),
            "past": session.parts.past_of(gate, task_id, state.get("metadata") or {}, config.group_size),
        },
        "visit": visit,
        "attempt": 1,
        "rollouts": rollouts,
        "step": 0,
        "decisions": [],
        "verdict": Verdict(
            cut_as=None,
            cut_at=None,
            would_cut_at=None,
            audited=config.mode == "enforce" and drawn,
            late_veto=False,
            survivor=None,
            answer=None,
        ),
        "status": "running",
        "usage": ledger_state(Ledger()),
    }


async def rollout_step(group: StepInput, session: Session, emit: StreamWriter) -> Plain:
    """Take one rollout's next step."""
    _, config = session.settings_of(group)
    policy = session.policy_for(config)
    after = await take_step(group, session=session, policy=policy, config=config)
    if after["status"] != RolloutStatus.RUNNING:
        session.leave(after["index"])
    book = session.book_of(group)
    book.write(group["rollout"], replayed=True)
    book.write(after, replayed=False)
    emit(_step_event(group, after))
    return {"rollouts": {str(after["index"]): after}}


def gate(state: GroupState) -> Plain:
    """Tell the gate what every rollout did, and settle what becomes of the group."""
    session, emit = _session(), get_stream_writer()
    book = _book(session, state)
    verdict = _judge(state, book)
    decisions = book.decisions()
    plan = plan_next({**state, "decisions": decisions}, verdict)
    verdict["cut_as"] = state["settings"]["gate"]["outcome"] if plan.stopped else None
    verdict["survivor"], verdict["answer"] = plan.survivor, plan.answer
    step = max(len(rollout["steps"]) for rollout in state["rollouts"].values())
    emit(_gate_event(state, decisions, step, plan))
    return {
        "decisions": decisions,
        "verdict": verdict,
        "step": step,
        "attempt": book.attempt,
        "usage": ledger_state(_total(state["rollouts"].values())),
    }


def finish(state: GroupState) -> Plain:
    """Stop whoever is left, and close the group."""
    session, emit = _session(), get_stream_writer()
    book = _book(session, state)
    stopped = {
        key: rollout.copy()
        for key, rollout in state["rollouts"].items()
        if rollout["status"] == RolloutStatus.RUNNING
    }
    for rollout in stopped.values():
        rollout["status"] = RolloutStatus.CUT.value
        session.leave(rollout["index"])
    rollouts = {**state["rollouts"], **stopped}
    book.catch_up(rollouts.values())
    session.close_book(state["verdict"], [rollout["reward"] for rollout in rollouts.values()])
    status = _status(state["verdict"], rollouts.values())
    session.review({**state, "rollouts": rollouts, "status": status})
    emit({"type": "end", "group": state["group_id"], "status": status, **state["verdict"]})
    return {"rollouts": stopped, "status": status}


def send_on(state: GroupState) -> list[Send] | str:
    """The conditional edge: to everybody who takes the next step, or to the end."""
    plan = plan_next(state, state["verdict"])
    if not plan.going:
        return "finish"
    facts = _facts(state)
    return [
        Send("rollout_step", StepInput(**facts, rollout=state["rollouts"][str(index)]))
        for index in plan.going
    ]


def plain_node(work: Callable[[GroupState], Plain], name: str) -> RunnableLambda[GroupState, Plain]:
    """A node that awaits nothing, for both kinds of run."""

    async def on_the_loop(state: GroupState) -> Plain:
        return work(state)

    return RunnableLambda(work, afunc=on_the_loop, name=name)


def step_node() -> RunnableLambda[StepInput, Plain]:
    """The node `rollout_step`, for both kinds of run."""

    def in_thread(group: StepInput) -> Plain:
        session = _session()
        return session.wait_for(rollout_step(group, session, get_stream_writer()))

    async def on_the_loop(group: StepInput) -> Plain:
        return await rollout_step(group, _session(), get_stream_writer())

    return RunnableLambda(in_thread, afunc=on_the_loop, name="rollout_step")


def _session() -> Session:
    """The run's session, which the graph hands to its nodes in place of the caller's context."""
    return cast(Session, get_runtime().context)


def _facts(state: GroupState) -> GroupFacts:
    return GroupFacts(
        prompt=state["prompt"],
        task_id=state["task_id"],
        group_id=state["group_id"],
        group_size=state["group_size"],
        metadata=state["metadata"],
        settings=state["settings"],
        attempt=state["attempt"],
        audited=state["verdict"]["audited"],
    )


def _book(session: Session, state: GroupState) -> Book:
    book = session.book_of(_facts(state))
    book.catch_up(state["rollouts"].values())
    return book


def _judge(state: GroupState, book: Book) -> Verdict:
    """Carry out a decision that fired; a cut or a late veto on record stands."""
    verdict = state["verdict"].copy()
    fired = book.gate.fired
    if fired is None or verdict["cut_at"] is not None or verdict["late_veto"]:
        return verdict
    verdict["would_cut_at"] = fired.step
    if is_enforcing(state, verdict) and book.gate.config.outcome != "vote":
        confirmed = book.gate.confirm()
        verdict["late_veto"] = confirmed.reason is Reason.LATE_VETO
        if confirmed.fires:
            verdict["cut_at"], verdict["would_cut_at"] = confirmed.step, None
    return verdict


def _default_group_id(visit: int) -> str:
    """The thread's id where a checkpointer keeps one; its later groups are told apart by a number."""
    info = get_runtime().execution_info
    if info is None or info.thread_id is None or _NESTED in info.checkpoint_ns:
        return uuid.uuid4().hex
    return info.thread_id if visit == 1 else f"{info.thread_id}@{visit}"


def _total(rollouts: Iterable[RolloutState]) -> Ledger:
    total = Ledger()
    for rollout in rollouts:
        total.merge(ledger_of(rollout["ledger"]))
    return total


def _status(verdict: Verdict, rollouts: Iterable[RolloutState]) -> GroupStatus:
    if all(rollout["status"] == RolloutStatus.FAILED for rollout in rollouts):
        return "failed"
    return "finished" if verdict["cut_as"] is None else "cut"


def _step_event(group: StepInput, after: RolloutState) -> Plain:
    taken = len(after["steps"]) > len(group["rollout"]["steps"])
    return {
        "type": "step",
        "group": group["group_id"],
        "rollout": after["index"],
        "step": len(group["rollout"]["steps"]) + 1,
        "action": after["steps"][-1]["action"] if taken else None,
        "status": after["status"],
    }


def _gate_event(state: GroupState, decisions: list[Plain], step: int, plan: Plan) -> Plain:
    made = decisions[len(state["decisions"]) :]
    latest = made[-1] if made else {}
    return {
        "type": "gate",
        "group": state["group_id"],
        "step": step,
        "live": len(plan.going),
        "distance": latest.get("distance"),
        "reason": latest.get("reason"),
        "fires": latest.get("fires", False),
    }
