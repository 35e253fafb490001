"""Steps that broke and are tried again, by each rollout for itself: they count once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import RetryPolicy

from selective_rollout.engine.config import RunConfig
from selective_rollout.env.base import Observation, StepResult
from selective_rollout.errors import ConfigError, EnvironmentFault, PolicyError
from selective_rollout.integrations.langgraph import GroupResult, build_graph
from selective_rollout.policy.base import Completion, Message, RequestInfo
from selective_rollout.testing import ScriptedPolicy, TutorialBrain
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Task

G = 3
STEPS = 4
AT_ONCE = RetryPolicy(initial_interval=0.0, jitter=False)
PROMPT = {"prompt": "Where is the mug?", "group_id": "g"}


class Flaky(ScriptedPolicy):
    """Fails a number of times at the second step of rollout 1, part of the way into its completion."""

    def __init__(self, error: Exception, times: int) -> None:
        super().__init__(TutorialBrain(1.0, steps=STEPS))
        self.asked: Counter[tuple[int, int]] = Counter()
        self._error = error
        self._times = times

    async def complete(self, messages: Sequence[Message], info: RequestInfo) -> Completion:
        self.asked[info.rollout, info.step] += 1
        if (info.rollout, info.step) == (1, 2) and self.asked[1, 2] <= self._times:
            assert info.meter is not None
            info.meter.started, info.meter.completion = True, 3
            raise self._error
        return await super().complete(messages, info)


class Room:
    """A world that breaks down once, in the third step of rollout 1."""

    replayable = True
    broke = 0
    made = 0

    def __init__(self, task: Task, rollout: int) -> None:
        self.rollout = rollout
        self.steps = 0
        type(self).made += 1

    def start(self) -> Observation:
        return Observation("You stand in a room.")

    def step(self, action: str) -> StepResult:
        self.steps += 1
        if (self.rollout, self.steps) == (1, 3) and not type(self).broke:
            type(self).broke += 1
            raise EnvironmentFault("the lights went out")
        ends = action.startswith("answer(")
        return StepResult(f"step {self.steps}", terminated=ends, answer=action if ends else None)

    def close(self) -> None:
        pass


def run(policy: Any, environment: Any = None, context: Any = None, **options: Any) -> GroupResult:
    graph = build_graph(policy, environment, config=RunConfig(group_size=G), **options)
    return GroupResult.from_state(graph.invoke(PROMPT, context=context))


@pytest.mark.parametrize("times", [1, 2])
def test_a_request_that_fails_for_a_while(times: int, tmp_path: Path) -> None:
    policy = Flaky(PolicyError("busy", "overloaded", 503), times)
    with Recorder(tmp_path / "t.jsonl") as recorder:
        result = run(policy, retry=AT_ONCE, recorder=recorder)
    assert [rollout.status for rollout in result.rollouts] == ["finished"] * G
    assert policy.asked == {
        (r, s): 1 + times * ((r, s) == (1, 2)) for r in range(G) for s in range(1, STEPS + 1)
    }
    assert result.ledgers[1].requests == STEPS
    assert result.ledgers[1].wasted == 3 * times
    (recorded,) = read_groups(tmp_path / "t.jsonl")
    assert [len(rollout.steps) for rollout in recorded.group.rollouts] == [STEPS] * G


def test_the_state_keeps_how_often_a_step_was_tried() -> None:
    policy = Flaky(PolicyError("busy", "overloaded", 503), 1)
    graph = build_graph(policy, config=RunConfig(group_size=G), retry=AT_ONCE, checkpointer=InMemorySaver())
    state = graph.invoke(PROMPT, {"configurable": {"thread_id": "t"}})
    assert [step["attempts"] for step in state["rollouts"]["1"]["steps"]] == [1, 2, 1, 1]
    assert state["attempt"] == 1


def test_a_failure_that_stays_says_how_often_it_was_tried() -> None:
    policy = Flaky(PolicyError("busy", "overloaded", 503), 9)
    result = run(policy, retry=AT_ONCE)
    failure = result.rollouts[1].failure
    assert failure is not None
    assert (failure.kind, failure.message) == ("overloaded", "busy (tried 3 times)")
    assert policy.asked[1, 2] == 3
    assert [rollout.status for rollout in result.rollouts] == ["finished", "failed", "finished"]


@pytest.mark.parametrize(
    ("error", "retry", "asked"),
    [
        (PolicyError("no", "auth", 401), AT_ONCE, 1),
        (PolicyError("no", "auth", 401), AT_ONCE._replace(retry_on=PolicyError), 2),
        (ValueError("odd"), AT_ONCE, 1),
        (ValueError("odd"), AT_ONCE._replace(retry_on=(KeyError, ValueError)), 2),
        (ValueError("odd"), AT_ONCE._replace(retry_on=lambda error: "odd" in str(error)), 2),
        (ConnectionResetError("gone"), AT_ONCE, 2),
        (PolicyError("busy", "overloaded", 503), None, 1),
    ],
)
def test_what_is_tried_again(error: Exception, retry: Any, asked: int) -> None:
    policy = Flaky(error, 1)
    run(policy, retry=retry)
    assert policy.asked[1, 2] == asked


def test_a_world_that_broke_is_rebuilt_and_its_completion_is_not_asked_for_again() -> None:
    class Here(Room):
        pass

    policy = Flaky(ValueError("never"), 0)
    result = run(policy, Here, retry=AT_ONCE)
    assert [len(rollout.steps) for rollout in result.rollouts] == [STEPS] * G
    assert result.rollouts[1].steps[2].observation == "step 3"
    assert set(policy.asked.values()) == {1}
    assert (Here.made, Here.broke) == (G + 1, 1)


def test_a_world_that_cannot_be_rebuilt_is_not_tried_again() -> None:
    class OneWay(Room):
        replayable = False

    result = run(Flaky(ValueError("never"), 0), OneWay, retry=AT_ONCE)
    failure = result.rollouts[1].failure
    assert failure is not None
    assert (failure.kind, failure.message, OneWay.made) == ("environment", "the lights went out", G)


def test_a_run_may_set_how_often() -> None:
    policy = Flaky(PolicyError("busy", "overloaded", 503), 4)
    result = run(policy, retry=AT_ONCE, context={"max_attempts": 5})
    assert result.rollouts[1].failure is None
    with pytest.raises(ConfigError, match="max_attempts must be at least 1, not 0"):
        run(policy, context={"max_attempts": 0})


def test_all_attempts_together_have_the_time_of_one_rollout() -> None:
    policy = Flaky(PolicyError("busy", "overloaded", 503), 9)
    slowly = RetryPolicy(initial_interval=5.0, jitter=False)
    result = run(policy, retry=slowly, context={"rollout_timeout_s": 0.3})
    failure = result.rollouts[1].failure
    assert failure is not None
    assert failure.kind == "timeout"
