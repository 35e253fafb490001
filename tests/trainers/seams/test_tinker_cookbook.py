"""tinker-cookbook's real group rollout, rollout runner and executor, around a scripted sampling client."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from needs import need

need("tinker-cookbook")

from tests.certified import write_certified_gate

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the frameworks, of each other
    from tinker_cookbook.rl.metric_util import RLTestSetEvaluator
    from tinker_cookbook.rl.rollout_strategy import RolloutStrategy, rollout_strategy_from_config
    from tinker_cookbook.rl.rollouts import do_group_rollout_and_filter_constant_reward, set_rollout_executor
    from tinker_world import Builder, Client


async def roll_out(client: Client, task: str, strategy: RolloutStrategy | None = None) -> Any:
    return await do_group_rollout_and_filter_constant_reward(
        client, Builder(task), 64, 1.0, do_remove_constant_reward_groups=False, strategy=strategy
    )


@pytest.fixture
def gated(
    sketch: Callable[..., Any], page: Callable[[str], str], tmp_path: Path
) -> Callable[..., RolloutStrategy]:
    """Makes the page's strategy; without a gate, it makes its own of the file."""

    def make(gate: Any = None) -> RolloutStrategy:
        write_certified_gate(tmp_path / "gate.toml", start_step=2)
        text = page("tinker-cookbook").replace("audit_rate=0.1", "audit_rate=0.0")
        module = sketch("tinker-cookbook", text=f"from tinker_world import tokenizer\n{text}")
        if gate is not None:
            module.gate_of = lambda gate_file: gate
        return module.Gated(str(tmp_path / "gate.toml"))

    return make


@pytest.mark.parametrize("mode", ["observe", "audit"])
@pytest.mark.parametrize("task", ["same=", "apart"])
async def test_what_is_not_cut_comes_out_as_without_a_gate(
    gated: Any, gate_of: Any, world: Any, mode: str, task: str
) -> None:
    gate = gate_of("observe") if mode == "observe" else gate_of(audit_rate=1.0)
    expected = await roll_out(Client(world), task)
    assert world.asked.pop(task) == world.all
    assert await roll_out(Client(world), task, gated(gate)) == expected
    assert world.asked[task] == world.all
    assert gate.meter.would_cut == ("=" in task)


async def test_a_cut_group_is_none(gated: Any, gate_of: Any, world: Any) -> None:
    gate = gate_of()
    assert await roll_out(Client(world), "same=", gated(gate)) is None
    assert world.asked["same="] == world.cut
    assert gate.meter.cut == 1


async def test_a_group_that_differs_is_kept(gated: Any, gate_of: Any, world: Any) -> None:
    group = await roll_out(Client(world), "apart", gated(gate_of()))
    assert group == await roll_out(Client(), "apart")
    assert group.get_total_rewards() == [1.0, 0.0, 0.0, 0.0]
    assert world.asked["apart"] == world.all


async def test_a_member_that_ended_before_the_cut_goes_with_it(gated: Any, gate_of: Any) -> None:
    gate = gate_of()
    assert await roll_out(Client(), "same=!", gated(gate)) is None
    assert gate.meter.cut == 1


async def test_requests_under_way_are_cancelled(gated: Any, gate_of: Any, world: Any) -> None:
    assert await roll_out(Client(world), "same=~", gated(gate_of())) is None
    assert (world.asked["same=~"], world.given_up["same=~"]) == (world.cut, world.size - 1)


async def test_another_error_ends_the_training_as_before(gated: Any, gate_of: Any, world: Any) -> None:
    gate = gate_of()
    with pytest.raises(OSError, match="the tool is gone"):
        await roll_out(Client(world), "bad?", gated(gate))
    assert (gate.meter.groups, gate.meter.cut) == (1, 0)


class TestSet:
    """One problem."""

    __test__ = False

    def __len__(self) -> int:
        return 1

    def get_batch(self, index: int) -> list[Builder]:
        return [Builder("same=", training=False)]


async def test_the_evaluator_is_given_it_and_cuts_nothing(gated: Any, gate_of: Any, world: Any) -> None:
    gate = gate_of()
    await RLTestSetEvaluator(TestSet(), max_tokens=64, strategy=gated(gate))(Client(world))
    assert world.asked["same="] == world.all
    assert gate.meter.groups == 0


def test_the_configuration_takes_it(gated: Any) -> None:
    strategy = gated()
    assert rollout_strategy_from_config(strategy) is strategy


@pytest.fixture
def other_process() -> Iterator[None]:
    """One process of the executor's."""
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    set_rollout_executor(pool)
    yield
    set_rollout_executor(None)
    pool.shutdown()


async def test_another_process_makes_a_gate_of_its_own(gated: Any, other_process: None) -> None:
    strategy = gated()
    same, apart = [await roll_out(Client(), task, strategy) for task in ("same=", "apart")]
    assert same is None
    assert apart.get_total_rewards() == [1.0, 0.0, 0.0, 0.0]
