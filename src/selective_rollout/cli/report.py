"""`report`: what recorded groups wasted, what a gate would have done, and the groups themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from selective_rollout.analysis.report.checks import check_values
from selective_rollout.analysis.report.collect import ReportData, collect
from selective_rollout.analysis.report.diff import Change, compare
from selective_rollout.analysis.report.failif import Check, parse_check
from selective_rollout.analysis.report.files import write_report
from selective_rollout.analysis.report.html import Extras
from selective_rollout.analysis.report.population import NamedGate
from selective_rollout.analysis.report.sweep_view import SweepView, sweep_view
from selective_rollout.cli.console import print_json, progress, remark
from selective_rollout.cli.options import (
    RULE_FIELDS,
    json_option,
    price_options,
    prices_of,
    rule_options,
)
from selective_rollout.cli.report_tables import show_report
from selective_rollout.cli.runfolder import recorded_rule
from selective_rollout.errors import ConfigError
from selective_rollout.gate.certificate import Certificate
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.gate_file import read_gate_file

CHECK_FAILED = 1

EPILOG = """
\b
Examples:
  selective-rollout report runs/mine
  selective-rollout report runs/mine --gate gate.toml --baseline runs/before
  selective-rollout report runs/mine --fail-if "false_cut_bound>0.1" --fail-if "efficiency<1" --json
"""

_TRACE = click.Path(path_type=Path)


@click.command(epilog=EPILOG)
@click.argument("traces", nargs=-1, required=True, type=_TRACE)
@click.option(
    "--gate",
    "gate_files",
    multiple=True,
    type=_TRACE,
    help="Rule from a gate.toml; repeatable, the first one is the report's own. Else the flags below; "
    "without them, the rule of the run folder.",
)
@click.option("--baseline", type=_TRACE, help="Another trace to compare with.")
@click.option(
    "--fail-if",
    "checks",
    multiple=True,
    metavar="CHECK",
    help='Exit with 1 if this holds, e.g. "loss>0.1"; repeatable.',
)
@click.option("--sweep", "sweep_file", type=_TRACE, help="JSON of a sweep, for heat map and Pareto front.")
@click.option("--out", type=_TRACE, help="Folder for page and pictures; default: report, beside the trace.")
@price_options
@rule_options
@json_option
@click.pass_context
def report(context: click.Context, /, **options: Any) -> None:
    """Report on recorded groups: terminal, one HTML page that works offline, and pictures.

    TRACES are files or folders. Exits with 1 if a --fail-if holds, or cannot be told.
    """
    checks = [parse_check(text) for text in options["checks"]]
    gates, certificate = _gates(context, options)
    sweep = _read_sweep(options["sweep_file"])
    data = _collect("groups", options["traces"], gates, prices=prices_of(options))
    changes, baseline = _changes(data, options["baseline"], gates)
    values = check_values(data, changes)
    failures = _failures(checks, values)
    extras = Extras(
        certificate=None if certificate is None else {"text": " ".join(certificate.describe().split())},
        sweep=sweep,
        changes=changes,
        baseline=baseline,
    )
    document = _document(data, changes, baseline, failures)
    files = write_report(options["out"] or _beside(options["traces"][0]), data, extras, document)
    if options["as_json"]:
        print_json({**document, "files": [str(path) for path in files]})
    else:
        show_report(data, extras, files)
    for failure in failures:
        remark(f"check failed: {failure}")
    if failures:
        context.exit(CHECK_FAILED)


def _gates(context: click.Context, options: Mapping[str, Any]) -> tuple[list[NamedGate], Certificate | None]:
    """The rules to account for, and the certificate of the first one if it has any."""
    paths: Sequence[Path] = options["gate_files"]
    given = [
        f"--{name.replace('_', '-')}"
        for name in RULE_FIELDS
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if not paths:
        flags = GateConfig.from_dict({name: options[name] for name in RULE_FIELDS})
        own = None if given else recorded_rule(options["traces"])
        return [NamedGate("gate", own or flags)], None
    if given:
        raise ConfigError(f"--gate already holds the rule: leave out {', '.join(given)}")
    read = [read_gate_file(path) for path in paths]
    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    gates = [NamedGate(name, rule) for name, (rule, _) in zip(names, read, strict=True)]
    return gates, read[0][1]


def _collect(what: str, paths: Sequence[Path], gates: Sequence[NamedGate], **options: Any) -> ReportData:
    with progress(what, None) as bar:
        data = collect(paths, gates, on_group=lambda _: bar.advance(), **options)
    for problem in data.read.problems:
        remark(problem)
    return data


def _changes(data: ReportData, baseline: Path | None, gates: Sequence[NamedGate]) -> tuple[list[Change], str]:
    if baseline is None:
        return [], ""
    before = _collect("baseline", [baseline], gates[:1], most_rows=0, most_trees=0)
    return compare(data.quantities, before.quantities), baseline.name or str(baseline)


def _read_sweep(path: Path | None) -> SweepView | None:
    if path is None:
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot read the sweep ({error})") from None
    view = values.get("report_view", values) if isinstance(values, dict) else None
    if not isinstance(view, dict) or not {"cells", "points"} & view.keys():
        raise ConfigError(f'{path}: no sweep to draw: there are neither "cells" nor "points" in it')
    return sweep_view(view)


def _failures(checks: Sequence[Check], values: Mapping[str, float | None]) -> list[str]:
    found = (check.failure(values) for check in checks)
    return [failure for failure in found if failure is not None]


def _beside(trace: Path) -> Path:
    return (trace if trace.is_dir() else trace.parent) / "report"


def _document(
    data: ReportData, changes: Sequence[Change], baseline: str, failures: Sequence[str]
) -> dict[str, Any]:
    return {
        **data.to_dict(),
        "baseline": None
        if not changes
        else {"name": baseline, "changes": {change.now.name: change.to_dict() for change in changes}},
        "failed_checks": list(failures),
    }
