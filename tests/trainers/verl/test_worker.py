"""The gated tool loop in verl's own worker, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from verl_world import SIZE, TURNS, batch_of

from selective_rollout.errors import ConfigError
from selective_rollout.integrations.verl import STAND_IN_REWARD, NotGatedWarning

ALL = SIZE * TURNS
AT_THE_CHECK = SIZE * 2


async def test_a_cut_group_is_not_generated_to_its_end(local: Callable[..., Any]) -> None:
    made = local()
    output = await made.worker.generate_sequences(batch_of(["a=", "b", "c="]))
    for task in ("a=", "c="):
        assert AT_THE_CHECK <= made.servers.asked[task] <= AT_THE_CHECK + SIZE - 1
    assert made.servers.asked["b"] == ALL
    trained = output.batch["response_mask"].sum(-1) > 0
    assert trained.tolist() == [False] * SIZE + [True] * SIZE + [False] * SIZE
    assert made.coordinator.gate.meter.cut == 2


async def test_without_the_gate_every_request_is_made(local: Callable[..., Any]) -> None:
    made = local("actor_rollout_ref.rollout.agent.default_agent_loop=plain")
    await made.worker.generate_sequences(batch_of(["a=", "b", "c="]))
    assert set(made.servers.asked.values()) == {ALL}


async def test_observing_changes_nothing_but_counts(local: Callable[..., Any]) -> None:
    made = local(mode="observe")
    output = await made.worker.generate_sequences(batch_of(["a=", "b"]))
    assert set(made.servers.asked.values()) == {ALL}
    assert (output.batch["response_mask"].sum(-1) > 0).all()


async def test_every_row_of_a_cut_group_is_the_same_and_teaches_nothing(local: Callable[..., Any]) -> None:
    made = local()
    output = await made.worker.generate_sequences(batch_of(["a="]))
    assert output.batch["rm_scores"].sum(-1).tolist() == [STAND_IN_REWARD] * SIZE
    assert not output.batch["response_mask"].any()
    assert output.batch["rollout_log_probs"].shape == output.batch["responses"].shape
    assert output.non_tensor_batch["min_global_steps"].tolist() == [1] * SIZE
    heard = made.servers.tokenizer.decode(output.batch["prompts"][0], skip_special_tokens=True)
    assert "[user]a=" in heard


async def test_a_reward_beside_the_score_is_there_where_it_was_asked_for(local: Callable[..., Any]) -> None:
    made = local("algorithm.filter_groups.metric=acc")
    output = await made.worker.generate_sequences(batch_of(["a="]))
    assert output.non_tensor_batch["acc"].tolist() == [STAND_IN_REWARD] * SIZE


async def test_validation_and_greedy_baselines_are_not_gated(local: Callable[..., Any]) -> None:
    made = local()
    await made.worker.generate_sequences(batch_of(["a="], validate=True))
    assert made.servers.asked["a="] == ALL
    greedy = batch_of(["c="])
    greedy.non_tensor_batch["__do_sample__"] = torch.zeros(SIZE, dtype=torch.bool).numpy()
    await made.worker.generate_sequences(greedy)
    assert made.servers.asked["c="] == ALL


async def test_validation_has_to_sample_in_its_own_way(local: Callable[..., Any]) -> None:
    made = local("actor_rollout_ref.rollout.val_kwargs.temperature=1.0")
    with pytest.raises(Exception, match="make rollout.val_kwargs differ") as found:
        await made.worker.generate_sequences(batch_of(["a="]))
    assert isinstance(found.value.__cause__, ConfigError)


async def test_a_setting_that_nobody_knows_is_refused(local: Callable[..., Any]) -> None:
    made = local(lease_s="300\n  tau: 0.06")
    with pytest.raises(Exception, match="tau is no setting of the gate .*stand in the gate file") as found:
        await made.worker.generate_sequences(batch_of(["a="]))
    assert isinstance(found.value.__cause__, ConfigError)


@pytest.mark.filterwarnings("default")
async def test_rows_that_nothing_numbers_run_without_a_gate(local: Callable[..., Any]) -> None:
    made = local()
    with pytest.warns(NotGatedWarning, match="do not tell its place in a group of 4"):
        await made.worker.generate_sequences(batch_of(["a="], numbered=False))
    assert made.servers.asked["a="] == ALL


async def test_an_action_is_the_call_that_verl_reads(local: Callable[..., Any]) -> None:
    made = local(mode="observe")
    await made.worker.generate_sequences(batch_of(["a="]))
    outcome = closed(made)
    steps = outcome.group.rollouts[0].steps
    assert len(steps) == TURNS
    assert [step.action for step in steps[:2]] == ['look({"place":"room 0"})', 'look({"place":"room 1"})']
    assert "nothing in room 0" in (steps[0].observation or "")


async def test_an_error_of_the_servers_is_the_trainers_to_handle(local: Callable[..., Any]) -> None:
    made = local()
    made.servers.tokenizer = None
    with pytest.raises(AttributeError):
        await made.worker.generate_sequences(batch_of(["b"]))


def closed(made: Any) -> Any:
    """The outcome of the one open group."""
    (place,) = made.coordinator._places.values()
    return place.group.close()
