"""A headless Chromium that is spoken to over two pipes, for the tests that look at pages."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


@dataclass(frozen=True)
class Process:
    """A browser that was started, and our ends of its pipes."""

    pid: int
    write: int
    read: int

    def reap(self, timeout_s: float) -> None:
        """Wait until it is gone; kill it if that takes too long."""
        deadline = time.monotonic() + timeout_s
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.killpg(self.pid, signal.SIGKILL)
            time.sleep(0.02)


def spawn(profile: Path) -> Process:
    """Start a browser with a profile of its own."""
    assert CHROMIUM is not None
    to_child, from_us = _pipe()
    to_us, from_child = _pipe()
    null = os.open(os.devnull, os.O_RDWR)
    pid = os.posix_spawn(
        CHROMIUM,
        [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, null, 1),
            (os.POSIX_SPAWN_DUP2, null, 2),
            (os.POSIX_SPAWN_DUP2, to_child, 3),
            (os.POSIX_SPAWN_DUP2, from_child, 4),
        ],
        setpgroup=0,
    )
    for descriptor in (null, to_child, from_child):
        os.close(descriptor)
    return Process(pid, write=from_us, read=to_us)


def _pipe() -> tuple[int, int]:
    """A pipe whose ends lie above the numbers that the browser wants for itself."""
    low = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in low)
    for end in low:
        os.close(end)
    return high[0], high[1]
