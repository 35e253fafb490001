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


def _no_better_than_chance(finding: Finding, question: Question) -> str:
    interval = finding.auroc_interval
    low, high = (interval.low, interval.high) if interval is not None else (0.0, 1.0)
    area = f"no better than chance here: AUROC {finding.auroc:.2f} (95% {low:.2f} to {high:.2f}) for"
    if finding.risk == "answer":
        return (
            f"{area} survivors that answer as the full vote does, where 0.5 is a coin flip. Try another "
            "start_step, or stop votes by the exact rule (outcome vote), which needs no calibration."
        )
    return (
        f"{area} zero variance, where 0.5 is a coin flip. Try another start_step, a fitted score or the "
        "prompts' history; else leave the gate off."
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
        if finding.risk == "answer":
            return (
                f"{text}, but survivors of groups drawn at random would agree with the vote as often "
                f"(p = {p:.2g}): fewer rollouts for every group would do."
            )
        return f"{text}, but groups drawn at random would be right as often (p = {p:.2g})."
    return f"{text}, but the members had ended by then: no step is saved."
