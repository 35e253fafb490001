"""Real Ray, OpenRLHF's real engine actor, executor and samples generator, around an engine that counts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray", reason="make test-trainers installs ray into an environment of its own")
pytest.importorskip("openrlhf", reason="make test-trainers installs openrlhf into an environment of its own")

sys.path.insert(0, str(Path(__file__).parent / "workers"))
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from actors import EngineActor, LocalActor
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from tests.trainers.marking import mark
from vllm import SamplingParams
from worlds import Bytes, Corridor

WORKERS = Path(__file__).parent / "workers"
_OTHERS_WARNINGS = ("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning")

AGENT = """
from worlds import Corridor

from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.integrations.openrlhf import GatedMultiTurnExecutor, TrainingGate


class AgentExecutor(GatedMultiTurnExecutor):
    def __init__(self):
        gate = TrainingGate(
            GateConfig(start_step=2, tau=0.5), mode="enforce", certified=True, history=PromptHistory()
        )
        super().__init__(
            Corridor, gate=gate, group_size=4, dynamic_filtering={filtering}, extra_logs=["turns"]
        )
"""
UNGATED = """
from openrlhf.utils.agent import MultiTurnAgentExecutor
from worlds import Corridor


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(Corridor)
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, Path(__file__).parent, _OTHERS_WARNINGS)


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Ray on two CPUs, whose workers find the stand-in for vLLM."""
    ray.init(
        num_cpus=2,
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100_000_000,
        runtime_env={"env_vars": {"PYTHONPATH": str(WORKERS), "CUDA_VISIBLE_DEVICES": ""}},
    )
    yield
    ray.shutdown()


def make_generator(
    actors: list[Any], prompts: list[str], *, filtering: bool, batch: int, logprobs: bool = False
) -> Any:
    """OpenRLHF's generator of samples over these prompts."""
    args = SimpleNamespace(
        rollout=SimpleNamespace(batch_size=batch, n_samples_per_prompt=4, vllm_generate_batch_size=batch),
        vllm=SimpleNamespace(enable_sleep=False),
        algo=SimpleNamespace(
            dynamic_filtering_enable=filtering,
            dynamic_filtering_range=(0.0, 1.0),
            advantage=SimpleNamespace(is_correction_level="token" if logprobs else "off"),
        ),
    )
    rows = [(["data"], [f"{prompt}:"], ["label"], [None]) for prompt in prompts]
    return SamplesGenerator(SimpleNamespace(args=args), rows, rows, Bytes(), actors)


class Bench:
    """One engine actor with an agent file, and OpenRLHF's generator of samples in front of it."""

    def __init__(self, agent: str, folder: Path) -> None:
        path = folder / "agent.py"
        path.write_text(agent, encoding="utf-8")
        self.actor = EngineActor.options(num_cpus=0.5).remote(
            model="tiny", agent_func_path=str(path), num_gpus=1, distributed_executor_backend="uni"
        )

    def samples(self, prompts: list[str], **options: Any) -> list[Any]:
        """One batch of experiences."""
        made = make_generator([self.actor], prompts, **options)
        return list(made.generate_samples(max_len=400, temperature=1.0)[0])

    def evaluation(self, prompts: list[str]) -> list[Any]:
        """Experiences of OpenRLHF's evaluation."""
        made = make_generator([self.actor], prompts, filtering=True, batch=len(prompts))
        return list(made.generate_eval_samples(max_len=400, temperature=0.6))

    def seen(self) -> dict[str, Any]:
        """See `EngineActor.seen`."""
        return dict(ray.get(self.actor.seen.remote()))

    def close(self) -> None:
        ray.kill(self.actor)


@pytest.fixture
def bench(cluster: None, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes a bench with a gated agent, or with the agent file given."""
    made: list[Bench] = []

    def make(agent: str | None = None, *, filtering: bool = True) -> Bench:
        made.append(Bench(agent or AGENT.format(filtering=filtering), tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def generator() -> Any:
    """OpenRLHF's generator without actors, to turn rows into experiences."""
    return make_generator([], [], filtering=False, batch=1)


@pytest.fixture
def ungated() -> str:
    """The agent file as it was before the gate."""
    return UNGATED


class Local:
    """The engine actor's own code in this process; call it as OpenRLHF's generator does."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        self.actor = LocalActor(executor)
        self.llm = self.actor.llm

    async def rollouts(
        self, prompt: str, size: int = 4, *, logprobs: int | None = None, **others: Any
    ) -> list[dict[str, Any]]:
        """The rows of one prompt. Ray would hand over objects of the call's own, so this does, too."""
        return list(
            await self.actor.generate_responses(
                prompt=f"{prompt}:",
                label="label",
                sampling_params=SamplingParams(logprobs=logprobs, **others.pop("sampling", {})),
                max_length=400,
                hf_tokenizer=Bytes(),
                num_samples=size,
                **others,
            )
        )


@pytest.fixture
def local() -> Callable[[Any], Local]:
    """Makes an engine actor without Ray around an executor."""
    Corridor.numbers.clear()
    return Local
