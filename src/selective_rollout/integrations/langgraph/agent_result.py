"""What comes out of a group of agents: events while it runs, and a typed result at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from selective_rollout.engine.survivor import survivor_order
from selective_rollout.errors import SelectiveRolloutError
from selective_rollout.gate.decision import GateDecision
from selective_rollout.integrations.langgraph.messages import messages_of
from selective_rollout.integrations.langgraph.outcome import GraphOutcome
from selective_rollout.types import RolloutStatus

EventType: TypeAlias = Literal["step", "decision", "part", "rollout_end", "result"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentGroupResult(GraphOutcome):
    """What came of a group of agents, and what only the agents' graphs know."""

    thread_ids: tuple[str, ...]
    """`{group_id}/{i}`: where a checkpointer, if the agents have one, keeps each rollout."""
    states: tuple[Any, ...]
    """The last state seen of each rollout's graph, by index; None of one that never began."""
    interrupts: Mapping[int, tuple[Any, ...]]
    """What each interrupted rollout waits for, by index; `aresume` takes the replies."""
    messages_key: str = "messages"

    @property
    def speaker(self) -> int | None:
        """The rollout that stands for the group: the survivor, else the first in order with its answer."""
        if self.survivor is not None or self.answer is None:
            return self.survivor
        order = survivor_order(self.group.id, self.group.size)
        return next((index for index in order if self.rollouts[index].answer == self.answer), None)

    @property
    def state(self) -> Any:
        """The speaker's final state; None without a speaker."""
        return None if self.speaker is None else self.states[self.speaker]

    @property
    def messages(self) -> Sequence[Any]:
        """The speaker's conversation, the input included; empty without a speaker."""
        return messages_of(self.state, self.messages_key)

    def raise_for_failure(self) -> None:
        """Turn a group of which nothing came into an exception.

        Raises:
            SelectiveRolloutError: every rollout failed; the message is the first one's.
        """
        if self.failure is not None:
            raise SelectiveRolloutError(
                f"every rollout of group {self.group.id!r} failed; the first: {self.failure.message}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEvent:
    """Something that happened in a running group; which fields are set depends on `type`."""

    type: EventType
    group_id: str
    rollout: int | None = None
    """Set for "step", "part" and "rollout_end"."""
    step: int | None = None
    """"step": its number, from 1. "decision": the position checked."""
    action: str | None = None
    """"step": the canonical action, as soon as the model has chosen it."""
    decision: GateDecision | None = None
    status: RolloutStatus | None = None
    """"rollout_end": how it ended."""
    part: Any = None
    """"part": a part of the rollout's own stream, in LangGraph's version 2 shape."""
    result: AgentGroupResult | None = None
    """"result": the last event of every group."""
