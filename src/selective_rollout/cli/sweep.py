"""`sweep`: try every signal, step and threshold on recorded groups, beside what chance alone would reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from selective_rollout.analysis.split import Split
from selective_rollout.analysis.sweep_grid import CANONICALISERS, CHAR_DISTANCE, HISTORY, RECORDED, SweepGrid
from selective_rollout.cli.options import json_option, price_options, prices_of
from selective_rollout.errors import ConfigError
from selective_rollout.gate.signals import SIGNALS
from selective_rollout.stats import decimal_grid

ONCE = "once"

EPILOG = """
\b
Examples:
  selective-rollout sweep runs/mine --out runs/mine/sweep
  selective-rollout sweep runs/mine --signal tool_distance --start-step 5 --start-step 10
  selective-rollout sweep runs/mine --all --signal distance --tau 0.12 --start-step 10 --check-every once

One value for each of --signal, --tau, --start-step and --check-every is a replay of that gate.
"""

_SIGNALS = [*(name for name in SIGNALS if name != HISTORY), CHAR_DISTANCE]


@click.command(epilog=EPILOG)
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--tau", "taus", default="0.01:0.30:0.01", show_default=True, help="Thresholds.")
@click.option("--start-step", "start_steps", type=int, multiple=True, help="Repeatable. [5, 10, 15, 20]")
@click.option(
    "--check-every", "check_everys", multiple=True, help='"once" or a number of steps; repeatable. [once, 5]'
)
@click.option(
    "--signal",
    "signals",
    type=click.Choice(_SIGNALS),
    multiple=True,
    help="Repeatable; default: all but char.",
)
@click.option(
    "--canonicaliser",
    "canonicalisers",
    type=click.Choice([RECORDED, *CANONICALISERS]),
    multiple=True,
    help="What counts as the same action to a distance; repeatable. [recorded]",
)
@click.option("--all", "everything", is_flag=True, help="Look at all tasks: none is left to calibrate on.")
@click.option(
    "--choose-share",
    type=float,
    default=Split().choose_share,
    show_default=True,
    help="Share of the tasks looked at; give calibrate the same.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Draws the split and the resamples.")
@click.option("--highest-reward", type=float, default=1.0, show_default=True, help="Of a full success.")
@price_options
@click.option("--out", type=click.Path(path_type=Path), help="Folder for sweep.json and pictures.")
@json_option
def sweep(**options: Any) -> None:
    """Look for a signal, a step and a threshold that would serve on recorded groups.

    TRACES are files or folders recorded in observe mode, or imported. Only a part of the tasks is looked at,
    so that calibrate has others to certify on.
    """
    # NumPy and pictures come with an extra, which --help must not need.
    from selective_rollout.cli.sweep_run import run_sweep  # noqa: PLC0415

    split = None if options["everything"] else Split(options["choose_share"], options["seed"])
    if split is not None and not split.choose_share:
        raise ConfigError(
            "sweep: --choose-share 0 leaves nothing to look at; say --all to look at everything"
        )
    if not 0 < options["highest_reward"] < math.inf:
        raise ConfigError(f"sweep: --highest-reward must be above 0, not {options['highest_reward']:g}")
    run_sweep(
        options["traces"],
        _grid(options),
        split,
        seed=options["seed"],
        highest_reward=options["highest_reward"],
        prices=prices_of(options),
        out=options["out"],
        as_json=options["as_json"],
    )


def _grid(options: dict[str, Any]) -> SweepGrid:
    axes = {
        "taus": tuple(decimal_grid(options["taus"])),
        "start_steps": options["start_steps"],
        "check_everys": _check_everys(options["check_everys"]),
        "signals": options["signals"],
        "canonicalisers": options["canonicalisers"],
    }
    return SweepGrid(**{name: values for name, values in axes.items() if values})


def _check_everys(texts: Sequence[str]) -> tuple[int | None, ...]:
    for text in texts:
        if text != ONCE and not text.isdecimal():
            raise ConfigError(f'sweep: --check-every {text!r}: write "once" or a number of steps')
    return tuple(None if text == ONCE else int(text) for text in texts)
