"""Findings of a calibration in plain words."""

from __future__ import annotations

from selective_rollout.analysis.audited import Renewal
from selective_rollout.analysis.certify import USEFUL_AT, Finding, Question, Verdict
from selective_rollout.analysis.reach import Reach


def explain(
    finding: Finding, question: Question, reach: Reach | None = None, *, by_score: bool = False
) -> str:
    """What was found, why, and what would help; one paragraph.

    Args:
        finding: what was found.
        question: what was asked.
        reach: how far the recorded groups run, if that is known. Where hardly any still runs at the check,
            the finding is about that, and no word is said about distances.
        by_score: a fitted score was held against tau in place of the distance.
    """
    where = f" in stratum {finding.stratum}" if finding.stratum is not None else ""
    shortfall = reach.shortfall(finding.start_step) if reach is not None and not finding.on else None
    if reach is not None and shortfall is not None and reach.is_too_late(finding.start_step):
        return f"Off{where}: {shortfall}."
    beside = "" if shortfall is None else f" {shortfall[0].upper()}{shortfall[1:]}."
    return f"{'On' if finding.on else 'Off'}{where}: {_words(finding, question, by_score)}{beside}"


def explain_renewal(renewal: Renewal) -> str:
    """What the audits say of the certificate; one paragraph."""
    if renewal.certificate is not None:
        return renewal.certificate.describe()
    counts = (
        f"{renewal.would_be_cuts:,} of {renewal.observed:,} observed signal-bearing groups (one for each "
        f"task) are would-be cuts, and it allows {100 * renewal.allowed:.2g}% at this audit rate"
    )
    if renewal.is_contradicted:
        return f"Off: the audits contradict the certificate. {counts}. Calibrate again."
    return (
        f"Not renewed: too few audits yet. {counts}: that neither supports the certificate nor contradicts "
        f"it. At least {renewal.more_needed:,} more are needed, if none of those is a would-be cut."
    )


def _words(finding: Finding, question: Question, by_score: bool) -> str:
    match finding.verdict:
        case Verdict.CERTIFIED:
            return _certified(finding, question)
        case Verdict.NOT_CERTIFIABLE:
            return _not_certifiable(finding, question)
        case Verdict.NO_BETTER_THAN_CHANCE:
            return _no_better_than_chance(finding, by_score)
        case Verdict.CERTIFIED_BUT_USELESS:
            return _useless(finding)


def _certified(finding: Finding, question: Question) -> str:
    if finding.risk == "answer":
        return (
            f"with tau {finding.tau:g} at step {finding.start_step} at most {question.alpha:.3g} of all "
            f"groups are cut and answered differently than by their full vote, with confidence "
            f"{1 - question.delta:g}. It cut {finding.cuts} of {finding.groups} recorded tasks, and "
            f"{finding.false_cuts} of their survivors would have answered differently."
        )
    return (
        f"tau {finding.tau:g} at step {finding.start_step} cuts at most {question.alpha:.3g} of the "
        f"signal-bearing groups, with confidence {1 - question.delta:g}. It cut {finding.cuts} of "
        f"{finding.groups} recorded tasks, {finding.false_cuts} of {finding.n_signal} signal-bearing ones."
    )


def _not_certifiable(finding: Finding, question: Question) -> str:
    tasks, rate = f"{finding.trials} signal-bearing tasks", "false-cut rate"
    if finding.risk == "answer":
        tasks, rate = f"{finding.trials} tasks", "share of groups cut and answered differently"
    text = (
        f"not certifiable: on {tasks} no threshold keeps the {rate} below {question.alpha:.3g} with "
        f"confidence {1 - question.delta:g}. "
    )
    if finding.needed is None and finding.trials:
        return (
            text + "Even the strictest threshold that cuts anything cuts too many; more data will not help."
        )
    needed = "" if finding.needed is None else f"{finding.needed:,} are needed at the rate observed, "
    harm = "is cut" if finding.risk == "signal" else "is answered differently"
    return text + f"{needed}{finding.needed_min:,} if none of them {harm}."


def _no_better_than_chance(finding: Finding, by_score: bool) -> str:
    interval = finding.auroc_interval
    low, high = (interval.low, interval.high) if interval is not None else (0.0, 1.0)
    area = f"no better than chance here: AUROC {finding.auroc:.2f} (95% {low:.2f} to {high:.2f}) for"
    if finding.risk == "answer":
        return (
            f"{area} survivors that answer as the full vote does, where 0.5 is a coin flip. Try another "
            "start_step, or stop votes by the exact rule (outcome vote), which needs no calibration."
        )
    if by_score:
        return (
            f"{area} zero variance by the fitted score, where 0.5 is a coin flip. Try another start_step or "
            "the prompts' history; else leave the gate off."
        )
    return (
        f"{area} zero variance, where 0.5 is a coin flip. Try another start_step, a fitted score or the "
        "prompts' history; else leave the gate off."
    )


def _useless(finding: Finding) -> str:
    text = (
        f"certified but useless: tau {finding.tau:g} holds the bound and cuts {finding.cuts} of "
        f"{finding.groups} tasks"
    )
    if not finding.cuts:
        return f"{text}: nothing to gain."
    p = finding.beats_base_rate
    if p is not None and p > USEFUL_AT:
        if finding.risk == "answer":
            return (
                f"{text}, but survivors of groups drawn at random would agree with the vote as often "
                f"(p = {p:.2g}): fewer rollouts for every group would do."
            )
        return f"{text}, but groups drawn at random would be right as often (p = {p:.2g})."
    return f"{text}, but the members had ended by then: no step is saved."
