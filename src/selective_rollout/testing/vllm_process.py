"""The process that serves a model for `LocalVllm`; it is run as a file and imports nothing of ours.

vLLM spreads over several processes. They share this one's process group, and all are killed when standard
input ends, because the owner closed it or died.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any, Final, TextIO

_POLL_S: Final = 0.2


def main() -> None:
    """Serve until standard input ends; its first line holds `arguments` for vLLM's server."""
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    # vLLM logs to standard output, which is for the address alone.
    owner = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threading.Thread(target=_end_with_owner, daemon=True).start()
    threading.Thread(target=_announce, args=(f"http://127.0.0.1:{port}", owner), daemon=True).start()
    sys.argv = ["api_server", "--host", "127.0.0.1", "--port", str(port), *settings["arguments"]]
    # The `vllm` command asks for the metadata of a distribution of that name, which the CPU build lacks.
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)


def _end_with_owner() -> None:
    sys.stdin.read()
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _announce(address: str, owner: TextIO) -> None:
    """Say the address once the server is ready; until then it refuses connections."""
    while True:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                break
        except (urllib.error.URLError, OSError):
            time.sleep(_POLL_S)
    owner.write(f"{address}\n")
    owner.flush()


if __name__ == "__main__":
    main()
