"""TRL's own tool loop, watched: converged groups leave it and pay for no further turn."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from datasets import Dataset
from transformers import PreTrainedTokenizerFast
from trl import GRPOTrainer

from selective_rollout.engine.training import TrainingGate
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.integrations.trl import GroupGateMixin

RULE = GateConfig(start_step=2, tau=0.5)
TASKS = Dataset.from_dict(
    {
        "prompt": [[{"role": "user", "content": f"{name} "}] for name in ("a", "b=")],
        "task": ["a", "b"],
    }
)


class Drawer:
    """An environment as TRL wants it: `reset`, tools as methods, its own reward."""

    made = 0

    def __init__(self) -> None:
        self.number = Drawer.made % 4
        Drawer.made += 1
        self.opened = 0

    def reset(self, **row: Any) -> str:
        self.opened = 0
        return f"member {self.number}"

    def open(self, which: str) -> str:
        """Open a drawer.

        Args:
            which: the drawer.
        """
        self.opened += 1
        return f"nothing in {which}"

    def get_reward(self) -> float:
        return float(self.number % 2)


class Caller(GRPOTrainer):  # type: ignore[misc]
    """Opens four drawers and gives an answer; on tasks marked "=" everybody opens the same ones."""

    generated = 0

    def _generate_single_turn(self, prompt_ids: list[list[int]], *others: Any, **options: Any) -> Any:
        self.generated += len(prompt_ids)
        end = self._tokenizer.eos_token
        said = [self._says(self._tokenizer.decode(ids)) + end for ids in prompt_ids]
        return [self._tokenizer.encode(text) for text in said], None

    @staticmethod
    def _says(heard: str) -> str:
        turn = heard.count("<tool_response>")
        if turn == 4:
            return "done"
        member = heard.split("member ")[1][0]
        which = f"{turn}" if "= member" in heard else f"{turn} of {member}"
        return f"<tool_call>\n{json.dumps({'name': 'open', 'arguments': {'which': which}})}\n</tool_call>"


class GatedCaller(GroupGateMixin, Caller):
    """With a gate."""


@pytest.fixture(autouse=True)
def _numbered() -> None:
    Drawer.made = 0


@pytest.fixture
def train(make_trainer: Callable[..., Any], tool_tokenizer: PreTrainedTokenizerFast) -> Callable[..., Any]:
    def run(gate: TrainingGate, **options: Any) -> Any:
        trainer = make_trainer(
            options.pop("reward_funcs", None),
            TASKS,
            gate=gate,
            trainer=options.pop("trainer_class", GatedCaller),
            processing_class=tool_tokenizer,
            config={
                "max_completion_length": 1000,
                "gradient_accumulation_steps": 1,
                **options.pop("config", {}),
            },
            **options,
        )
        trainer.train()
        return trainer

    return run


def test_groups_that_converge_leave_the_tool_loop(train: Callable[..., Any]) -> None:
    gate = TrainingGate(RULE, mode="enforce", certified=True)
    trainer = train(gate, environment_factory=Drawer)
    assert (gate.meter.groups, gate.meter.cut, gate.meter.signal) == (2, 1, 1)
    assert trainer.generated == 4 * 5 + 4 * 2
    assert gate.meter.steps == trainer.generated
    (logged,) = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert logged["rewards/Drawer/mean"] == 0.5
    assert logged["gate/cut"] == 1


def test_observing_leaves_the_loop_alone_and_says_what_it_would_save(train: Callable[..., Any]) -> None:
    gate = TrainingGate(RULE)
    trainer = train(gate, environment_factory=Drawer)
    assert trainer.generated == 2 * 4 * 5
    assert gate.meter.metrics()["gate/steps_avoided"] == 4 * 3


def test_the_loop_s_own_limits_end_a_rollout_as_truncated(train: Callable[..., Any]) -> None:
    gate = TrainingGate(GateConfig(start_step=3, tau=0.5), mode="enforce", certified=True)
    with pytest.warns(UserWarning, match="max_tool_calling_iterations=2.*it can never fire"):
        trainer = train(gate, environment_factory=Drawer, config={"max_tool_calling_iterations": 2})
    assert (gate.meter.cut, gate.meter.groups) == (0, 2)
    assert gate.meter.steps == trainer.generated == 2 * 4 * 3


def test_a_skipped_prompt_costs_no_turn_and_no_tool(train: Callable[..., Any]) -> None:
    history = PromptHistory()
    for visit in range(4):
        history.record("b", f"before-{visit}", (1, 1, 1, 1))
    gate = TrainingGate(
        RULE, mode="enforce", certified=True, history=history, skip_probability=0.999, skip_last=4
    )
    judged: list[int] = []

    def judge(completions: list[Any], **others: Any) -> list[float]:
        judged.append(len(completions))
        return [0.0, 1.0] * (len(completions) // 2)

    trainer = train(gate, environment_factory=Drawer, reward_funcs=[judge], task_column="task")
    assert (gate.meter.skipped, gate.meter.groups, gate.meter.cut) == (1, 1, 0)
    assert trainer.generated == 4 * 5
    assert judged == [4]


def open_drawer(which: str) -> str:
    """Open a drawer.

    Args:
        which: the drawer.
    """
    return f"nothing in {which}"


def test_plain_tools_are_gated_too(train: Callable[..., Any]) -> None:
    gate = TrainingGate(RULE, mode="enforce", certified=True)

    class Plain(GatedCaller):
        def _says(self, heard: str) -> str:  # type: ignore[override]
            turn = heard.count("<tool_response>")
            call = {"name": "open_drawer", "arguments": {"which": str(turn)}}
            return "done" if turn == 4 else f"<tool_call>\n{json.dumps(call)}\n</tool_call>"

    def reward(completions: list[Any], **others: Any) -> list[float]:
        return [0.0] * len(completions)

    trainer = train(gate, tools=[open_drawer], reward_funcs=[reward], trainer_class=Plain)
    assert gate.meter.cut == 2
    assert trainer.generated == 2 * 4 * 2
