"""`calibrate`: choose a threshold with a bound on its harm, or say why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Group, RenderableType
from rich.text import Text

from selective_rollout.analysis.audited import audit_counts, renew
from selective_rollout.analysis.calibrate import Calibration
from selective_rollout.analysis.calibrate import calibrate as calibrated
from selective_rollout.analysis.certify import Finding, Question, certify
from selective_rollout.analysis.fit_score import FEATURES, ScoreFit
from selective_rollout.analysis.reach import Reach
from selective_rollout.analysis.sample import Collector, collect
from selective_rollout.analysis.scores_file import read_scores
from selective_rollout.analysis.split import Split, require_unseen
from selective_rollout.analysis.stream_cuts import StreamCertifier
from selective_rollout.analysis.verdicts import explain, explain_renewal
from selective_rollout.analysis.workload import recorded_workload
from selective_rollout.cli.console import (
    facts_table,
    number,
    percent,
    print_json,
    progress,
    remark,
    stdout,
    table,
)
from selective_rollout.cli.options import json_option
from selective_rollout.errors import ConfigError
from selective_rollout.gate.audit import AuditCounts, AuditedRate
from selective_rollout.gate.certificate import Certificate, Risk
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.gate_file import read_gate_file, write_gate_file
from selective_rollout.trace.reader import ReadReport, RecordedGroup, read_groups, trace_files

EPILOG = """
\b
Examples:
  selective-rollout calibrate runs/mine                         writes gate.toml, or says why not
  selective-rollout calibrate runs/mine --no-split --alpha 0.05 the rule was fixed beforehand
  selective-rollout calibrate runs/mine --fit-score             the two-sided score instead of the distance
  selective-rollout calibrate runs/votes --risk answer          a survivor answers: bound wrong answers
  selective-rollout calibrate runs/live --renew gate.toml --audit-rate 0.1
"""

_RULE = ("check_every", "padding", "history_mixed", "min_members")


@click.command(epilog=EPILOG)
@click.argument("traces", nargs=-1, type=click.Path(path_type=Path))
@click.option("--scores", type=click.Path(path_type=Path), help="CSV: group, step, distance, zero_variance.")
@click.option("--start-step", "start_steps", type=int, multiple=True, help="First check; repeatable. [10]")
@click.option(
    "--risk",
    type=click.Choice(["signal", "answer"]),
    default="signal",
    show_default=True,
    help="What is bounded: P(cut | signal-bearing), or P(cut and the survivor answers differently).",
)
@click.option("--alpha", type=float, default=0.10, show_default=True, help="Bound on the risk.")
@click.option("--delta", type=float, default=0.05, show_default=True, help="1 - confidence.")
@click.option("--grid", default=Question().grid, show_default=True, help="Thresholds to walk up.")
@click.option("--check-every", type=int, help="Check again every N steps; default: once.")
@click.option("--padding", type=click.Choice(["end", "none"]), default="end", show_default=True)
@click.option(
    "--outcome",
    type=click.Choice(["drop", "survivor"]),
    help="What becomes of a cut group. [drop; survivor with --risk answer]",
)
@click.option("--history-mixed", type=int, default=0, help="Fire only if the last H rewards were equal.")
@click.option("--min-members", type=int, help="Fewest members at the check; default: half the group.")
@click.option("--choose-share", type=float, default=Split().choose_share, show_default=True)
@click.option("--no-split", is_flag=True, help="The rule was fixed beforehand: certify on all tasks.")
@click.option("--seed", type=int, default=0, show_default=True, help="Draws split and groups.")
@click.option("--fit-score", is_flag=True, help="Fit the two-sided score and use it if it beats any signal.")
@click.option("--stratum", help="Metadata key: one threshold for each of its values.")
@click.option("--per-stratum", is_flag=True, help="Each stratum's bound on its own, not all at once.")
@click.option("--renew", type=click.Path(path_type=Path), help="Gate file to renew from an audited run.")
@click.option("--audit-rate", type=float, help="With --renew: share of would-be cuts that ran on.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("gate.toml"), show_default=True)
@click.option("--require-certificate", is_flag=True, help="Exit with 1 unless a gate is certified.")
@json_option
def calibrate(**options: Any) -> None:
    """Choose a threshold whose harm is bounded, and write it to gate.toml.

    TRACES are recorded in observe mode. "Not certifiable", "no better than chance" and "certified but
    useless" are normal answers: then nothing is written and the gate stays off.
    """
    report = _scores_report(options) if options["scores"] else _trace_report(options)
    if options["as_json"]:
        print_json(report.document)
    else:
        stdout().print(report.shown)
    for warning in report.warnings:
        remark(f"warning: {warning}")
    if report.certificate is not None:
        write_gate_file(options["out"], report.certificate)
        remark(f"wrote {options['out']}")
    elif not report.on and not options["scores"] and options["out"].exists():
        remark(f"{options['out']} is from an earlier calibration and was left as it is")
    if options["require_certificate"] and not report.on:
        raise click.exceptions.Exit(1)


@dataclass(frozen=True, slots=True)
class Report:
    """What the command prints and writes."""

    on: bool
    document: Mapping[str, Any]
    shown: RenderableType
    warnings: Sequence[str] = ()
    certificate: Certificate | None = None


def render(result: Calibration, reach: Reach) -> RenderableType:
    """A calibration for people."""
    by_score = result.rule.score is not None
    parts: list[RenderableType] = [
        Text(explain(finding, result.question, reach, by_score=by_score), style="bold")
        for finding in result.findings
    ]
    sample = result.sample
    parts.append(
        Text(
            f"\n{sample.groups:,} groups recorded; {len(sample.choose):,} of them to choose on, one group "
            f"for each of {len(sample.certify):,} other tasks to certify on."
        )
    )
    parts += [_finding_table(finding, reach) for finding in result.findings]
    if result.score is not None:
        parts.append(_score_table(result.score))
    if result.certificate is not None:
        parts += [Text(), Text(result.certificate.describe())]
    return Group(*parts)


def scores_to_dict(finding: Finding, question: Question, unknown: int) -> dict[str, Any]:
    """The JSON document of `calibrate --scores`."""
    return {
        **finding.to_dict(),
        "alpha": question.alpha,
        "delta": question.delta,
        "grid": question.grid,
        "unknown_groups": unknown,
    }


def _scores_report(options: Mapping[str, Any]) -> Report:
    if options["traces"]:
        raise ConfigError("calibrate: give traces or --scores, not both")
    steps = options["start_steps"] or (GateConfig().start_step,)
    if len(steps) > 1:
        raise ConfigError("calibrate: --scores is certified at one --start-step")
    if options["risk"] != "signal":
        raise ConfigError("calibrate: --scores holds no answers: --risk answer needs a trace")
    question = _question(options)
    units, unknown = read_scores(options["scores"], steps[0])
    finding = certify(units, question, start_step=steps[0], seed=options["seed"])
    shown = Group(Text(explain(finding, question), style="bold"), Text(), _finding_table(finding))
    return Report(finding.on, scores_to_dict(finding, question, unknown), shown)


def _trace_report(options: Mapping[str, Any]) -> Report:
    traces = options["traces"]
    if not traces:
        raise ConfigError("calibrate: name a trace (a file or a run folder), or --scores FILE.csv")
    if options["renew"]:
        return _renewal_report(options)
    if options["audit_rate"] is not None:
        raise ConfigError("calibrate: --audit-rate goes with --renew GATE")
    split = Split(0.0 if options["no_split"] else options["choose_share"], options["seed"])
    require_unseen(traces, split)
    outcome = options["outcome"] or ("survivor" if options["risk"] == "answer" else "drop")
    rules = [
        GateConfig.from_dict(
            {"start_step": step, "outcome": outcome, **{name: options[name] for name in _RULE}}
        )
        for step in dict.fromkeys(options["start_steps"]) or (GateConfig().start_step,)
    ]
    question = _question(options)
    collector = Collector(
        rules,
        split,
        features=FEATURES if options["fit_score"] else (),
        stratum_key=options["stratum"],
        risk=question.risk,
    )
    streams = StreamCertifier(seed=options["seed"], survives=outcome != "drop")
    reach = Reach()
    with _groups(traces) as groups:
        sample = collect(streams.watch(reach.watch(groups, split)), collector)
    result = calibrated(
        sample,
        rules,
        question,
        fit=options["fit_score"],
        joint=not options["per_stratum"],
        stratum_key=options["stratum"],
        workload=recorded_workload(traces, sample.group_size),
    )
    on = result.certificate is not None
    inside = streams.findings(question) if question.risk == "signal" else []
    document = {
        **result.to_dict(),
        "reach": reach.to_dict(result.chosen.start_step),
        "stream_rules": [finding.to_dict() for finding in inside],
    }
    shown = Group(render(result, reach), *(Text(f"\n{finding.describe()}") for finding in inside))
    return Report(on, document, shown, result.warnings, result.certificate)


def _renewal_report(options: Mapping[str, Any]) -> Report:
    _, certificate = read_gate_file(options["renew"])
    if certificate is None:
        raise ConfigError(f"{options['renew']}: holds no certificate to renew")
    if options["audit_rate"] is None:
        raise ConfigError("calibrate: --renew needs the run's --audit-rate")
    with _groups(options["traces"]) as groups:
        counts = audit_counts(groups, options["audit_rate"], certificate.rule)
    with _groups(options["traces"]) as groups:
        renewal = renew(groups, certificate, options["audit_rate"], seed=options["seed"])
    renewed = renewal.certificate
    false_cut_rate, wrong_cut_share = counts.false_cut_rate, counts.wrong_cut_share
    document = {
        "renewed": renewed is not None,
        "gate": "off" if renewed is None else "on",
        "tau": None if renewed is None else renewed.rule.tau,
        "n_signal": None if renewed is None else renewed.n_signal,
        "false_cuts": None if renewed is None else renewed.false_cuts,
        "contradicted": renewal.is_contradicted,
        "observed_signal": renewal.observed,
        "would_be_cuts": renewal.would_be_cuts,
        "allowed_share": renewal.allowed,
        "more_needed": renewal.more_needed,
        "false_cut_rate": None if false_cut_rate is None else false_cut_rate.to_dict(),
        "wrong_cut_share": None if wrong_cut_share is None else wrong_cut_share.to_dict(),
    }
    return Report(
        renewed is not None,
        document,
        Group(_audit_table(counts), Text(), Text(explain_renewal(renewal))),
        (),
        renewed,
    )


def _question(options: Mapping[str, Any]) -> Question:
    return Question(options["alpha"], options["delta"], options["grid"], options["risk"])


@contextmanager
def _groups(traces: Sequence[Path]) -> Iterator[Iterator[RecordedGroup]]:
    """The groups of traces, with a progress bar over their bytes and what was repaired said at the end."""
    report = ReadReport()
    total = sum(file.stat().st_size for file in trace_files(traces))
    with progress("bytes read", total) as bar:
        yield read_groups(traces, report=report, on_bytes=bar.reach)
    for problem in report.problems:
        remark(problem)


_WORDS: Final[Mapping[Risk, Mapping[str, str]]] = {
    "signal": {
        "harmful": "signal-bearing",
        "base": "zero variance (base rate)",
        "area": "AUROC for zero variance",
        "cuts": "cuts / false cuts",
        "bound": "bound of the false-cut rate",
        "needed": "signal-bearing tasks needed",
    },
    "answer": {
        "harmful": "survivor answers differently",
        "base": "survivor agrees (base rate)",
        "area": "AUROC for agreement",
        "cuts": "cuts / answered differently",
        "bound": "bound of P(cut, answered differently)",
        "needed": "tasks needed",
    },
}
"""What the rows of a finding are called."""


def _finding_table(finding: Finding, reach: Reach | None = None) -> RenderableType:
    title = f"Start step {finding.start_step}" + (
        f", {finding.stratum}" if finding.stratum is not None else ""
    )
    said = _WORDS[finding.risk]
    rows = [
        ("tasks", number(finding.groups)),
        (said["harmful"], number(finding.harmful)),
        (said["base"], percent(finding.base_rate)),
    ]
    if reach is not None:
        running = f"{reach.running(finding.start_step):,} of {reach.groups:,}"
        rows.append(("recorded groups that still run then", running))
        if not finding.on and reach.is_too_late(finding.start_step):
            return facts_table(f"{title}: too late to tell", "recorded", rows)
    verdict = finding.verdict.value.replace("_", " ")
    return facts_table(f"{title}: {verdict}", "certified on", [*rows, *_test_rows(finding)])


def _test_rows(finding: Finding) -> list[tuple[str, str]]:
    """What was found out about distances and thresholds."""
    said, interval = _WORDS[finding.risk], finding.auroc_interval
    area = "unknown" if finding.auroc is None else f"{finding.auroc:.3f}"
    held = "" if interval is None else f" (95% {interval.low:.3f} to {interval.high:.3f})"
    rows = [
        (said["area"], area + held),
        ("tau", "none" if finding.tau is None else f"{finding.tau:g}"),
    ]
    if finding.tau is not None and finding.cuts is not None:
        rows += [
            (said["cuts"], f"{finding.cuts} / {finding.false_cuts}"),
            (said["bound"], percent(finding.bound)),
            ("p-value of beating cuts at random", number(finding.beats_base_rate, 2)),
            ("steps not generated", percent(finding.saved)),
        ]
    if finding.tau is not None and finding.risk == "signal":
        rows.append(("efficiency (1.00 = worthless)", number(finding.efficiency)))
    needed = "unknown" if not finding.trials else "no number will do"
    needed = needed if finding.needed is None else f"{finding.needed:,}"
    rows.append((said["needed"], f"{needed} (without any false cut {finding.needed_min:,})"))
    return rows


def _score_table(fit: ScoreFit) -> RenderableType:
    verdict = (
        "recommended"
        if fit.recommended
        else "not recommended: it has to beat chance and the best single signal"
    )
    shown = table(f"Two-sided score, {verdict}", "feature", "all fail", "all succeed")
    for name, fail, success in zip(fit.score.features, fit.score.fail, fit.score.success, strict=True):
        shown.add_row(name, f"{fail:+.2f}", f"{success:+.2f}")
    gain = "unknown" if fit.gain is None else f"{fit.gain.low:+.3f} to {fit.gain.high:+.3f}"
    shown.caption = (
        f"Out of fold AUROC {number(fit.auroc)}, best single signal ({fit.best_single}) "
        f"{number(fit.best_single_auroc)}; gain, 90%: {gain}"
    )
    shown.caption_justify = "left"
    return shown


def _audit_table(counts: AuditCounts) -> RenderableType:
    facts = [
        ("cut, so unobserved", number(counts.unobserved)),
        ("false_cut_rate P(cut | signal)", _rate_text(counts.false_cut_rate)),
        ("wrong_cut_share P(signal | cut)", _rate_text(counts.wrong_cut_share)),
    ]
    return facts_table("Audits", "measured", facts)


def _rate_text(rate: AuditedRate | None) -> str:
    if rate is None:
        return "unknown: nothing observed"
    interval = f"95% {percent(rate.interval.low)} to {percent(rate.interval.high)}"
    return f"{percent(rate.value)} ({rate.hits} of {rate.trials} observed; {interval})"
