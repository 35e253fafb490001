"""The commands that a guide shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from selective_rollout.cli.main import cli

_COMMAND = re.compile(r"^\$ selective-rollout (.+)$", re.M)


def exit_codes(page: Path) -> dict[str, int]:
    """What each command exits with if it is only asked for its help, which an unknown option spoils."""
    commands = _COMMAND.findall(page.read_text(encoding="utf-8"))
    return {
        command: CliRunner().invoke(cli, [*shlex.split(command), "--help"]).exit_code for command in commands
    }
