"""TRL's asynchronous rollout loop with a gate, against a server of vLLM's completions API."""

from __future__ import annotations

import asyncio
import json
import multiprocessing as mp
import pickle
import queue
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="the asynchronous trainer talks to vLLM by aiohttp")

from accelerate.state import PartialState
from aiohttp import web
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from selective_rollout.engine.training import TrainingGate
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.integrations.trl.async_grpo import GatedRolloutLoop, GatedRolloutWorker
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder

G = 4
RULE = GateConfig(start_step=2, tau=0.5)
TASKS = [f"{name}{'=' if name in 'bdf' else ''}" for name in "abcdef"]


class Room:
    """An environment as TRL wants it."""

    made = 0

    def __init__(self) -> None:
        self.number = Room.made
        Room.made += 1

    def reset(self, **row: Any) -> str:
        return f"member {self.number % 10}"

    def look(self, where: str) -> str:
        """Look somewhere.

        Args:
            where: the place.
        """
        return f"nothing in {where}"

    def get_reward(self) -> float:
        return float(self.number % 2)


class Server:
    """Answers like vLLM: four calls of a tool, then a last word; the same ones on tasks marked "="."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.asked: list[str] = []
        self.aborted = 0

    async def complete(self, request: web.Request) -> web.Response:
        heard = self.tokenizer.decode((await request.json())["prompt"])
        task, turn = heard.split("task ")[1].split(" ")[0], heard.count("<tool_response>")
        self.asked.append(task)
        member = heard.split("member ")[1][0]
        try:
            # The later a member, the slower it is, so that a cut finds requests in flight.
            await asyncio.sleep(0.002 if turn < 2 else 0.05)
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        where = str(turn) if "=" in task else f"{turn} of {member}"
        call = {"name": "look", "arguments": {"where": where}}
        text = "done" if turn == 4 else f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
        ids = self.tokenizer.encode(text + self.tokenizer.eos_token)
        return web.json_response(
            {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": [-0.5] * len(ids)}}]}
        )


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_post("/v1/completions", server.complete)
    runner = web.AppRunner(application, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = site._server.sockets[0].getsockname()[:2]  # type: ignore[union-attr]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@pytest.fixture
def run(tool_tokenizer: PreTrainedTokenizerFast) -> Callable[..., Any]:
    """Run the loop until so many groups were delivered to the trainer."""
    Room.made = 0
    PartialState(cpu=True)  # the child process does so before it makes the loop

    async def go(
        gate: Callable[[], TrainingGate], groups: int, **options: Any
    ) -> tuple[Any, list[Any], Server]:
        server, buffer = Server(tool_tokenizer), queue.Queue[Any]()
        async with serving(server) as url:
            context = mp.get_context("spawn")
            loop = GatedRolloutLoop(
                gate=gate,
                model_name="tiny",
                dataset=Dataset.from_dict(
                    {
                        "prompt": [[{"role": "user", "content": f"task {task} "}] for task in TASKS],
                        "task": TASKS,
                    }
                ),
                reward_funcs=[],
                processing_class=tool_tokenizer,
                eos_token_ids=[tool_tokenizer.eos_token_id],
                rollout_buffer=buffer,
                model_version_value=context.Value("i", 3),
                heartbeat_value=context.Value("d", 0.0),
                failed_event=context.Event(),
                exception_info_queue=queue.Queue(),
                metrics_queue=queue.Queue(),
                environment_factory=Room,
                num_generations=G,
                max_inflight_tasks=2 * G,
                vllm_server_url=url,
                max_tokens=200,
                task_column="task",
                **options,
            )
            stop = asyncio.Event()
            running = asyncio.create_task(loop._run_loops(stop))
            while len({sample.group_id for sample in list(buffer.queue)}) < groups and not running.done():
                await asyncio.sleep(0.01)
            stop.set()
            await running
            loop._tool_pool.shutdown()
            loop._loop.close()
        return loop, list(buffer.queue), server

    return go


def enforcing(**settings: Any) -> TrainingGate:
    return TrainingGate(RULE, mode="enforce", certified=True, **settings)


async def test_cut_groups_are_replaced_and_never_reach_the_trainer(run: Callable[..., Any]) -> None:
    loop, samples, server = await run(enforcing, 3)
    tasks = {sample.prompt[0]["content"].split(" ")[1] for sample in samples}
    assert tasks == {"a", "c", "e"}
    assert sorted({sample.group_id for sample in samples})[:3] == [0, 1, 2]
    meter = loop.gate.meter
    assert meter.cut >= 2
    assert meter.signal >= 3
    assert server.asked.count("b=") < server.asked.count("a")
    advantages = [sample.advantage for sample in samples if sample.group_id == 0]
    assert sorted(round(value, 3) for value in advantages) == [-1.0, -1.0, 1.0, 1.0]


async def test_a_cut_closes_the_requests_in_flight(run: Callable[..., Any]) -> None:
    loop, _, server = await run(partial(TrainingGate, RULE, mode="enforce", certified=True), 2)
    assert loop.gate.meter.cut >= 1
    assert server.aborted >= 1


async def test_skipped_prompts_are_passed_by(run: Callable[..., Any]) -> None:
    history = PromptHistory()
    for visit in range(4):
        history.record("a", f"before-{visit}", (1, 1, 1, 1))
    gate = enforcing(history=history, skip_probability=0.999, skip_last=4)
    _, _, server = await run(lambda: gate, 2)
    assert "a" not in server.asked
    assert gate.meter.skipped >= 1


async def test_the_state_outlives_the_loop(run: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    with Recorder(tmp_path / "trace.jsonl") as recorder:
        make = partial(enforcing, history=PromptHistory(), recorder=recorder)
        first, _, _ = await run(make, 2, state_path=path, save_every=1)
        second, _, _ = await run(make, 1, state_path=path)
    assert second.gate.meter.groups > first.gate.meter.groups
    assert len(list(read_groups(tmp_path / "trace.jsonl"))) >= second.gate.meter.groups


def test_the_worker_hands_the_gate_to_its_child() -> None:
    assert GatedRolloutWorker._loop_cls is GatedRolloutLoop
    gate = partial(TrainingGate, RULE, mode="enforce", certified=True, history=PromptHistory())
    assert pickle.loads(pickle.dumps(gate))().rule == RULE
