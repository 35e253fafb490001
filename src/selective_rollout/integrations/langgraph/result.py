"""The typed reading of a graph's plain state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

from selective_rollout.errors import ConfigError
from selective_rollout.integrations.langgraph.decisions import decision_of
from selective_rollout.integrations.langgraph.outcome import GraphOutcome
from selective_rollout.integrations.langgraph.state import (
    GroupState,
    RolloutState,
    ledger_of,
    steps_of,
)
from selective_rollout.types import Group, Rollout, RolloutFailure, RolloutStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult(GraphOutcome):
    """What came of a group that a graph of `build_graph` ran."""

    @classmethod
    def from_state(cls, state: Any) -> Self:
        """Read the state of a graph made by `build_graph`.

        Args:
            state: what `invoke` or `ainvoke` returned (of either version), a part of stream mode `values`, or
                a snapshot from `get_state`.

        Raises:
            ConfigError: it is none of these, or the group has not been opened yet.
        """
        plain = _values(state)
        verdict = plain["verdict"]
        rollouts = list(plain["rollouts"].values())
        return cls(
            group=Group(
                id=plain["group_id"],
                size=plain["group_size"],
                rollouts=tuple(_rollout(rollout) for rollout in rollouts),
                task_id=plain["task_id"],
                attempt=plain["attempt"],
                metadata=plain["metadata"],
            ),
            decisions=tuple(decision_of(decision, plain["group_size"]) for decision in plain["decisions"]),
            ledger=ledger_of(plain["usage"]),
            cut_as=verdict["cut_as"],
            cut_at=verdict["cut_at"],
            would_cut_at=verdict["would_cut_at"],
            audited=verdict["audited"],
            late_veto=verdict["late_veto"],
            survivor=verdict["survivor"],
            answer=verdict["answer"],
            status=plain["status"],
            ledgers=tuple(ledger_of(rollout["ledger"]) for rollout in rollouts),
        )


def _values(state: Any) -> GroupState:
    """The state itself; LangGraph's version 2 wraps it as `value`, a snapshot as `values`."""
    for name in ("value", "values"):
        if not isinstance(state, Mapping):
            state = getattr(state, name, state)
    if not isinstance(state, Mapping) or "verdict" not in state or "rollouts" not in state:
        raise ConfigError(
            "not the state of a group: pass what invoke returned for a graph of build_graph, "
            "or the last part of stream_mode='values'"
        )
    return cast(GroupState, state)


def _rollout(rollout: RolloutState) -> Rollout:
    failure = rollout["failure"]
    return Rollout(
        index=rollout["index"],
        steps=tuple(steps_of(rollout)),
        status=RolloutStatus(rollout["status"]),
        reward=rollout["reward"],
        answer=rollout["answer"],
        failure=None if failure is None else RolloutFailure(**failure),
    )
