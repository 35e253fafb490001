"""`LoopbackService`: answers the calls of the workers of this machine."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from types import TracebackType
from typing import Final, Self

import h11
import msgspec

from selective_rollout.engine.training.loopback.calls import ARGUMENTS, HOST, Refusal, encode
from selective_rollout.engine.training.loopback.http import Connection, Limits, TooLarge
from selective_rollout.engine.training.remote import Coordinator
from selective_rollout.errors import ConfigError, PrerequisiteError, SelectiveRolloutError

_LONGEST_ID: Final = 1024
_LONGEST_WAIT_S: Final = 60.0


class LoopbackService:
    """Serves a coordinator on 127.0.0.1, on the event loop that it is entered on.

    Args:
        coordinator: keeps the groups.
        port: 0 picks a free one.
        token: what workers have to show; None makes one up. Hand it over by a file or the environment, never
            on a command line, where all users of the machine can read it.
        limits: bounds on what workers may cost.

    Raises:
        ConfigError: the token is empty.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        port: int = 0,
        token: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        if token == "":
            raise ConfigError("the token of the coordinator must not be empty: pass None to have one made up")
        self.coordinator = coordinator
        self.token = token or secrets.token_urlsafe(32)
        self._port = port
        self._limits = limits or Limits()
        self._expected = f"Bearer {self.token}".encode()
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], Connection] = {}

    @property
    def address(self) -> str:
        """What workers need beside the token."""
        return f"http://{HOST}:{self._port}"

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            PrerequisiteError: the port cannot be bound.
        """
        try:
            self._server = await asyncio.start_server(self._accept, HOST, self._port)
        except OSError as error:
            raise PrerequisiteError(
                f"cannot listen on {self.address} ({error}): choose another port, or 0 for any"
            ) from error
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop answering; rollouts that are under way run on without a gate."""
        assert self._server is not None
        self._server.close()
        for task, connection in self._open.items():
            connection.abort()
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection((reader, writer), h11.SERVER, self._limits)
        if len(self._open) >= self._limits.connections:
            connection.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        self._open[task] = connection
        task.add_done_callback(self._open.pop)

    async def _serve(self, connection: Connection) -> None:
        try:
            while await self._serve_one(connection):
                connection.reuse()
        except (ConnectionError, TimeoutError):
            connection.abort()
        finally:
            await connection.close()

    async def _serve_one(self, connection: Connection) -> bool:
        """Answer one call; True if the connection can take another."""
        try:
            message = await connection.receive()
            if message is None:
                return False
            head, body = message
            assert isinstance(head, h11.Request)
            status, answer = await self._answer(head, body)
        except TooLarge as error:
            status, answer = 413, Refusal("ConfigError", str(error))
        headers = [("Content-Type", "application/json")]
        text = encode(answer)
        head = h11.Response(status_code=status, headers=[*headers, ("Content-Length", str(len(text)))])
        await connection.send(head, text)
        return connection.reusable

    async def _answer(self, head: h11.Request, body: bytes) -> tuple[int, object]:
        given = dict(head.headers).get(b"authorization", b"")
        if not hmac.compare_digest(given, self._expected):
            return 401, Refusal("ConfigError", "the coordinator does not know this token")
        method = head.target.decode("latin-1").removeprefix("/")
        if head.method != b"POST" or method not in ARGUMENTS:
            return 404, Refusal("ConfigError", f"the coordinator has no method {method!r}")
        try:
            arguments = msgspec.json.decode(body, type=ARGUMENTS[method])
            if not 0 < len(arguments[0]) <= _LONGEST_ID:
                raise ConfigError(f"a group id must have 1 to {_LONGEST_ID} characters")
            if method == "watch":
                arguments = (*arguments[:2], min(max(0.0, arguments[2]), _LONGEST_WAIT_S))
            return 200, await getattr(self.coordinator, method)(*arguments)
        except (msgspec.MsgspecError, RecursionError) as error:
            return 400, Refusal("ConfigError", f"{method}: {error}")
        except SelectiveRolloutError as error:
            return 409, Refusal(type(error).__name__, str(error))
