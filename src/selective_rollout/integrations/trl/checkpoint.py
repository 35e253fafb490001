"""The gate's memory beside a checkpoint: one file with the state of every process."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from selective_rollout.engine.training import TrainingGate
from selective_rollout.errors import ConfigError

FILE: Final = "selective_rollout.json"


def save_states(run_folder: str, step: int, states: Sequence[Mapping[str, Any]]) -> None:
    """Write states[rank] into the folder of a checkpoint; the old file stays intact until the new one is."""
    path = Path(run_folder) / f"checkpoint-{step}" / FILE
    partial = path.with_name(FILE + ".partial")
    partial.write_text(json.dumps({"processes": list(states)}), encoding="utf-8")
    os.replace(partial, path)


def load_states(gate: TrainingGate, checkpoint: str, rank: int, processes: int) -> None:
    """Go on from a checkpoint: totals are a process's own, what is known of the prompts is everybody's.

    With fewer processes than before, the first takes over the totals of those that are gone. A gate that has
    been at work in this very process knows more than any file and stays as it is.

    Raises:
        ConfigError: the file is damaged.
    """
    path = Path(checkpoint) / FILE
    if gate.begun:
        return
    if not path.is_file():
        warnings.warn(f"{path}: no state of the gate here; its totals and history start empty", stacklevel=2)
        return
    try:
        states = json.loads(path.read_text(encoding="utf-8"))["processes"]
        if rank < len(states):
            gate.load_state_dict(states[rank], gone=states[processes:] if rank == 0 else ())
        gate.merge_history(states)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: cannot read the gate's state ({error})") from error
