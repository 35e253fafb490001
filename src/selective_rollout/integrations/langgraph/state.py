"""The graph's state: dicts, lists, text and numbers, and nothing that lives.

Policies, environments and dataclasses of this package never enter it, so a checkpointer stores it as it is,
also where LangGraph refuses to load types that it does not know (LANGGRAPH_STRICT_MSGPACK).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final, Literal, Required, TypeAlias, TypedDict

from selective_rollout.engine.ledger import Ledger
from selective_rollout.types import Outcome, Step, Usage

Plain: TypeAlias = dict[str, Any]
"""JSON-able data."""

GroupStatus: TypeAlias = Literal["running", "finished", "cut", "failed"]
"""finished: every rollout ran to its own end; cut: the gate or a decided vote stopped some; failed: all of
them failed."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class StepState(TypedDict):
    """One step; its completion and observation stand in the rollout's messages."""

    index: int
    """1-based."""
    action: str
    """Canonical action."""
    observation_hash: str | None
    is_error: bool | None
    state_key: str | None
    finish_reason: str | None
    usage: Plain | None
    wasted: int
    """Completion tokens of failed attempts at this step's request."""
    attempts: int
    """How often the step was tried; it counts once."""


class RolloutState(TypedDict):
    """One rollout, with its whole conversation."""

    index: int
    """0-based."""
    status: str
    """A value of `types.RolloutStatus`."""
    messages: list[Plain]
    """Chat messages so far; empty until the first step is taken."""
    steps: list[StepState]
    reward: float | None
    answer: str | None
    failure: Plain | None
    """`kind` and `message`."""
    ledger: Plain
    """Tokens of this rollout; the fields of `engine.ledger.Ledger`."""
    lost: Plain | None
    """Tokens of a last completion that became no step; None if there is no such completion."""
    wasted: int
    """Completion tokens of failed attempts at that completion."""
    elapsed_s: float
    """Time spent in steps; waiting for the siblings does not count."""


class Verdict(TypedDict):
    """What the gate made of the group; the fields of `engine.outcome.GroupOutcome`."""

    cut_as: Outcome | None
    cut_at: int | None
    would_cut_at: int | None
    audited: bool
    late_veto: bool
    survivor: int | None
    answer: str | None


class GroupInput(TypedDict, total=False):
    """What a run starts from; the prompt alone is enough."""

    prompt: Required[str]
    task_id: str | None
    """The independent unit of statistics; the group id by default."""
    group_id: str | None
    """By default the thread id where a checkpointer is used (`id@2` on its second visit), else random."""
    metadata: Plain
    """Facts about the task for the environment and the trace."""


class GroupFacts(TypedDict):
    """What is settled when a group opens, and stays the same in a resumed run."""

    prompt: str
    task_id: str
    group_id: str
    group_size: int
    metadata: Plain
    settings: Plain
    """What a context may change, and the whole rule as `gate`."""
    attempt: int
    """Counts the runs that worked on this group."""
    audited: bool
    """Whether a would-be cut of this group runs on."""


class StepInput(GroupFacts):
    """What the node `rollout_step` is sent."""

    rollout: RolloutState


def merge_rollouts(
    left: dict[str, RolloutState], right: Mapping[str, RolloutState | None]
) -> dict[str, RolloutState]:
    """Reducer: the branches of one superstep each bring their own rollout; None removes one."""
    merged = {key: value for key, value in {**left, **right}.items() if value is not None}
    return dict(sorted(merged.items(), key=lambda item: item[1]["index"]))


class GroupState(TypedDict, total=False):
    """State of the graph."""

    prompt: str
    task_id: str
    group_id: str
    metadata: Plain
    group_size: int
    settings: Plain
    visit: int
    """Counts the groups that ran on one thread."""
    attempt: int
    rollouts: Annotated[dict[str, RolloutState], merge_rollouts]
    """By rollout index as text ("0", "1", ...), in order."""
    step: int
    """Steps taken by the rollout that is furthest."""
    decisions: list[Plain]
    """Each decision at a check position; the fields of the trace's decision event."""
    verdict: Verdict
    status: GroupStatus
    usage: Plain
    """Tokens of the group; the fields of `engine.ledger.Ledger`."""


def fresh_rollout(index: int) -> RolloutState:
    """A rollout that has not begun."""
    return RolloutState(
        index=index,
        status="running",
        messages=[],
        steps=[],
        reward=None,
        answer=None,
        failure=None,
        ledger=ledger_state(Ledger()),
        lost=None,
        wasted=0,
        elapsed_s=0.0,
    )


def step_state(step: Step, wasted: int, attempts: int = 1) -> StepState:
    """A step as plain data."""
    return StepState(
        index=step.index,
        action=step.action,
        observation_hash=step.observation_hash,
        is_error=step.is_error,
        state_key=step.state_key,
        finish_reason=step.finish_reason,
        usage=usage_state(step.usage),
        wasted=wasted,
        attempts=attempts,
    )


def steps_of(rollout: RolloutState) -> list[Step]:
    """The steps of a rollout, with their texts taken out of its messages."""
    return [
        Step(
            index=step["index"],
            action=step["action"],
            completion=said["content"] if isinstance(said.get("content"), str) else None,
            observation=reply,
            observation_hash=step["observation_hash"],
            is_error=step["is_error"],
            state_key=step["state_key"],
            usage=usage_of(step["usage"]),
            finish_reason=step["finish_reason"],
        )
        for step, (said, reply) in zip(rollout["steps"], turns(rollout), strict=True)
    ]


def turns(rollout: RolloutState) -> list[tuple[Plain, str]]:
    """(assistant message, observation) of each step; assistant messages of the opening are none."""
    messages = rollout["messages"]
    said = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    places = said[len(said) - len(rollout["steps"]) :]
    return [(messages[place], messages[place + 1]["content"]) for place in places]


def ended_with_a_step(rollout: RolloutState) -> bool:
    """Whether an ended rollout's last completion became a step, which is then one event with the end.

    One that was cut off by its token limit became none.
    """
    return bool(rollout["steps"]) and rollout["lost"] is None


def usage_state(usage: Usage | None) -> Plain | None:
    """Token counts as plain data."""
    return None if usage is None else asdict(usage)


def usage_of(plain: Plain | None) -> Usage | None:
    """The inverse of `usage_state`."""
    return None if plain is None else Usage(**plain)


def ledger_state(ledger: Ledger) -> Plain:
    """A ledger as plain data."""
    return dict(ledger.to_dict())


def ledger_of(plain: Plain) -> Ledger:
    """The inverse of `ledger_state`; a ledger of its own, safe to add to."""
    ledger = Ledger(**{name: value for name, value in plain.items() if name != "sources"})
    ledger.sources.update(plain["sources"])
    return ledger


def plain_copy(value: Any, what: str) -> Any:
    """A deep copy as JSON-able data; half characters, which no checkpoint can hold, become U+FFFD.

    Raises:
        TypeError: the value holds something else; `what` names it.
    """
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be plain JSON-able data: {error}") from None
    return json.loads(_SURROGATE.sub("\ufffd", text))
