"""`loopback_link`: a worker's way to the coordinator's service."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import urlsplit

import h11
import msgspec

from selective_rollout.engine.training.loopback.calls import HOST, Refusal, encode
from selective_rollout.engine.training.loopback.http import Connection, Limits, TooLarge
from selective_rollout.engine.training.remote import Link
from selective_rollout.errors import ConfigError, GroupError, RewardError

_RAISED: Final[dict[str, type[Exception]]] = {
    kind.__name__: kind for kind in (ConfigError, GroupError, RewardError)
}


def loopback_link(address: str, token: str) -> Link:
    """Return what `RemoteMember` calls the coordinator with; for one event loop.

    A call that the coordinator refuses raises what it says: GroupError, RewardError, ConfigError (such as
    of a wrong token).

    Args:
        address: as of `LoopbackService.address`.
        token: as of `LoopbackService.token`.

    Raises:
        ConfigError: the address is not one of this machine's loopback.
    """
    parts = urlsplit(address)
    if parts.scheme != "http" or parts.hostname != HOST or not parts.port:
        raise ConfigError(f"the coordinator's address must be http://{HOST}:PORT, not {address!r}")
    return _Caller(parts.port, token).call


class _Caller:
    """Makes each call over a connection of its own, so that none is left open when the loop ends."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._authorization = f"Bearer {token}"
        self._limits = Limits()

    async def call(self, method: str, *arguments: Any) -> Any:
        body = encode(arguments)
        try:
            streams = await asyncio.open_connection(HOST, self._port)
        except OSError as error:
            raise ConnectionError(f"no connection to {HOST}:{self._port}: {error}") from error
        connection = Connection(streams, h11.CLIENT, self._limits)
        try:
            status, answer = await self._exchange(connection, method, body)
        except BaseException:
            connection.abort()
            raise
        await connection.close()
        if status == 200:
            return msgspec.json.decode(answer)
        refusal = msgspec.json.decode(answer, type=Refusal)
        raise _RAISED.get(refusal.error, ConfigError)(refusal.message)

    async def _exchange(self, connection: Connection, method: str, body: bytes) -> tuple[int, bytes]:
        headers = [
            ("Host", HOST),
            ("Authorization", self._authorization),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        await connection.send(h11.Request(method="POST", target=f"/{method}", headers=headers), body)
        try:
            message = await connection.receive()
        except TooLarge as error:
            raise ConnectionError(str(error)) from error
        if message is None:
            raise ConnectionError("the coordinator has closed the connection")
        head, answer = message
        assert isinstance(head, h11.Response)
        return head.status_code, answer
