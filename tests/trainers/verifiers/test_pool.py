"""A real environment server with a pool of workers: the gate refuses to see parts of groups."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from verifiers.v1.runtimes import SubprocessConfig
from verifiers.v1.serve.client import EnvClient
from verifiers.v1.serve.pool import env_config_data, serve_env

from selective_rollout.testing import LoopbackServer

_PLUGINS = """
import aiohttp
import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult

__all__ = ["PooledTaskset", "PooledHarness"]


class PooledTask(vf.Task[vf.TaskData]):
    pass


class PooledTaskset(vf.Taskset[PooledTask, vf.TasksetConfig]):
    def load(self):
        return []


class PooledHarness(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {secret}"}) as session:
            body = {"model": ctx.model, "messages": [{"role": "user", "content": "a=|0"}]}
            async with session.post(f"{endpoint}/chat/completions", json=body) as response:
                response.raise_for_status()
        return ProgramResult(exit_code=0, stdout="", stderr="")
"""


@pytest.fixture
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where an environment server of so many workers listens."""
    (tmp_path / "pooled_plugins.py").write_text(_PLUGINS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SELECTIVE_ROLLOUT_GROUP_SIZE", "4")
    hook = {"fn": "selective_rollout.integrations.verifiers.group_gate"}
    config = vf.SingleAgentEnvConfig(
        taskset=vf.TasksetConfig(id="pooled-plugins", task=vf.TaskConfig(stops={"group_gate": hook})),
        agent=vf.AgentConfig(harness=vf.HarnessConfig(id="pooled-plugins"), runtime=SubprocessConfig()),
    )
    context = multiprocessing.get_context("spawn")
    addresses = context.Queue()
    broker = context.Process(
        target=serve_env,
        kwargs={
            "max_workers": request.param,
            "address": "tcp://127.0.0.1:0",
            "address_queue": addresses,
            "config_data": env_config_data(config),
        },
    )
    broker.start()
    try:
        yield addresses.get(timeout=60)
    finally:
        broker.terminate()
        broker.join(30)
        addresses.close()


@pytest.mark.parametrize("address", [2], indirect=True)
async def test_a_worker_of_a_pool_refuses_with_the_reason(
    server: LoopbackServer, ask: Callable[..., Any], address: str
) -> None:
    episode = await run(address, ask(server))
    assert not episode.ok
    assert "pool of workers, which split each group among them" in episode.traces[0].errors[-1].message
    assert server.counters.requests == 0


@pytest.mark.parametrize("address", [1], indirect=True)
async def test_a_server_in_one_process_is_gated(
    server: LoopbackServer, ask: Callable[..., Any], address: str
) -> None:
    episode = await run(address, ask(server))
    assert episode.ok
    assert server.counters.requests == 1


async def run(address: str, model: vf.ModelContext) -> vf.WireEpisode:
    client = EnvClient(address)
    try:
        return await client.run(
            client=model.client,
            model=model.model,
            sampling=model.sampling,
            task_data={"prompt": "a=", "idx": 0},
        )
    finally:
        await client.close()
