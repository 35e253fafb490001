"""Groups over processes: the coordinator's service on loopback, with real workers that are really killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from selective_rollout.engine.training import GroupCut, TrainingGate
from selective_rollout.engine.training.loopback import LoopbackService, loopback_link
from selective_rollout.engine.training.loopback.http import Limits
from selective_rollout.engine.training.remote import Coordinator, CoordinatorLostWarning, RemoteMember
from selective_rollout.errors import ConfigError, GroupError, PrerequisiteError, RewardError
from selective_rollout.gate.config import GateConfig
from selective_rollout.types import SamplingInfo, Usage

_WORKER = """
import asyncio, json, os, sys
from selective_rollout.engine.training import GroupCut
from selective_rollout.engine.training.loopback import loopback_link
from selective_rollout.engine.training.remote import RemoteMember

async def main():
    link = loopback_link(sys.argv[1], os.environ["TOKEN"])
    rollout, steps, alike, hangs = map(int, sys.argv[2:])
    async with RemoteMember(link, "g", rollout, 4, wait_s=0.1) as member:
        taken = 0
        try:
            async with member.guarded():
                for step in range(steps):
                    if not await member.step(f"go {step}" if alike else f"go {step} of {rollout}"):
                        raise GroupCut("g")
                    taken += 1
                print("there", flush=True)
                await asyncio.sleep(60 if hangs else 0)
        except GroupCut:
            print(json.dumps({"cut": True, "taken": taken}), flush=True)
        else:
            await member.finish(float(rollout % 2))
            kept = await member.kept()
            print(json.dumps({"cut": False, "kept": kept, "watched": member.watched}), flush=True)

asyncio.run(main())
"""
_COORDINATOR = """
import asyncio, sys
from selective_rollout.engine.training import TrainingGate
from selective_rollout.engine.training.loopback import LoopbackService
from selective_rollout.engine.training.remote import Coordinator
from selective_rollout.gate.config import GateConfig

async def main():
    gate = TrainingGate(GateConfig(start_step=2, tau=0.12), mode="enforce", certified=True)
    async with LoopbackService(Coordinator(gate), token="secret") as service:
        print(service.address, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def gate(**options: Any) -> TrainingGate:
    return TrainingGate(GateConfig(start_step=2, tau=0.12), mode="enforce", certified=True, **options)


@asynccontextmanager
async def process(
    source: str, *arguments: object, token: str = ""
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program; it is gone when the block is left."""
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        source,
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TOKEN": token},
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


async def said(running: asyncio.subprocess.Process) -> str:
    assert running.stdout is not None
    return (await running.stdout.readline()).decode().strip()


async def last_line(running: asyncio.subprocess.Process) -> str:
    assert running.stdout is not None
    return (await running.stdout.read()).decode().splitlines()[-1]


@pytest.fixture
async def service() -> AsyncIterator[LoopbackService]:
    async with LoopbackService(Coordinator(gate())) as running:
        yield running


async def test_members_in_four_processes_are_cut_together(service: LoopbackService) -> None:
    async with asyncio.timeout(120):
        workers = [process(_WORKER, service.address, n, 2, 1, 1, token=service.token) for n in range(4)]
        async with workers[0] as a, workers[1] as b, workers[2] as c, workers[3] as d:
            lines = await asyncio.gather(*map(last_line, (a, b, c, d)))
    told = [json.loads(line) for line in lines]
    assert [one["cut"] for one in told] == [True] * 4
    assert max(one["taken"] for one in told) <= 2
    assert (service.coordinator.gate.meter.groups, service.coordinator.gate.meter.cut) == (1, 1)


async def test_a_worker_that_is_killed_ends_the_gate_and_hangs_nobody() -> None:
    async with asyncio.timeout(120), LoopbackService(Coordinator(gate(), lease_s=4.0)) as service:
        workers = [
            process(_WORKER, service.address, n, 1, 1, int(n == 3), token=service.token) for n in range(4)
        ]
        async with workers[0] as a, workers[1] as b, workers[2] as c, workers[3] as victim:
            assert await said(victim) == "there"
            victim.send_signal(signal.SIGKILL)
            for survivor in (a, b, c):
                assert await said(survivor) == "there"
                assert json.loads(await said(survivor)) == {"cut": False, "kept": True, "watched": False}
    assert service.coordinator.gate.meter.cut == 0
    assert service.coordinator.gate.meter.groups == 1


async def goes_on_without(member: RemoteMember, coordinator: asyncio.subprocess.Process) -> bool:
    """Kill the coordinator, and go on to the end all the same."""
    coordinator.send_signal(signal.SIGKILL)
    await coordinator.wait()
    async with member.guarded():
        went_on = [await member.step(f"go {step}") for step in range(1, 5)]
        await member.finish(1.0)
        return all(went_on) and await member.kept()


async def test_a_coordinator_that_is_killed_lets_everybody_run_on() -> None:
    async with asyncio.timeout(120), process(_COORDINATOR) as coordinator:
        link = loopback_link(await said(coordinator), "secret")
        async with RemoteMember(link, "g", 0, 2, wait_s=0.1) as member:
            assert await member.step("go 0")
            with pytest.warns(CoordinatorLostWarning, match="gate is off"):
                assert await goes_on_without(member, coordinator)
        assert not member.watched


async def test_a_coordinator_that_hangs_is_given_up_within_its_patience() -> None:
    async with asyncio.timeout(120), process(_COORDINATOR) as coordinator:
        link = loopback_link(await said(coordinator), "secret")
        async with RemoteMember(link, "g", 0, 2, wait_s=0.1) as member:
            coordinator.send_signal(signal.SIGSTOP)
            member._patience_s = 0.5
            try:
                with pytest.warns(CoordinatorLostWarning):
                    assert await member.step("go 0")
            finally:
                coordinator.send_signal(signal.SIGCONT)


async def test_a_cut_reaches_a_member_that_waits_for_something_else(service: LoopbackService) -> None:
    link = loopback_link(service.address, service.token)

    async def waits(rollout: int) -> None:
        async with RemoteMember(link, "g", rollout, 2) as member:
            async with member.guarded():
                await member.step("go 0")
                if await member.step("go 1"):
                    await asyncio.sleep(60)

    async with asyncio.timeout(60):
        results = await asyncio.gather(waits(0), waits(1), return_exceptions=True)
    assert [type(result) for result in results] == [GroupCut, GroupCut]


async def test_all_that_a_step_says_arrives(service: LoopbackService) -> None:
    link = loopback_link(service.address, service.token)
    async with RemoteMember(link, "g", 0, 1, task_id="t", sampling=[SamplingInfo(seed=3)]) as member:
        await member.step("a", usage=Usage(completion=7, source="server"), observation="x", is_error=False)
        await member.finish(float("nan"), "yes", action="b", finish_reason="stop")
        assert await member.kept()
    meter = service.coordinator.gate.meter
    assert (meter.groups, meter.steps, meter.tokens, meter.unknown_tokens) == (1, 2, 7, 1)
    assert meter.unlabelled == 1


async def test_a_mistake_of_the_caller_is_raised_where_it_was_made(service: LoopbackService) -> None:
    link = loopback_link(service.address, service.token)
    async with RemoteMember(link, "g", 0, 2) as member:
        with pytest.raises(RewardError):
            await member.finish({"a": 1})
        await member.finish(1)
        with pytest.raises(GroupError, match="has already ended"):
            await member.step("a")
        with pytest.raises(TypeError, match="object cannot be sent"):
            await member.finish(object())
    with pytest.raises(ConfigError, match="a group id must have"):
        await link("join", "x" * 2000, 0, 2, None, None)


async def test_only_those_with_the_token_are_answered(service: LoopbackService) -> None:
    with pytest.raises(ConfigError, match="does not know this token"):
        await loopback_link(service.address, "guess")("join", "g", 0, 2, None, None)
    assert service.coordinator.gate.begun == 0


@pytest.mark.parametrize(
    "address", ["http://10.0.0.1:80", "https://127.0.0.1:80", "127.0.0.1:80", "http://127.0.0.1"]
)
def test_an_address_elsewhere_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"must be http://127\.0\.0\.1:PORT"):
        loopback_link(address, "t")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /join HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer T\r\nContent-Length: 2\r\n\r\n[]", b"400"),
        (b"POST /end HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer T\r\nContent-Length: 2\r\n\r\n[]", b"404"),
        (b"GET /join HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer T\r\n\r\n", b"404"),
        (b"POST /join HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n[]", b"401"),
        (b"POST /join HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\n" + b"x" * 900, b"413"),
        (b"POST /join HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 3000, b""),
        (b"POST /join HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n[", b""),
        (b"what is this\r\n\r\n", b""),
        (b"", b""),
    ],
)
async def test_whatever_is_sent_the_service_answers_or_closes_and_lives_on(
    sent: bytes, status: bytes
) -> None:
    body_s = 1.0 if sent.endswith(b"[") else 30.0  # one of them promises more
    limits = Limits(head_bytes=2048, body_bytes=512, body_s=body_s)
    async with LoopbackService(Coordinator(gate()), token="T", limits=limits) as service:
        port = int(service.address.rpartition(":")[2])
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            if not sent:
                writer.write_eof()
            head = await reader.read(12)
            assert head.removeprefix(b"HTTP/1.1 ") == status
            writer.close()
            await loopback_link(service.address, "T")("join", "g", 0, 1, None, None)


async def test_a_message_nested_too_deep_is_refused(service: LoopbackService) -> None:
    body = b'["g",0,' + b"[" * 100_000
    head = f"POST /finish HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {service.token}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", int(service.address.rpartition(":")[2]))
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    assert await reader.read(12) == b"HTTP/1.1 400"
    writer.close()


async def test_a_port_that_is_taken_is_named(service: LoopbackService) -> None:
    port = int(service.address.rpartition(":")[2])
    with pytest.raises(PrerequisiteError, match=f"cannot listen on http://127.0.0.1:{port}"):
        async with LoopbackService(Coordinator(gate()), port=port):
            pass


def test_an_empty_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="must not be empty"):
        LoopbackService(Coordinator(gate()), token="")
