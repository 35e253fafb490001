"""What the gate counts on in verl and no other test here runs; a new verl that changes it fails here."""

from __future__ import annotations

import inspect

import pytest
import verl
from verl.experimental.agent_loop import AgentLoopManager, AgentLoopWorker
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient


def test_the_version_is_the_one_that_was_tested() -> None:
    assert verl.__version__.startswith("0.9.")


@pytest.mark.parametrize("client", [LLMServerClient, FullyAsyncLLMServerClient])
def test_prompts_are_asked_for_by_name(client: type) -> None:
    asked = inspect.signature(client.generate).parameters["prompt_ids"]  # type: ignore[attr-defined]
    assert asked.kind is inspect.Parameter.KEYWORD_ONLY


def test_the_older_trainer_numbers_rows_that_stand_side_by_side() -> None:
    source = inspect.getsource(AgentLoopManager.generate_sequences)
    assert source.index('"priority"') < source.index(".chunk(")
    assert "repeat(repeat_times=rollout_n, interleave=True)" in inspect.getsource(RayPPOTrainer.fit)


def test_every_rollout_has_an_agent_loop_of_its_own() -> None:
    assert "hydra.utils.instantiate" in inspect.getsource(AgentLoopWorker._run_agent_loop)
