"""Guards that hold for every test: loopback only, a clean environment, deterministic hypothesis."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")

_LOOPBACK = ("127.", "::1", "localhost")


@pytest.fixture(autouse=True, scope="session")
def _loopback_only() -> Iterator[None]:
    """Let no test reach beyond this machine."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and not str(address[0]).startswith(_LOOPBACK):
            raise RuntimeError(f"a test tried to reach {address[0]}; tests talk to loopback only")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded)
        yield


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No endpoint or key of the person running the tests may leak into them."""
    for name in list(os.environ):
        if name.startswith(("OPENAI_", "VLLM_", "SELECTIVE_ROLLOUT_", "LANGSMITH_", "LANGCHAIN_")):
            monkeypatch.delenv(name)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port at which nobody answers, and which nobody else can take while the test runs."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Finds a port for a server that cannot choose one itself.

    It lies below those that systems give away, so nobody is given it before the server takes it.
    """

    def find() -> int:
        while True:
            port = random.SystemRandom().randrange(20_000, 32_000)
            with suppress(OSError), socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
                return port

    return find


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of public recorded rollouts; tests that need it are skipped where it is absent."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("public recorded rollouts are not present beside this checkout")
    return folder
