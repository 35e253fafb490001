"""No world at all: the agent works on its prompt alone, and ends by stating an answer."""

from __future__ import annotations

import re
from typing import Final

from selective_rollout.actions import default_answer
from selective_rollout.env.base import Observation, StepResult
from selective_rollout.types import Task

HOW_TO_ACT: Final = (
    "Work on the task step by step. Each of your messages is one step: write the next action and nothing "
    "else. As soon as you know the answer, write 'Final Answer:' followed by the answer."
)
GO_ON: Final = "Continue."

_MARKED: Final = re.compile(
    r"\bfinal answer\**[ \t]*:|<answer>|\\boxed\{"
    r"|\A\s*(?:answer|final_answer|finish|submit)\s*(?:\(.*\)|\[.*\])\s*\Z",
    re.IGNORECASE | re.DOTALL,
)


class PromptEnvironment:
    """Asks for the next step until an action states the final answer; scores nothing.

    The class itself is an `EnvironmentFactory`. An action is final if it is `answer(...)`, `finish(...)`,
    `submit(...)` or `final_answer(...)`, or holds `Final Answer:`, `<answer>` or a boxed answer.

    Args:
        task: not used, since the conversation holds the prompt.
        rollout: not used, since all rollouts of a task are alike.
    """

    replayable: Final = True

    def __init__(self, task: Task, rollout: int) -> None:
        pass

    def start(self) -> Observation:
        """Tell how to act."""
        return Observation(HOW_TO_ACT)

    def step(self, action: str) -> StepResult:
        """End the rollout if the action states an answer."""
        if _MARKED.search(action):
            return StepResult("", terminated=True, answer=default_answer(action))
        return StepResult(GO_ON)

    def close(self) -> None:
        """There is nothing to release."""
