"""The parts of the integration that need no training."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from selective_rollout.actions import ActionOptions
from selective_rollout.engine.training import TrainingGate
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.integrations.trl.batch import GateBatch
from selective_rollout.integrations.trl.losses import micro_batch_scale, row_scale
from selective_rollout.integrations.trl.rewards import kept_only
from selective_rollout.integrations.trl.tools import ToolLoop
from selective_rollout.integrations.trl.wording import Wording

RULE = GateConfig(start_step=2, tau=0.5)


def enforcing(**more: Any) -> TrainingGate:
    return TrainingGate(RULE, mode="enforce", certified=True, **more)


@given(kept=st.lists(st.booleans(), min_size=1, max_size=8), asynchronous=st.booleans())
@settings(max_examples=100)
def test_a_reward_function_sees_the_kept_rows_only(kept: list[bool], asynchronous: bool) -> None:
    seen: list[str] = []
    extra: list[Any] = []

    def judge(completions: list[str], log_extra: Any, trainer_state: Any, **others: Any) -> list[float]:
        seen.extend(completions)
        assert trainer_state == "state"
        log_extra("length", [len(text) for text in completions])
        return [float(text) for text in completions]

    async def judge_later(**arguments: Any) -> list[float]:
        return judge(**arguments)

    function = kept_only(judge_later if asynchronous else judge, lambda: kept)
    rows = [str(row + 1) for row in range(len(kept))]
    rewards = function(
        prompts=rows,
        completions=rows,
        trainer_state="state",
        log_extra=lambda column, values: extra.extend(values),
    )
    if asynchronous:
        rewards = asyncio.run(rewards)
    assert inspect.iscoroutinefunction(function) is asynchronous
    assert seen == [row for row, keep in zip(rows, kept, strict=True) if keep]
    assert rewards == [float(row) if keep else 0.0 for row, keep in zip(rows, kept, strict=True)]
    if any(kept):
        assert extra == [1 if keep else None for keep in kept]


def test_a_wrong_number_of_rewards_is_left_for_the_trainer_to_refuse() -> None:
    function = kept_only(lambda **arguments: [1.0], lambda: [True, False, True])
    assert function(completions=["a", "b", "c"]) == [1.0]


@given(kept=st.integers(0, 9), more=st.integers(0, 9))
@settings(max_examples=50)
def test_factors_turn_a_mean_over_all_into_one_over_what_is_left(kept: int, more: int) -> None:
    for scale, losses in ((row_scale, ("grpo", "dr_grpo", "sapo", "luspo")), (micro_batch_scale, ("bnpo",))):
        for loss_type in ("dapo", "cispo", "vespo", "bnpo", "grpo", "dr_grpo", "sapo", "luspo"):
            found = scale(loss_type, kept, kept + more)
            assert found == ((kept + more) / kept if loss_type in losses and kept else 1.0)


def said(*calls: str) -> dict[str, Any]:
    called = [{"type": "function", "function": {"name": call, "arguments": {}}} for call in calls]
    return {"role": "assistant", "content": "", **({"tool_calls": called} if called else {})}


def told(text: str) -> dict[str, Any]:
    return {"role": "tool", "name": "t", "content": text}


def looping(*firsts: dict[str, Any]) -> tuple[ToolLoop, list[list[dict[str, Any]]], GateBatch]:
    batch = GateBatch(enforcing(), [{"prompt": "p"}] * len(firsts), len(firsts), name="b", task_column=None)
    completions: list[list[Any]] = [[first] for first in firsts]
    return ToolLoop(batch, completions, [5] * len(firsts), ActionOptions()), completions, batch


def test_a_turn_that_was_truncated_to_nothing_ends_its_row() -> None:
    loop, rows, batch = looping(said("look"), said("look"))
    rows[0].append(told("x"))
    rows[1].append(told("y"))
    assert loop.next_turn() == [0, 1]
    rows[1] += [said("go"), told("z")]  # row 0 got nothing: its list has not grown
    assert loop.next_turn() == [1]
    rows[1].append(said())
    loop.end()
    batch.close([1.0, 0.0])
    assert (batch.gate.meter.signal, batch.gate.meter.steps) == (1, 4)


def test_a_row_whose_last_call_was_taken_back_is_truncated() -> None:
    loop, rows, batch = looping(said("look"), said("look"))
    rows[0].append(told("x"))  # row 1: its reply would not have fitted
    assert loop.next_turn() == [0]
    rows[0].append(said())
    loop.end()
    batch.close([1.0, 1.0])
    assert (batch.gate.meter.flat, batch.gate.meter.steps) == (1, 3)


def test_rows_that_are_no_whole_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match="6 rows are no whole groups of 4"):
        GateBatch(enforcing(), [{"prompt": "p"}] * 6, 4, name="b", task_column=None)


def test_a_replaced_place_shows_the_new_row() -> None:
    gate = enforcing(history=PromptHistory())
    inputs = [{"prompt": name, "task": name, "selective_rollout_row": name} for name in "aabb"]
    batch = GateBatch(gate, inputs, 2, name="b", task_column="task")
    assert batch.is_under_way({"task": "a"})
    assert batch.replace(batch.slots[0], {"prompt": "c", "task": "c", "selective_rollout_row": "9"})
    assert not batch.is_under_way({"task": "a"})
    assert batch.inputs[:2] == [{"prompt": "c", "task": "c"}] * 2
    assert batch.new_prompts == {0: "c", 1: "c"}
    batch.close([1, 0, 1, 1])
    assert gate.meter.groups == 3
    assert inputs[0]["prompt"] == "a"


@pytest.mark.parametrize("template", ["plain", "tools"])
def test_turns_add_up_to_the_conversation(
    template: str, tool_tokenizer: PreTrainedTokenizerFast, tokenizer: Any
) -> None:
    used = tokenizer if template == "plain" else tool_tokenizer
    trainer = SimpleNamespace(
        _tokenizer=used, chat_template=None, chat_template_kwargs={}, eos_token_ids=[used.eos_token_id]
    )
    wording = Wording(trainer)
    prompt = [{"role": "user", "content": "find it"}]
    ids = wording.opening(prompt, "three drawers")
    messages = [{"role": "user", "content": "find it\n\nthree drawers"}]
    for turn in ("open 1", "open 2"):
        said_ids = used.encode(turn + used.eos_token)
        ids += said_ids + wording.reply(f"{turn}: empty", chat=True)
        messages += [{"role": "assistant", "content": turn}, {"role": "user", "content": f"{turn}: empty"}]
        assert wording.text(said_ids) == turn
        assert wording.is_complete(said_ids, chat=True)
        assert not wording.is_complete(said_ids[:-1], chat=True)
    whole = used.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert ids == whole


def test_a_template_that_rewrites_what_was_said_is_refused(tokenizer: Any) -> None:
    tokenizer.chat_template = "{{ messages | length }}" + tokenizer.chat_template
    trainer = SimpleNamespace(
        _tokenizer=tokenizer,
        chat_template=None,
        chat_template_kwargs={},
        eos_token_ids=[tokenizer.eos_token_id],
    )
    with pytest.raises(ConfigError, match="changes earlier messages"):
        Wording(trainer).reply("x", chat=True)
