"""AReaL's real workflow executor, grouped workflow and choice of a workflow, around a scripted engine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from needs import need

need("areal")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the frameworks, of each other
    import torch
    from areal.api import ModelRequest, ModelResponse, RolloutWorkflow
    from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig
    from areal.infra.remote_inf_engine import GroupedRolloutWorkflow, RemoteInfEngine
    from areal.infra.workflow_executor import WorkflowExecutor
    from areal.utils import logging
    from torchdata.stateful_dataloader import StatefulDataLoader


class Engine:
    """What generates."""

    def __init__(self, world: Any, tokenizer: Any) -> None:
        self.world, self.tokenizer = world, tokenizer

    def get_version(self) -> int:
        return 0

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        said = [*self.tokenizer.encode(await self.world.say(self.tokenizer.decode(request.input_ids))), 0]
        count = len(said)
        return ModelResponse(request.input_ids, said, [-0.5] * count, [0] * count)


class Talk(RolloutWorkflow):
    """The reader's own workflow of one rollout; in a task with "?" rollout 1 breaks in its second turn."""

    def __init__(self, world: Any, tokenizer: Any) -> None:
        self.world, self.tokenizer = world, tokenizer
        self.begun: dict[str, int] = {}

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, torch.Tensor]:
        task = data["id"]
        rollout = self.begun[task] = self.begun.get(task, -1) + 1
        rollout %= self.world.size
        ids = self.tokenizer.encode(f"{task}#{rollout}:")
        for turn in range(self.world.turns_of(task, rollout)):
            if "?" in task and rollout == 1 and turn == 1:
                raise OSError("the tool is gone")
            asked = ModelRequest(input_ids=ids, gconfig=GenerationHyperparameters())
            answer = await engine.agenerate(asked)
            ids = [*ids, *answer.output_tokens, *self.tokenizer.encode("ok")]
        return {
            "input_ids": torch.tensor([ids]),
            "attention_mask": torch.ones(1, len(ids), dtype=torch.bool),
            "rewards": torch.tensor([self.world.reward(task, rollout)]),
        }


@pytest.fixture
def executor(world: Any, tokenizer: Any) -> Iterator[WorkflowExecutor]:
    settings = InferenceEngineConfig(consumer_batch_size=2, max_concurrent_rollouts=2, queue_size=16)
    made = WorkflowExecutor(settings, Engine(world, tokenizer))
    made.initialize(logger=logging.getLogger("test"), train_data_parallel_size=1)
    yield made
    made.destroy()


@pytest.fixture
def gated(sketch: Callable[..., Any], world: Any, tokenizer: Any) -> Callable[..., RolloutWorkflow]:
    """Makes the page's workflow around the reader's."""

    def make(gate: Any) -> RolloutWorkflow:
        return sketch("areal", gate).GatedWorkflow(Talk(world, tokenizer), world.size, tokenizer)

    return make


async def roll_out(workflow: RolloutWorkflow, task: str) -> Any:
    return await workflow.arun_episode(
        Engine(workflow.workflow.world, workflow.workflow.tokenizer), {"id": task}
    )


@pytest.fixture
def plain(world: Any, tokenizer: Any) -> RolloutWorkflow:
    """What AReaL makes without a gate."""
    return GroupedRolloutWorkflow(Talk(world, tokenizer), world.size, logging.getLogger("test"))


@pytest.mark.parametrize("mode", ["observe", "audit"])
@pytest.mark.parametrize("task", ["same=", "apart"])
async def test_what_is_not_cut_comes_out_as_without_a_gate(
    gated: Any, plain: Any, gate_of: Any, world: Any, mode: str, task: str
) -> None:
    gate = gate_of("observe") if mode == "observe" else gate_of(audit_rate=1.0)
    expected = await roll_out(plain, task)
    assert world.asked.pop(task) == world.all
    rows = await roll_out(gated(gate), task)
    assert world.asked[task] == world.all
    assert all(torch.equal(rows[name], expected[name]) for name in expected)
    assert gate.meter.would_cut == ("=" in task)


async def test_a_cut_group_is_no_trajectory(gated: Any, gate_of: Any, world: Any) -> None:
    gate = gate_of()
    assert await roll_out(gated(gate), "same=") is None
    assert world.asked["same="] == world.cut
    assert gate.meter.cut == 1


async def test_a_group_that_differs_is_kept(gated: Any, plain: Any, gate_of: Any, world: Any) -> None:
    expected = await roll_out(plain, "apart")
    rows = await roll_out(gated(gate_of()), "apart")
    assert torch.equal(rows["input_ids"], expected["input_ids"])
    assert rows["rewards"].tolist() == [1.0, 0.0, 0.0, 0.0]


async def test_a_member_that_ended_before_the_cut_goes_with_it(gated: Any, gate_of: Any) -> None:
    gate = gate_of()
    assert await roll_out(gated(gate), "same=!") is None
    assert gate.meter.cut == 1


async def test_requests_under_way_are_cancelled(gated: Any, gate_of: Any, world: Any) -> None:
    assert await roll_out(gated(gate_of()), "same=~") is None
    assert (world.asked["same=~"], world.given_up["same=~"]) == (world.cut, world.size - 1)


def test_the_executor_takes_other_prompts_for_those_cut(
    gated: Any, gate_of: Any, executor: Any, world: Any
) -> None:
    rows = [{"id": f"{letter}{'=' if letter in 'ace' else ''}"} for letter in "abcdefgh"]
    loader = StatefulDataLoader(rows, batch_size=2, collate_fn=list)
    batch = executor.prepare_batch(loader, workflow=gated(gate_of()))
    assert [len(each["rewards"]) for each in batch] == [world.size] * 2
    assert [sum(each["rewards"].tolist()) for each in batch] == [1.0] * 2
    assert executor.staleness_manager.get_stats().rejected >= 1


def test_a_broken_member_rejects_its_group_only(gated: Any, gate_of: Any, executor: Any) -> None:
    rows = [{"id": name} for name in ("bad?", "a", "b", "c")]
    loader = StatefulDataLoader(rows, batch_size=2, collate_fn=list)
    gate = gate_of()
    batch = executor.prepare_batch(loader, workflow=gated(gate))
    assert len(batch) == 2
    assert gate.meter.cut == 0


@pytest.mark.parametrize(("samples", "wrapped"), [(1, False), (4, True)])
def test_areal_wraps_it_again_unless_told_to_sample_once(
    gated: Any, gate_of: Any, samples: int, wrapped: bool
) -> None:
    workflow = gated(gate_of())
    engine = SimpleNamespace(logger=logging.getLogger("test"))
    resolved = RemoteInfEngine._resolve_workflow(engine, workflow, None, samples)
    assert isinstance(resolved, GroupedRolloutWorkflow) is wrapped
    assert (resolved.workflow if wrapped else resolved) is workflow


def test_areal_makes_it_by_its_name(gated: Any, gate_of: Any) -> None:
    gated(gate_of())
    engine = SimpleNamespace(logger=logging.getLogger("test"))
    given = {"workflow": None, "size": 4, "tokenizer": None}
    resolved = RemoteInfEngine._resolve_workflow(engine, "other_trainers.GatedWorkflow", given)
    assert type(resolved).__name__ == "GatedWorkflow"
