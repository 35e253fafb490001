"""A gateway on a free port in this process, and a model server that says exactly what it is told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from selective_rollout.engine.config import RunConfig
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.gateway import ClientKeys, Gateway, GatewayConfig
from selective_rollout.integrations.gateway.keys import hide
from selective_rollout.integrations.gateway.resume import take_up
from selective_rollout.integrations.gateway.server import GatewayServer, listen_on
from selective_rollout.policy.endpoint import NO_KEY, Endpoint
from selective_rollout.trace.recorder import Recorder

CLIENT_KEY = "sr-client-key-for-tests"


@dataclass
class Clock:
    """Real time, plus what a test adds."""

    ahead: float = 0.0

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead


@dataclass
class Running:
    """A gateway that serves."""

    gateway: Gateway
    server: GatewayServer
    task: asyncio.Task[None]
    port: int
    trace: Path
    clock: Clock

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Ask one of the gateway's own endpoints; returns status and decoded answer."""
        data = json.dumps(body).encode() if body is not None else b""
        head = (
            f"{method} /selective-rollout/v1{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(head.encode() + data)
        said = await reader.read()
        writer.close()
        return int(said.split(b" ")[1]), json.loads(said.partition(b"\r\n\r\n")[2])

    def sweep_after(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.ahead += seconds
        self.gateway.book.sweep()

    async def stop(self) -> None:
        self.server.should_exit = True
        await self.task


@dataclass
class Raw:
    """One request as the model server got it."""

    head: bytes
    body: bytes

    @property
    def line(self) -> bytes:
        return self.head.split(b"\r\n", 1)[0]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        lines = self.head.rstrip(b"\r\n").split(b"\r\n")[1:]
        return [(n.lower(), v.strip()) for n, _, v in (line.partition(b":") for line in lines)]

    def get(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]


Answer = Callable[[Raw, asyncio.StreamWriter], Awaitable[None]]


def json_answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass
class RawServer:
    """A model server over plain sockets: `answer` gets each request and writes raw bytes."""

    answer: Answer
    requests: list[Raw] = field(default_factory=list)
    disconnects: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[RawServer]:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=2048)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def __post_init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                request = Raw(head, b"")
                length = int((request.get(b"content-length") or [b"0"])[0])
                request.body = await reader.readexactly(length)
                self.requests.append(request)
                answering = asyncio.ensure_future(self.answer(request, writer))
                gone = asyncio.ensure_future(reader.read(1))
                await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    self.disconnects += 1
                    answering.cancel()
                    await asyncio.gather(answering, return_exceptions=True)
                    return
                gone.cancel()
                await asyncio.gather(gone, return_exceptions=True)
                answering.result()
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client is done, or the test is
        finally:
            self._tasks.discard(task)
            writer.close()


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start gateways: `await start(upstream_url, api_key=..., rule=..., mode=...)`."""
    async with AsyncExitStack() as stack:

        async def begin(
            upstream: str,
            *,
            api_key: str = NO_KEY,
            rule: GateConfig | None = None,
            run: RunConfig | None = None,
            resume: bool = False,
            **settings: Any,
        ) -> Running:
            if api_key != NO_KEY:
                settings.setdefault("clients", ClientKeys({"": CLIENT_KEY}))
            config = GatewayConfig(
                upstream=Endpoint(base_url=upstream, api_key=api_key),
                rule=rule or GateConfig(),
                run=run or RunConfig(),
                **settings,
            )
            trace = tmp_path / "trace.jsonl"
            recorder = Recorder(trace, redact=lambda text: hide(text, [CLIENT_KEY]))
            stack.callback(recorder.close)
            clock = Clock()
            gateway = Gateway(config, recorder.write, clock)
            if resume:
                take_up(trace, gateway.book, config, gateway.write)
            listening = listen_on("127.0.0.1", 0)
            stack.callback(listening.close)
            ready = asyncio.Event()
            server = GatewayServer(gateway, drain_s=2, on_ready=ready.set)
            task = asyncio.create_task(server.serve([listening]))
            await ready.wait()
            running = Running(gateway, server, task, listening.getsockname()[1], trace, clock)
            stack.push_async_callback(running.stop)
            return running

        yield begin


@pytest.fixture
async def raw_server() -> AsyncIterator[Callable[[Answer], Awaitable[RawServer]]]:
    """Start raw servers: `await raw_server(answer)`."""
    async with AsyncExitStack() as stack:

        async def begin(answer: Answer) -> RawServer:
            return await stack.enter_async_context(RawServer(answer).serving())

        yield begin


@pytest.fixture
def client_key() -> str:
    """The key that clients of a gateway with a key need."""
    return CLIENT_KEY


@pytest.fixture
def plain_json() -> Callable[..., bytes]:
    """Makes the bytes of a JSON answer."""
    return json_answer
