"""Makes the environment that `LocalVllm` needs: `python -m selective_rollout.testing.vllm_install FOLDER`.

Installs once per set of requirements (minutes, 3.4 GB) and converts the small model's weights once.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from selective_rollout.errors import PrerequisiteError, SelectiveRolloutError
from selective_rollout.testing.local_vllm import REQUIREMENTS, UNWANTED, converted_weights

_STAMP: Final = "installed-for-local-vllm"
_TAIL: Final = 300


def install(folder: Path) -> Path:
    """Make the environment, unless it is there, and return its interpreter.

    Raises:
        PrerequisiteError: a step failed; the message ends with its last words.
    """
    python, stamp = folder / "bin" / "python", folder / _STAMP
    wanted = "\n".join((*REQUIREMENTS, *UNWANTED))
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    _do([sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    # One by one: torch has to be there before what would choose another build of it.
    for requirement in REQUIREMENTS:
        _do([*pip, "install", "--quiet", requirement])
    _do([*pip, "uninstall", "--quiet", "--yes", *UNWANTED])
    stamp.write_text(wanted)
    return python


def main(arguments: Sequence[str]) -> int:
    """Install into the folder named, and convert the weights; returns the exit code."""
    try:
        (folder,) = arguments
        converted_weights(install(Path(folder)))
    except ValueError:
        sys.stderr.write("error: name one folder for the environment\n")
        return 2
    except SelectiveRolloutError as error:
        sys.stderr.write(f"error: {error}\n")
        return 3
    return 0


def _do(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[-_TAIL:]
        raise PrerequisiteError(f"{' '.join(command[1:])} failed: {said}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
