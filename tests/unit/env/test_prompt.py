"""The environment without a world."""

import pytest

from selective_rollout.env.prompt import GO_ON, HOW_TO_ACT, PromptEnvironment
from selective_rollout.types import Task


def world() -> PromptEnvironment:
    environment = PromptEnvironment(Task("t", "What is 6 times 7?"), 0)
    assert environment.start().text == HOW_TO_ACT
    return environment


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ("answer(42)", "42"),
        ("Finish[The Mug]", "the mug"),
        ("Thought: I know.\nFinal Answer: 42.", "42"),
        ("**Final Answer:** 42", "42"),
        ("So <answer>42</answer>", "42"),
        ("It is \\boxed{42}", "42"),
        ("submit(a\nb)", "a b"),
        ("finish()", None),
    ],
)
def test_a_final_answer_ends_the_rollout(action: str, answer: str | None) -> None:
    result = world().step(action)
    assert (result.terminated, result.answer, result.reward) == (True, answer, None)


@pytest.mark.parametrize("action", ["search(42)", "", "I have no final answer yet", "read the answer(s)"])
def test_anything_else_goes_on(action: str) -> None:
    result = world().step(action)
    assert (result.terminated, result.observation, result.answer) == (False, GO_ON, None)


def test_it_is_replayable() -> None:
    assert PromptEnvironment.replayable
