"""What the report says in words: the same sentences on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from selective_rollout.analysis.report.collect import ReportData
from selective_rollout.analysis.report.diff import Change
from selective_rollout.analysis.report.enforced import Enforced
from selective_rollout.analysis.report.quantities import Quantity
from selective_rollout.gate.config import GateConfig
from selective_rollout.stats import Interval

KIND_WORDS: Final = {
    "all_fail": "all fail",
    "all_success": "all succeed",
    "constant": "equal in between",
    "mixed": "signal-bearing",
    "unknown": "unknown label",
    "stopped": "stopped by a gate",
}


def percent(share: float | None) -> str:
    """A share in percent, one decimal; unknown is never printed as 0."""
    return "unknown" if share is None else f"{100 * share:.1f}%"


def count(number: int | None) -> str:
    """A whole number with thousands marked."""
    return "unknown" if number is None else f"{number:,}"


def significant(value: float | None, signed: bool = False) -> str:
    """A number to three significant figures, with a real minus sign."""
    if value is None:
        return "unknown"
    if value == 0:
        return "0"
    sign = "+" if signed else ""
    text = f"{value:{sign}#.3g}".rstrip(".")
    return (text if "e" not in text else f"{value:{sign},.0f}").replace("-", "\u2212")


def value_text(quantity: Quantity) -> str:
    """The value alone."""
    if quantity.counts is not None and not quantity.counts[1]:
        return "none to count"
    return percent(quantity.value) if quantity.is_share else significant(quantity.value)


def interval_text(interval: Interval | None, is_share: bool) -> str:
    """`39.4 to 53.7%`, or why there is none."""
    if interval is None:
        return "no interval"
    if is_share:
        return f"{100 * interval.low:.1f} to {100 * interval.high:.1f}%"
    return f"{significant(interval.low)} to {significant(interval.high)}"


def counts_text(quantity: Quantity) -> str:
    """`93 of 200`, or nothing."""
    counts = quantity.counts
    return f"{counts[0]:,} of {counts[1]:,}" if counts is not None and counts[1] else ""


def spread_text(quantity: Quantity) -> str:
    """Its interval, or why there is none; nothing where nothing could be counted."""
    if quantity.counts is not None and not quantity.counts[1]:
        return ""
    return interval_text(quantity.interval, quantity.is_share)


def change_text(change: Change) -> tuple[str, str]:
    """A difference and its interval; shares differ by percentage points."""
    scale, unit = (100, " points") if change.now.is_share else (1, "")
    if change.value is None:
        return "unknown", ""
    difference = significant(change.value * scale, signed=True) + unit
    interval = change.interval
    if interval is None:
        return difference, "no interval"
    low, high = (
        significant(interval.low * scale, signed=True),
        significant(interval.high * scale, signed=True),
    )
    return difference, f"{low} to {high}"


def rule_text(rule: GateConfig) -> str:
    """A rule in a few words."""
    compared = "P(signal-bearing)" if rule.score is not None else "distance"
    when = f"at step {rule.start_step}"
    if rule.check_every is not None:
        when += f" and every {rule.check_every} after"
    extra = f", last {rule.history_mixed} rewards equal" if rule.history_mixed else ""
    level = "" if rule.level == "action" else f", {rule.level} level"
    return f"{compared} < {rule.tau:g} {when}{extra}{level}"


def lead(data: ReportData) -> list[str]:
    """What a reader should know first: the waste, whether the gate is worth anything, and what it did."""
    did = [_on_what_it_did(data.enforced)] if data.enforced is not None else []
    named = {quantity.name: quantity for quantity in data.quantities}
    zero, steps = named["zero_variance"], named["zero_variance_steps"]
    if zero.counts is None or not zero.counts[1]:
        unlabelled = "No group has a label: as long as rewards are missing, nobody can tell what was wasted."
        return [unlabelled, *did]
    hits, trials = zero.counts
    which, whole = "labelled groups", "all steps"
    if data.enforced is not None:
        ran = "ran on whatever the gate said" if data.basis == "untouched" else "the gate let through"
        which, whole = f"labelled groups that {ran}", "the steps of all such groups"
    waste = (
        f"{hits:,} of {trials:,} {which} ended with equal rewards and took {percent(steps.value)} of "
        f"{whole}; a group-centred advantage learns nothing from them."
    )
    return [waste, _on_the_gate(data, named), *did]


def judgement(efficiency: Quantity) -> str:
    """What an efficiency means."""
    if efficiency.value is None:
        return "its efficiency is unknown"
    text = f"efficiency {significant(efficiency.value)}"
    interval = efficiency.interval
    if interval is None:
        return f"{text}, on too few tasks for an interval"
    text += f" ({interval_text(interval, False)})"
    if interval.high <= 1:
        return f"{text}: worse than spending the steps on fresh prompts"
    if interval.low > 1:
        return f"{text}: better than no gate"
    return f"{text}; too few groups to tell it from 1, where a gate is worth nothing"


def caveats(data: ReportData) -> list[str]:
    """What stands between these numbers and a claim."""
    overview = data.overview
    groups, tasks = overview.groups, len(overview.tasks)
    facts: list[tuple[bool | int, str]] = [
        (
            overview.singletons == groups,
            "Every group has fewer than two rollouts, so no variance can exist. Were rollouts grouped by the "
            "wrong id?",
        ),
        (
            0 < overview.singletons < groups,
            f"{_groups(overview.singletons, 'has', 'have')} fewer than two rollouts and so no label.",
        ),
        (
            data.basis == "kept",
            "An enforcing gate let these groups through and none was audited: they are a selection, and "
            "their shares say nothing about the workload.",
        ),
        (
            overview.stopped and data.basis == "untouched",
            "Shares count observed and audited groups only; what an enforcing gate let through is a "
            "selection.",
        ),
        (
            tasks < groups,
            f"{_groups(groups, 'comes', 'come')} from {tasks:,} tasks; intervals allow for that.",
        ),
        (
            overview.unknown,
            f"{_groups(overview.unknown, 'has', 'have')} an unknown label (unscored rollouts) and no part in "
            "any rate.",
        ),
        (
            overview.unfinished,
            f"{_groups(overview.unfinished, 'is', 'are')} unfinished, since the run was interrupted, and no "
            "part of any rate.",
        ),
        (
            overview.sampling_unknown,
            f"{_groups(overview.sampling_unknown, 'declares', 'declare')} nothing about sampling: whether "
            "rollouts are copies of one another is unknown.",
        ),
        (
            overview.estimated_steps,
            f"The tokens of {overview.estimated_steps:,} steps were estimated, not counted: so is what they "
            "cost.",
        ),
        (
            data.population.answers.missing_answers,
            f"{data.population.answers.missing_answers:,} finished rollouts have no answer on record: their "
            "votes count as still out, so the exact rule saves at least what is shown.",
        ),
        (data.gates[0].rule.is_unsafe, "This rule is known to cut groups that merely open alike."),
    ]
    return [text for holds, text in facts if holds]


def certificate_sentences(certificate: Mapping[str, Any]) -> list[str]:
    """A calibration's result in plain words.

    Args:
        certificate: "text", ready-made; or some of "verdict", "alpha", "confidence", "tau", "false_cuts",
            "n_signal", "bound", "needed".
    """
    if not certificate:
        return []
    if certificate.get("text"):
        return [str(certificate["text"])]
    sentences = []
    if certificate.get("verdict"):
        sentences.append(f"Verdict: {str(certificate['verdict']).replace('_', ' ')}.")
    tau, alpha = certificate.get("tau"), certificate.get("alpha")
    if tau is None:
        sentences.append("No threshold is certified, so the gate stays off.")
    elif alpha is not None:
        confidence = certificate.get("confidence", 0.95)
        sentences.append(
            f"With {100 * confidence:g}% confidence a threshold of {tau:g} cuts at most {percent(alpha)} of "
            "the signal-bearing groups of the recorded policy."
        )
    if certificate.get("n_signal") is not None and certificate.get("false_cuts") is not None:
        sentences.append(
            f"It would have cut {certificate['false_cuts']} of {certificate['n_signal']} of them."
        )
    if certificate.get("needed") is not None:
        sentences.append(f"{certificate['needed']} signal-bearing tasks would be needed.")
    return sentences


def _on_the_gate(data: ReportData, named: Mapping[str, Quantity]) -> str:
    account, rule = data.population.accounts[0], data.gates[0].rule
    gate, shortfall = f"The gate ({rule_text(rule)})", data.reach.shortfall(rule.start_step)
    beside = "" if shortfall is None else f" But {shortfall}."
    if not account.cuts:
        if data.reach.is_too_late(rule.start_step):
            return f"{gate} looks too late: {shortfall}."
        return f"{gate} would have cut none of them.{beside}"
    unknown = f", {account.unknown_cuts} of unknown label" if account.unknown_cuts else ""
    return (
        f"{gate} would have cut {account.cuts:,} groups: {account.right:,} rightly, {account.wrong:,} "
        f"wrongly{unknown}. It saves {percent(named['lossless'].value)} of the steps losslessly and "
        f"{percent(named['lossy'].value)} lossily, {_price(named)}.{beside}"
    )


def _price(named: Mapping[str, Quantity]) -> str:
    """What the cuts cost; without a signal-bearing group nobody knows."""
    loss = named["loss"].value
    if loss is None:
        return "and what that costs is unknown: no signal-bearing group was observed that it could lose"
    return f"at the price of {percent(loss)} of the signal-bearing groups; {judgement(named['efficiency'])}"


def _on_what_it_did(enforced: Enforced) -> str:
    did = f"The gate that was on really stopped {enforced.stopped:,} of {enforced.groups:,} groups."
    if enforced.stopped == enforced.cuts["vote"]:  # an exact vote costs nothing that audits could show
        return did
    estimates = enforced.estimates
    share = None if estimates is None else estimates.wrong_cut_share
    if share is None:
        return f"{did} No labelled would-be cut was audited, so what that cost is unknown."
    return (
        f"{did} By the audits {percent(share.value)} of the cuts were signal-bearing "
        f"({share.hits:,} of {share.trials:,}; 95% {interval_text(share.interval, True)})."
    )


def _groups(number: int, verb: str, verbs: str) -> str:
    return f"1 group {verb}" if number == 1 else f"{number:,} groups {verbs}"
