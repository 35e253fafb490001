"""verl's real workers, agent loops, reward loop and replay buffer, around servers that only count."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray", reason="make test-trainers installs ray into an environment of its own")
pytest.importorskip("verl", reason="make test-trainers installs verl into an environment of its own")
pytest.importorskip("transfer_queue", reason="make test-trainers installs verl's queue with it")

WORKERS = Path(__file__).parent / "workers"
sys.path.insert(0, str(WORKERS))
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from tests.certified import write_certified_gate
from tests.trainers.marking import mark

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the frameworks, of each other
    from verl.experimental.agent_loop import AgentLoopWorker
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
    from verl_actors import servers
    from verl_world import configure

from selective_rollout.integrations.ray_registry import start_coordinator
from selective_rollout.integrations.verl import gates

AGENT = """
- name: gated
  _target_: selective_rollout.integrations.verl.GatedToolAgentLoop
  gate: {gate}
  mode: {mode}
  shared: {shared}
  actor: {actor}
  lease_s: {lease_s}
  reward_extra_keys: {reward_extra_keys}
- name: plain
  _target_: verl.experimental.agent_loop.tool_agent_loop.ToolAgentLoop
"""
_OTHERS_WARNINGS = (
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore::ResourceWarning",
    "ignore::UserWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, Path(__file__).parent, _OTHERS_WARNINGS)


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Ray, whose workers find this folder's helpers."""
    ray.init(
        num_cpus=8,  # as Ray counts them; the queue asks for some of its own
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=200_000_000,
        runtime_env={"env_vars": {"PYTHONPATH": str(WORKERS), "CUDA_VISIBLE_DEVICES": ""}},
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the model and the gate file are."""
    made = tmp_path_factory.mktemp("verl")
    write_certified_gate(made / "gate.toml", start_step=2)
    return made


@pytest.fixture
def config(folder: Path) -> Callable[..., Any]:
    """Makes verl's configuration with a gated agent loop."""

    def make(*more: str, actor: str = "gate", mode: str = "enforce", **settings: Any) -> Any:
        gate = folder / "gate.toml"
        options = {"shared": "false", "lease_s": 300, "reward_extra_keys": "[]", **settings}
        return configure(folder, AGENT.format(gate=gate, mode=mode, actor=actor, **options), *more)

    return make


@pytest.fixture
def started(cluster: None, folder: Path) -> Callable[[str], Any]:
    """Starts the gate's actor before any worker asks for it.

    On a busy machine that may take longer than members wait, who then run on without a gate.
    """

    def start(name: str) -> Any:
        settings = gates.GateSettings(gate=str(folder / "gate.toml"), mode="enforce")
        actor = start_coordinator(settings.make, name=name, lease_s=300)
        ray.get(actor.metrics.remote())
        return actor

    return start


class Local:
    """verl's worker in this process, and if asked for its reward loop."""

    def __init__(self, config: Any, *, rewarded: bool = False) -> None:
        self.servers = servers(config)
        handle = SimpleNamespace(compute_score=SimpleNamespace())
        if rewarded:
            handle.compute_score.remote = RewardLoopWorker(config).compute_score
        handles = [handle] if rewarded else None
        self.worker = AgentLoopWorker(config, self.servers, reward_loop_worker_handles=handles)

    @property
    def coordinator(self) -> Any:
        """The coordinator of the only gate there is."""
        (link,) = gates._LINKS.values()
        return link.args[0]  # type: ignore[attr-defined]


@pytest.fixture
def local(config: Callable[..., Any]) -> Iterator[Callable[..., Local]]:
    """Makes a worker with a gate of its own."""
    gates._LINKS.clear()

    def make(*more: str, rewarded: bool = False, **settings: Any) -> Local:
        return Local(config(*more, **settings), rewarded=rewarded)

    yield make
    gates._LINKS.clear()
