"""`import`: rollouts that other tools recorded become a trace, and their waste becomes visible."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from selective_rollout.actions import ActionOptions
from selective_rollout.cli.console import number, print_json, progress, remark, stdout, table
from selective_rollout.cli.options import json_option
from selective_rollout.errors import ConfigError
from selective_rollout.trace.importers import (
    FORMATS,
    ROLES,
    ColumnMapping,
    ImportReport,
    import_rollouts,
    replacing_recorder,
)

EPILOG = f"""
\b
Examples:
  selective-rollout import tau-bench results/gpt-4o-airline.json
  selective-rollout import generic rollouts.jsonl --map group=source+group_id --map reward=success

Roles for --map: {", ".join(ROLES)}.
"""


@click.command("import", epilog=EPILOG)
@click.argument("format_name", metavar="FORMAT", type=click.Choice(sorted(FORMATS)))
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), help="Trace to write; default: NAME.trace.jsonl here."
)
@click.option("--map", "mapping", multiple=True, help="ROLE=COLUMN[+COLUMN]; repeatable.")
@click.option("--separator", help="What separates the actions where they are one text.")
@click.option("--reward-key", help="Key of rewards that are objects.")
@click.option(
    "--rewards", type=click.Path(path_type=Path), help="Rewards scored later: group, rollout, reward."
)
@click.option("--ignore-arg", "ignored", multiple=True, help="TOOL.ARG to leave out of actions; repeatable.")
@click.option("--name-only", is_flag=True, help="Compare tool names only.")
@click.option("--scrub-volatile", is_flag=True, help="Scrub ids and timestamps out of actions.")
@json_option
def import_(
    format_name: str,
    paths: Sequence[Path],
    out: Path | None,
    mapping: Sequence[str],
    separator: str | None,
    reward_key: str | None,
    rewards: Path | None,
    ignored: Sequence[str],
    name_only: bool,
    scrub_volatile: bool,
    as_json: bool,
) -> None:
    """Turn rollouts that you already have into a trace.

    Every record that is skipped or repaired is counted and listed. The trace at --out is replaced only when
    the whole import went well.
    """
    actions = ActionOptions(ignore_args=_ignored(ignored), name_only=name_only, scrub_volatile=scrub_volatile)
    target = out or Path(f"{paths[0].stem}.trace.jsonl")
    total = sum(path.stat().st_size for path in paths if path.is_file())
    with progress("importing bytes", total or None) as bar, replacing_recorder(target) as recorder:
        report = import_rollouts(
            format_name,
            paths,
            recorder,
            mapping=ColumnMapping.parse(mapping, separator=separator),
            reward_key=reward_key,
            actions=actions,
            rewards_file=rewards,
            on_bytes=bar.reach,
        )
    for warning in report.warnings:
        remark(f"warning: {warning}")
    if as_json:
        print_json({"trace": str(target), **report.to_dict()})
    else:
        _show(report, target)


def _ignored(items: Sequence[str]) -> dict[str, list[str]]:
    ignored: dict[str, list[str]] = {}
    for item in items:
        tool, dot, argument = item.partition(".")
        if not (tool and dot and argument):
            raise ConfigError(f"--ignore-arg {item!r}: write TOOL.ARG, such as web.query")
        ignored.setdefault(tool, []).append(argument)
    return ignored


def _show(report: ImportReport, target: Path) -> None:
    shown = table(f"Imported from {report.format}", "what", "count")
    for name, value in (
        ("groups", report.groups),
        ("  zero variance", report.zero_variance),
        ("  signal-bearing", report.signal_bearing),
        ("  unknown", report.unknown),
        ("rollouts", report.rollouts),
        ("  lost to infrastructure", report.failed),
        ("  unscored", report.unscored),
        ("steps", report.steps),
        ("records skipped", report.skipped),
        ("records repaired or skipped, in all", report.problem_count),
    ):
        shown.add_row(name, number(value))
    console = stdout()
    console.print(shown)
    for problem in report.problems:
        console.print(problem, markup=False, soft_wrap=True)
    if report.problem_count > len(report.problems):
        console.print(f"... and {report.problem_count - len(report.problems)} more")
    console.print(f"Trace: {target}", markup=False)
