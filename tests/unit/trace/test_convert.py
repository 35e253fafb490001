"""From records of a trace to the package's types."""

from __future__ import annotations

import pickle

from selective_rollout.trace.convert import step_from_event
from selective_rollout.trace.schema import StepEvent, UsageRecord
from selective_rollout.types import Step, Usage


def test_a_step_is_the_one_that_its_constructor_makes() -> None:
    record = UsageRecord(prompt=1, cached=2, completion=3, reasoning=4, source="server")
    event = StepEvent(
        group="g",
        rollout=0,
        step=7,
        action="look",
        completion="I look",
        observation="a room",
        observation_hash="h",
        is_error=False,
        state_key="s",
        usage=record,
        finish_reason="stop",
    )
    usage = Usage(prompt=1, cached=2, completion=3, reasoning=4, source="server")
    made = step_from_event(event)
    assert made == Step(7, "look", "I look", "a room", "h", False, "s", usage, "stop")
    assert hash(made) == hash(Step(7, "look", "I look", "a room", "h", False, "s", usage, "stop"))
    assert pickle.loads(pickle.dumps(made)) == made


def test_what_was_not_recorded_is_unknown() -> None:
    assert step_from_event(StepEvent(group="g", rollout=0, step=1, action="")) == Step(1, "")
    bare = StepEvent(group="g", rollout=0, step=1, action="", usage=UsageRecord())
    assert step_from_event(bare).usage == Usage()
