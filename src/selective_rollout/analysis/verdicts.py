"""Findings of a calibration in plain words."""

from __future__ import annotations

from selective_rollout.analysis.certify import USEFUL_AT, Finding, Question, Verdict


def explain(finding: Finding, question: Question) -> str:
    """What was found, why, and what would help; one paragraph."""
    where = f" in stratum {finding.stratum}" if finding.stratum is not None else ""
    words = {
        Verdict.CERTIFIED: _certified,
        Verdict.NOT_CERTIFIABLE: _not_certifiable,
        Verdict.NO_BETTER_THAN_CHANCE: _no_better_than_chance,
        Verdict.CERTIFIED_BUT_USELESS: _useless,
    }[finding.verdict](finding, question)
    return f"{'On' if finding.on else 'Off'}{where}: {words}"


def _certified(finding: Finding, question: Question) -> str:
    return (
        f"tau {finding.tau:g} at step {finding.start_step} cuts at most {question.alpha:.3g} of the "
        f"signal-bearing groups, with confidence {1 - question.delta:g}. It cut {finding.cuts} of "
        f"{finding.groups} recorded tasks, {finding.false_cuts} of {finding.n_signal} signal-bearing ones."
    )


def _not_certifiable(finding: Finding, question: Question) -> str:
    text = (
        f"not certifiable: on {finding.n_signal} signal-bearing tasks no threshold keeps the false-cut rate "
        f"below {question.alpha:.3g} with confidence {1 - question.delta:g}. "
    )
    if finding.needed is None and finding.n_signal:
        return (
            text + "Even the strictest threshold that cuts anything cuts too many; more data will not help."
        )
    needed = "" if finding.needed is None else f"{finding.needed:,} are needed at the rate observed, "
    return text + f"{needed}{finding.needed_min:,} if none of them is cut."


def _no_better_than_chance(finding: Finding, question: Question) -> str:
    interval = finding.auroc_interval
    low, high = (interval.low, interval.high) if interval is not None else (0.0, 1.0)
    return (
        f"no better than chance here: AUROC {finding.auroc:.2f} (95% {low:.2f} to {high:.2f}) for zero "
        "variance, where 0.5 is a coin flip. Try another start_step, a fitted score or the prompts' history; "
        "else leave the gate off."
    )


def _useless(finding: Finding, question: Question) -> str:
    text = (
        f"certified but useless: tau {finding.tau:g} holds the bound and cuts {finding.cuts} of "
        f"{finding.groups} tasks"
    )
    if not finding.cuts:
        return f"{text}: nothing to gain."
    p = finding.beats_base_rate
    if p is not None and p > USEFUL_AT:
        return f"{text}, but groups drawn at random would be right as often (p = {p:.2g})."
    return f"{text}, but the members had ended by then: no step is saved."
