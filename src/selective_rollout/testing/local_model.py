"""A real language model on the CPU, behind a real OpenAI-compatible server on loopback.

`LocalModel` runs llama.cpp's own server (the `llm` extra) in a process of its own. That way its native code
can neither write to the caller's terminal nor take the caller down, it can always be killed, and it sees an
OpenMP setting that only counts if it is there when the library loads.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from selective_rollout.errors import ConfigError, MissingExtraError
from selective_rollout.testing.child_server import ChildServer
from selective_rollout.testing.weights import fetch_weights

_SERVER: Final = Path(__file__).with_name("local_server.py")
_START_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 5.0
_MOST_THREADS: Final = 4
_BUSY_PER_CORE: Final = 1.5


def default_threads() -> int:
    """Threads that serve best now: one on a busy machine, else one per usable core, at most four.

    The threads wait for each other several times per token, so a core that is taken away from one stops all.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return 1 if load > _BUSY_PER_CORE * cores else min(cores, _MOST_THREADS)


class LocalModel:
    """A small model behind an OpenAI-compatible server; a context manager.

    Entering takes about a second, after a download of 93 MB at the very first time. What to know of it:

    - Each slot keeps one conversation. With more conversations than slots they push each other out, and most
      of what is read is read again: run one group at a time.
    - Leaving a streamed answer stops its generation at once; one not streamed is generated to its end.
    - Connections are dropped after streamed answers: ask with `keep_alive=False`.
    - `n` may be at most `slots`, and `usage` then counts one choice only. Any model name is accepted.

    Args:
        weights: a gguf file; `fetch_weights()` if not given.
        slots: most rollouts served at once, each with its history kept between steps.
        context_per_slot: tokens of one rollout's conversation and completion together.
        threads: CPU threads; `default_threads()` if not given.
        chat_template: Jinja template that turns messages into the prompt; the weights' own if not given.

    Raises:
        ConfigError: a number is below 1.

    Attributes:
        base_url: address up to and including /v1, while entered.
        api_key: drawn anew for every instance.
        model: name of the model: the weights' file name without its suffix, while entered.
    """

    base_url: str
    model: str

    def __init__(
        self,
        weights: Path | str | None = None,
        *,
        slots: int = 4,
        context_per_slot: int = 1024,
        threads: int | None = None,
        chat_template: str | None = None,
    ) -> None:
        for name, value in (("slots", slots), ("context_per_slot", context_per_slot), ("threads", threads)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        self.api_key = secrets.token_urlsafe(24)
        self._weights = weights
        self._slots = slots
        self._context_per_slot = context_per_slot
        self._threads = threads
        self._chat_template = chat_template
        self._child: ChildServer | None = None

    def __enter__(self) -> Self:
        """Start the server and wait until it answers.

        Raises:
            ConfigError: it is entered already.
            MissingExtraError: the `llm` extra is not installed.
            PrerequisiteError: no weights, or the server does not start with them.
        """
        if self._child is not None:
            raise ConfigError("this LocalModel is running already: make another one")
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingExtraError("llm", "xllamacpp")
        weights = fetch_weights() if self._weights is None else Path(self._weights)
        self.model = weights.stem
        # -P keeps this folder off the child's import path, where its modules would hide the library's.
        # Waiting OpenMP threads that spin halve the speed, or worse, as soon as anything else wants a core.
        child = ChildServer(
            [sys.executable, "-P", str(_SERVER)],
            f"the local model server with {weights}",
            reason=_reason,
            env={"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive")},
            start_timeout_s=_START_TIMEOUT_S,
            stop_timeout_s=_STOP_TIMEOUT_S,
        )
        settings = {
            "weights": str(weights),
            "name": self.model,
            "api_key": self.api_key,
            "slots": self._slots,
            "context_per_slot": self._context_per_slot,
            "threads": self._threads or default_threads(),
            "chat_template": self._chat_template or "",
        }
        self.base_url = f"{child.start(settings)}/v1"
        self._child = child
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.stop()


def _reason(lines: Sequence[str]) -> str:
    """The first error of llama.cpp, which is the cause of the others, or the last line of a traceback."""
    causes = [line.partition(" E ")[2] for line in lines if " E " in line]
    return (causes or lines[-1:] or [""])[0]
