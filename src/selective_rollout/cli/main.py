"""The `selective-rollout` command: one binary, errors in one line, exit codes that scripts can rely on.

0 ok · 1 a check failed · 2 wrong usage or input · 3 a prerequisite is missing · 130 interrupted.
"""

from __future__ import annotations

import importlib
import sys
import traceback
import warnings
from typing import Final

import click

from selective_rollout._version import __version__
from selective_rollout.cli.console import remark
from selective_rollout.errors import (
    MissingExtraError,
    PolicyError,
    PrerequisiteError,
    SelectiveRolloutError,
)

USAGE, PREREQUISITE, INTERRUPTED = 2, 3, 130


_COMMANDS: Final = {
    "demo": "selective_rollout.cli.demo:demo",
    "run": "selective_rollout.cli.run:run",
    "import": "selective_rollout.cli.imports:import_",
    "bench": "selective_rollout.cli.bench:bench",
    "sweep": "selective_rollout.cli.sweep:sweep",
    "calibrate": "selective_rollout.cli.calibrate:calibrate",
    "report": "selective_rollout.cli.report:report",
    "plan": "selective_rollout.cli.plan:plan",
    "doctor": "selective_rollout.cli.doctor:doctor",
    "serve": "selective_rollout.cli.serve:serve_command",
}
"""Where each command lives; loaded when it is called, since some of them need seconds and extras."""


class _Commands(click.Group):
    """A group whose commands are loaded on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = _COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        try:
            command: click.Command = getattr(importlib.import_module(module), name)
        except MissingExtraError as missing:
            return _unavailable(cmd_name, missing)
        return command


def _unavailable(name: str, missing: MissingExtraError) -> click.Command:
    """Stands in for a command whose extra is not installed, so that the others and --help still work."""

    def fail(**_: object) -> None:
        raise missing

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(
        name, callback=fail, short_help=f"Needs the {missing.extra!r} extra.", context_settings=settings
    )


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="selective-rollout")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Stop parallel LLM rollouts of one prompt once going on is worthless.

    \b
    Start here:
      selective-rollout demo                    the whole idea in a few minutes, nothing needed
      selective-rollout import FORMAT FILE      see the waste in rollouts you already have
      selective-rollout run TASKS --env m:f     record groups of your own agent (stops nothing)
      selective-rollout doctor                  is this machine and endpoint fit for it
    """  # noqa: D301 - click reads the \b


def _remark_warning(message: Warning | str, *_: object, **__: object) -> None:
    remark(f"warning: {message}")


def main() -> None:
    """Entry point; turns every expected error into one line and an exit code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("once", UserWarning)
            warnings.showwarning = _remark_warning
            code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(USAGE)
    except (KeyboardInterrupt, click.Abort):
        remark("interrupted; what was recorded is valid and can be resumed")
        sys.exit(INTERRUPTED)
    except SelectiveRolloutError as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        remark(f"error: {error}")
        sys.exit(PREREQUISITE if isinstance(error, (PrerequisiteError, PolicyError)) else USAGE)
    else:
        sys.exit(code if isinstance(code, int) else 0)
