"""One engine actor's calls: who belongs to whom, what a cut does, and what a broken member does not do."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from openrlhf.utils.agent import AgentExecutorBase
from worlds import Corridor

from selective_rollout.engine.training import TrainingGate
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.gate.schedule import linear
from selective_rollout.integrations.openrlhf import (
    DROPPED_SCORE,
    GatedMultiTurnExecutor,
    GroupGateMixin,
    NotGatedWarning,
)
from selective_rollout.trace.recorder import Recorder

RULE = GateConfig(start_step=2, tau=0.5)
ALL = 4 * 6


def gate(**settings: Any) -> TrainingGate:
    return TrainingGate(RULE, **{"mode": "enforce", "certified": True, **settings})


def executor(made: TrainingGate | None = None, **options: Any) -> GatedMultiTurnExecutor:
    settings = {"gate": made or gate(), "group_size": 4, "dynamic_filtering": True, **options}
    return GatedMultiTurnExecutor(Corridor, **settings)


async def test_every_row_of_a_cut_group_is_out_of_the_filters_range(local: Callable[..., Any]) -> None:
    bench = local(executor())
    rows = await bench.rollouts("a=")
    assert [row["scores"] for row in rows] == [DROPPED_SCORE] * 4
    assert [row["reward"] for row in rows] == [0.0] * 4
    assert bench.llm.asked["a="] < ALL / 2
    assert bench.llm.aborted["a="] == 3
    assert bench.llm.running == 0
    assert bench.executor.gate.meter.cut == 1


async def test_a_group_that_goes_on_is_as_it_would_be_without_a_gate(local: Callable[..., Any]) -> None:
    kept = await local(executor()).rollouts("b", logprobs=1)
    Corridor.numbers.clear()
    plain = await local(executor(gate(mode="observe"))).rollouts("b", logprobs=1)
    for row, other in zip(kept, plain, strict=True):
        assert {**row, "extra_logs": None} == {**other, "extra_logs": None}
    assert [row["reward"] for row in kept] == [1.0, 0.0, 1.0, 0.0]
    assert kept[0]["extra_logs"]["turns"] == 6


async def test_without_filtering_the_stand_in_is_no_sentinel(local: Callable[..., Any]) -> None:
    bench = local(executor(dynamic_filtering=False, extra_logs=["turns"]))
    cut, kept = await asyncio.gather(bench.rollouts("a=", logprobs=1), bench.rollouts("b", logprobs=1))
    for row in cut:
        assert (row["reward"], row["scores"]) == (0.0, 0.0)
        # Its first token, with what the engine said of it, behind the prompt that it was asked.
        size = len(row["observation_tokens"])
        assert row["action_ranges"] == [(size - 1, size)]
        assert bytes(row["observation_tokens"]).startswith(b"a=:#")
        assert row["rollout_log_probs"] == [0.0] * (size - 1) + [-0.5]
    assert {frozenset(row["extra_logs"]) for row in cut + kept} == {
        frozenset(("turns", "gate/kept", "gate/cut_rate", "gate/enforcing"))
    }
    assert [row["extra_logs"]["gate/kept"] for row in cut + kept] == [0.0] * 4 + [1.0] * 4


async def test_the_same_prompt_twice_at_once_makes_two_groups(local: Callable[..., Any]) -> None:
    bench = local(executor())
    rows = await asyncio.gather(*(bench.rollouts("b") for _ in range(3)), bench.rollouts("a="))
    assert [len(each) for each in rows] == [4] * 4
    assert bench.executor.gate.meter.groups == 4
    assert bench.executor.gate.meter.cut == 1
    assert not bench.executor._calls._open


async def test_a_member_that_finished_before_the_cut_is_dropped_with_its_group(
    local: Callable[..., Any],
) -> None:
    class Hasty(Corridor):
        async def step(self, states: dict[str, Any], **options: Any) -> dict[str, Any]:
            result = await super().step(states, **options)
            return {**result, "done": result["done"] or (self.member == 0 and self.turn == 1)}

    made = GatedMultiTurnExecutor(Hasty, gate=gate(), group_size=4, dynamic_filtering=False)
    rows = await local(made).rollouts("a=")
    assert made.gate.meter.cut == 1
    assert [row["extra_logs"]["gate/kept"] for row in rows] == [0.0] * 4
    assert {tuple(map(tuple, row["action_ranges"])) for row in rows} == {((6, 7),)}


async def test_a_cut_cancels_environments_too(local: Callable[..., Any]) -> None:
    cancelled = []

    class Slow(Corridor):
        async def step(self, states: dict[str, Any], **options: Any) -> dict[str, Any]:
            if self.turn == 1 and self.member == 3:
                await asyncio.sleep(0.6)
            if self.turn == 2:
                try:
                    await asyncio.sleep(30)
                except asyncio.CancelledError:
                    cancelled.append(self.member)
                    raise
            return await super().step(states, **options)

    made = GatedMultiTurnExecutor(Slow, gate=gate(), group_size=4, dynamic_filtering=True)
    bench = local(made)
    await asyncio.wait_for(bench.rollouts("a="), 10)
    assert sorted(cancelled) == [0, 1, 2]
    assert not bench.llm.aborted


@pytest.mark.parametrize("hold", ["none", "all"])
async def test_a_broken_member_ends_the_call_and_nobody_hangs(local: Callable[..., Any], hold: str) -> None:
    bench = local(executor(gate(hold=hold)))
    before = asyncio.all_tasks()
    with pytest.raises(RuntimeError, match="fell in"):
        await bench.rollouts("d!")
    left = asyncio.all_tasks() - before
    await asyncio.wait_for(asyncio.gather(*left, return_exceptions=True), 10)
    meter = bench.executor.gate.meter
    assert (meter.groups, meter.cut) == (1, 0)


async def test_a_cancelled_call_passes_through(local: Callable[..., Any]) -> None:
    bench = local(executor())
    call = asyncio.create_task(bench.rollouts("b"))
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0.01)
    assert bench.llm.running == 0
    assert bench.executor.gate.meter.groups == 1
    assert bench.executor.gate.meter.cut == 0


async def test_a_call_cancelled_before_it_began_leaves_nothing_behind(local: Callable[..., Any]) -> None:
    bench = local(executor())
    call = asyncio.create_task(bench.rollouts("b"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0.01)
    assert not bench.executor._calls._open


async def test_evaluation_runs_without_a_gate(local: Callable[..., Any]) -> None:
    bench = local(executor())
    with pytest.warns(NotGatedWarning, match=r"temperature 0\.6 run without a gate"):
        rows = await bench.rollouts("a=", sampling={"temperature": 0.6})
    with pytest.warns(NotGatedWarning, match="3 rollouts a prompt"):
        rows += await bench.rollouts("a=", 3)
    assert len(rows) == 7
    assert all(row["scores"] != DROPPED_SCORE for row in rows)
    assert bench.executor.gate.begun == 0
    with warnings.catch_warnings(record=True) as again:
        await bench.rollouts("a=", 3)
    assert not again


async def test_images_are_gated_only_where_dropped_rows_are_filtered_out(local: Callable[..., Any]) -> None:
    bench = local(executor(dynamic_filtering=False))
    with pytest.warns(NotGatedWarning, match="images"):
        await bench.rollouts("a=", images=["picture.png"])
    filtered = local(executor())
    rows = await filtered.rollouts("a=", images=["picture.png"])
    assert [row["scores"] for row in rows] == [DROPPED_SCORE] * 4


async def test_cut_groups_stay_out_of_the_prompts_history(local: Callable[..., Any]) -> None:
    history = PromptHistory()
    bench = local(executor(gate(history=history), task_of=lambda prompt, label: prompt))
    await bench.rollouts("a=")
    await bench.rollouts("b")
    assert history.last("a=:", 4) == ()
    assert history.last("b:", 4) == (1.0, 0.0, 1.0, 0.0)


async def test_a_prompt_that_is_skipped_costs_nothing_and_is_replaced(local: Callable[..., Any]) -> None:
    history = PromptHistory()
    for visit in range(2):
        history.record("b:", f"before-{visit}", (1, 1, 1, 1))
    made = executor(
        gate(history=history, skip_probability=0.999, skip_last=4), task_of=lambda prompt, label: prompt
    )
    bench = local(made)
    rows = await bench.rollouts("b")
    assert [row["scores"] for row in rows] == [DROPPED_SCORE] * 4
    assert bench.llm.asked["b"] == 0
    assert made.gate.meter.skipped == 1


def test_skipping_needs_filtering() -> None:
    skipping = gate(history=PromptHistory(), skip_probability=0.5, skip_last=4)
    with pytest.raises(ConfigError, match="skip_probability needs dynamic filtering"):
        executor(skipping, dynamic_filtering=False)


def test_anything_but_a_training_gate_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gate must be a TrainingGate\(...\), not str"):
        executor("gate.toml")  # type: ignore[arg-type]


def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="group_size must be at least 2"):
        executor(group_size=1)


async def test_the_same_seed_for_all_is_no_convergence(local: Callable[..., Any]) -> None:
    bench = local(executor())
    rows = await bench.rollouts("a=", sampling={"seed": 7})
    assert all(row["scores"] != DROPPED_SCORE for row in rows)


async def test_a_hold_spares_what_would_be_ahead(local: Callable[..., Any]) -> None:
    bench = local(executor(gate(hold="all")))
    rows = await bench.rollouts("a=")
    assert [row["scores"] for row in rows] == [DROPPED_SCORE] * 4
    assert bench.llm.asked["a="] == 4 * 2
    assert not bench.llm.aborted
    assert [row["reward"] for row in await bench.rollouts("b")] == [1.0, 0.0, 1.0, 0.0]


async def test_an_audited_cut_runs_on_and_is_scored(local: Callable[..., Any]) -> None:
    bench = local(executor(gate(audit_rate=0.999)))
    rows = await bench.rollouts("a=")
    assert bench.llm.asked["a="] == ALL
    assert all(row["extra_logs"]["gate/kept"] == 1.0 for row in rows)
    meter = bench.executor.gate.meter
    assert (meter.cut, meter.would_cut, meter.flat) == (0, 1, 1)


async def test_observing_stops_nothing(local: Callable[..., Any]) -> None:
    bench = local(executor(gate(mode="observe")))
    rows = await bench.rollouts("a=")
    assert bench.llm.asked["a="] == ALL
    assert all(row["extra_logs"]["gate/kept"] == 1.0 for row in rows)
    assert rows[0]["extra_logs"]["gate/cut_rate"] == 1.0
    assert rows[0]["extra_logs"]["gate/enforcing"] == 0.0


async def test_rewards_that_differ_by_rounding_are_flat(local: Callable[..., Any]) -> None:
    # OpenRLHF's filter looks at the mean, so such a group passes it: github.com/OpenRLHF/OpenRLHF/pull/1272
    rewards = [0.6667, 0.66670001, 0.6667, 0.66669999]

    class Noisy(Corridor):
        async def step(self, states: dict[str, Any], **options: Any) -> dict[str, Any]:
            result = await super().step(states, **options)
            reward = rewards[self.member] if result["done"] else 0.0
            return {**result, "rewards": torch.tensor(reward, dtype=torch.float64)}

    made = GatedMultiTurnExecutor(Noisy, gate=gate(mode="observe"), group_size=4, dynamic_filtering=True)
    rows = await local(made).rollouts("b")
    assert len({row["reward"] for row in rows}) > 1
    assert (made.gate.meter.flat, made.gate.meter.signal) == (1, 0)


async def test_a_schedule_follows_the_groups(local: Callable[..., Any]) -> None:
    made = gate(schedule=linear(0.5, 0.0))
    bench = local(executor(made, planned_groups=2))
    first = await bench.rollouts("a=")
    assert first[0]["scores"] == DROPPED_SCORE
    await bench.rollouts("b")
    await bench.rollouts("a=")
    assert made.tau == 0.0


async def test_the_trace_holds_actions_replies_and_the_cut(local: Callable[..., Any], tmp_path: Path) -> None:
    with Recorder(tmp_path / "runs", record_observations=True) as recorder:
        bench = local(executor(gate(recorder=recorder)))
        await bench.rollouts("a=")
        await bench.rollouts("b")
    (path,) = (tmp_path / "runs").rglob("*.jsonl")
    events = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [event for event in events if event["type"] == "step"]
    assert steps[0]["action"] == "go 0"
    assert steps[0]["observation"] == " ok "
    assert {event.get("outcome") for event in events if event["type"] == "group_end"} == {"drop", None}
    groups = [event for event in events if event["type"] == "group"]
    assert len({event["task_id"] for event in groups}) == 2


async def test_an_executor_of_ones_own_is_gated_as_well(local: Callable[..., Any]) -> None:
    class Mine(AgentExecutorBase):
        async def execute(
            self,
            prompt: Any,
            label: Any,
            sampling_params: Any,
            max_length: int,
            hf_tokenizer: Any,
            llm_engine: Any,
            images: Any = None,
        ) -> dict[str, Any]:
            tokens = list(f"{prompt}#0 ".encode())
            for _ in range(6):
                output = await llm_engine.generate(tokens, sampling_params)
                tokens = tokens + output.outputs[0].token_ids + list(b" ok ")
            assert llm_engine.get_num_unfinished_requests() >= 0
            return {
                "prompt": prompt,
                "label": label,
                "reward": None,
                "scores": None,
                "observation_tokens": tokens,
                "action_ranges": [(4, len(tokens))],
                "rollout_log_probs": None,
            }

    class Gated(GroupGateMixin, Mine):
        pass

    made = Gated(gate=gate(), group_size=4, dynamic_filtering=True)
    bench = local(made)
    assert [row["scores"] for row in await bench.rollouts("a=")] == [DROPPED_SCORE] * 4
    kept = Gated(gate=gate(mode="observe"), group_size=4, dynamic_filtering=True)
    assert [row["reward"] for row in await local(kept).rollouts("a=")] == [None] * 4
    assert kept.gate.meter.unlabelled == 1
