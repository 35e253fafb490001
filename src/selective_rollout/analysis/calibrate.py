"""From recorded groups to a certified gate, or to an honest "off".

The order is fixed: divide the tasks, choose a rule on one part (start_step, score), certify that one rule on
the other. Where more than one claim is made on the same tasks (several start_steps without a split, strata),
delta is divided among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from selective_rollout.analysis.certify import Finding, Question, Verdict, certify
from selective_rollout.analysis.fit_score import ScoreFit, fit_score
from selective_rollout.analysis.sample import Entry, Sample, Unit
from selective_rollout.errors import ConfigError
from selective_rollout.gate.certificate import Certificate, Stratum, Workload
from selective_rollout.gate.config import GateConfig
from selective_rollout.stats import auroc, binom_cdf

SCORE_GRID: Final = "0.01:0.50:0.01"
"""Thresholds on P(signal-bearing), once a score takes the place of the distance."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What came out, and how."""

    question: Question
    rule: GateConfig
    """The rule of the deciding finding; its tau is the certified one if there is one."""
    findings: tuple[Finding, ...]
    """Every chain that was tested: one, or one for each start_step (without a split) and stratum."""
    chosen: Finding
    """The finding that decides: the certified one that saves most, if any is certified."""
    sample: Sample
    score: ScoreFit | None
    certificate: Certificate | None
    """None: the gate stays off."""

    @property
    def verdict(self) -> Verdict:
        """The deciding finding's verdict."""
        return self.chosen.verdict

    @property
    def warnings(self) -> list[str]:
        """What stands in the way of taking the numbers at face value."""
        found = [*self.sample.warnings, *(self.score.warnings if self.score is not None else ())]
        efficiency = self.chosen.efficiency
        if self.chosen.on and efficiency is not None and efficiency <= 1:
            found.append(
                f"efficiency {efficiency:.2f} is not above 1: without a gate the same steps give as many "
                "signal-bearing groups; ask for a smaller alpha"
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON output; unknown is null."""
        sample = self.sample
        return {
            **self.chosen.to_dict(),
            "alpha": self.question.alpha,
            "delta": self.question.delta,
            "grid": self.question.grid,
            "rule": self.rule.to_dict(),
            "recorded_groups": sample.groups,
            "unknown_groups": sample.unknown,
            "singletons": sample.singletons,
            "choose_groups": len(sample.choose),
            "certify_tasks": len(sample.certify),
            "choose_share": sample.split.choose_share,
            "split_seed": sample.split.seed,
            "chains": [finding.to_dict() for finding in self.findings],
            "score": None if self.score is None else score_dict(self.score),
            "warnings": self.warnings,
        }


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A rule that is to be certified, with the groups to certify it on."""

    rule: GateConfig
    entries: tuple[tuple[Unit, str | None], ...]
    """(the group under this rule, its stratum)."""


def calibrate(
    sample: Sample,
    rules: Sequence[GateConfig],
    question: Question,
    *,
    fit: bool = False,
    joint: bool = True,
    stratum_key: str | None = None,
    workload: Workload | None = None,
) -> Calibration:
    """Choose a rule and certify it.

    Args:
        sample: collected under these rules (and with the features of a fit, and the stratum key).
        rules: the rules tried, alike except for start_step.
        question: bound, confidence and grid; the grid of a score is `SCORE_GRID`.
        fit: fit a two-sided score on the *choose* part, and use it if it beats the best single signal there.
        joint: the strata's bounds are to hold all at once; False: each on its own.
        stratum_key: certify one tau per value of this metadata key.
        workload: what was recorded, for the certificate.

    Raises:
        ConfigError: a score is asked for without a split or for several start_steps, or no task is left to
            certify on.
    """
    if not sample.certify:
        wanted = "rewards" if question.risk == "signal" else "answers"
        raise ConfigError(f"no labelled group is left to certify on: record more groups, with {wanted}")
    split = sample.split.choose_share > 0
    index = best_rule(sample, rules, question) if split and len(rules) > 1 else 0
    tried = range(len(rules)) if not split else [index]
    candidates = [_candidate(sample, rules[i], i) for i in tried]
    score = _fitted(sample, rules) if fit else None
    if score is not None and score.recommended:
        candidates = [_with_score(sample, rules[0], score)]
        question = replace(question, grid=SCORE_GRID)
    findings, rule_of = _tested(candidates, question, joint, sample.split.seed)
    chosen = max(findings, key=_worth)
    rule = rule_of[findings.index(chosen)]
    certificate = None
    if chosen.on:
        mine = [finding for finding, its in zip(findings, rule_of, strict=True) if its is rule]
        chains = len(findings) if joint else len(candidates)
        certificate = _certificate(rule, mine, question, sample, chains, joint, stratum_key, workload)
        rule = certificate.rule
    return Calibration(question, rule, tuple(findings), chosen, sample, score, certificate)


def score_dict(fit: ScoreFit) -> dict[str, Any]:
    """Plain data of a fitted score for JSON output."""
    gain = fit.gain
    return {
        **{name: value for name, value in asdict(fit).items() if name not in ("score", "gain")},
        "recommended": fit.recommended,
        "gain_90": None if gain is None else [gain.low, gain.high],
        "weights": fit.score.to_dict(),
    }


def _candidate(sample: Sample, rule: GateConfig, index: int) -> _Candidate:
    return _Candidate(rule, tuple((entry.units[index], entry.stratum) for entry in sample.certify))


def _fitted(sample: Sample, rules: Sequence[GateConfig]) -> ScoreFit:
    if sample.risk != "signal":
        raise ConfigError("a score is fitted to rewards: certify it with risk signal")
    if not sample.choose:
        raise ConfigError("a score is fitted on tasks set aside for it: calibrate with a split")
    if len(rules) > 1:
        raise ConfigError("a score is fitted at one start_step: name only one")
    return fit_score([entry.example() for entry in sample.choose], seed=sample.split.seed)


def _with_score(sample: Sample, rule: GateConfig, fit: ScoreFit) -> _Candidate:
    scored = (
        (_rescored(entry, fit.score.p_signal([entry.features[n] for n in fit.score.features])), entry.stratum)
        for entry in sample.certify
    )
    return _Candidate(replace(rule, score=fit.score), tuple(scored))


def _rescored(entry: Entry, p_signal: float | None) -> Unit:
    """The group with P(signal-bearing) in place of its distance, at its single check."""
    unit = entry.units[0]
    if p_signal is None or not unit.looks:
        return replace(unit, looks=())
    return replace(unit, looks=((p_signal, unit.looks[0][1]),))


def _tested(
    candidates: Sequence[_Candidate], question: Question, joint: bool, seed: int
) -> tuple[list[Finding], list[GateConfig]]:
    """Test each candidate in each stratum; also the rule that belongs to each finding."""
    declared = {stratum for _, stratum in candidates[0].entries if stratum is not None}
    strata: list[str | None] = [*sorted(declared)] or [None]
    sharing = len(candidates) * (len(strata) if joint else 1)
    cells = [(candidate, stratum) for candidate in candidates for stratum in strata]
    findings = [
        certify(
            [unit for unit, its in candidate.entries if its == stratum],
            question,
            start_step=candidate.rule.start_step,
            level=question.delta / sharing,
            stratum=stratum,
            seed=seed,
        )
        for candidate, stratum in cells
    ]
    return findings, [candidate.rule for candidate, _ in cells]


def _worth(finding: Finding) -> tuple[bool, float, float]:
    return finding.on, finding.saved or 0.0, finding.auroc or 0.0


def _certificate(
    rule: GateConfig,
    findings: Sequence[Finding],
    question: Question,
    sample: Sample,
    chains: int,
    joint: bool,
    stratum_key: str | None,
    workload: Workload | None,
) -> Certificate:
    """The certificate of the findings of one rule: its strata, or its only one."""
    parts = [
        Stratum(
            name=finding.stratum or "",
            tau=finding.tau or 0.0,
            n_signal=finding.n_signal,
            false_cuts=finding.false_cuts or 0,
            cuts=finding.cuts or 0,
            groups=finding.groups,
        )
        for finding in findings
        if finding.on
    ]
    return Certificate(
        rule=replace(rule, tau=max(part.tau for part in parts)),
        alpha=question.alpha,
        delta=question.delta,
        n_signal=sum(part.trials for part in parts) if question.risk == "signal" else None,
        false_cuts=sum(part.false_cuts for part in parts),
        cuts=sum(part.cuts for part in parts),
        groups=sum(part.groups for part in parts),
        grid=question.grid,
        choose_share=sample.split.choose_share,
        split_seed=sample.split.seed,
        chains=chains,
        stratum_key=stratum_key,
        joint=joint,
        strata=tuple(parts) if stratum_key is not None else (),
        workload=workload or Workload(group_size=sample.group_size),
        risk=question.risk,
    )


def best_rule(sample: Sample, rules: Sequence[GateConfig], question: Question) -> int:
    """Index of the rule whose certificate is expected to save most, judged on the choose part alone."""
    growth = 1 / sample.split.choose_share - 1
    promises = [
        _promise([entry.units[i] for entry in sample.choose], question, growth) for i in range(len(rules))
    ]
    return promises.index(max(promises))


def _promise(units: Sequence[Unit], question: Question, growth: float) -> tuple[float, float]:
    """(chance of a certificate times the share of steps it saves, at the best tau; AUROC).

    The chance is that of the false cuts among `growth` times as many trials, given those seen.
    """
    harmful = [unit for unit in units if not unit.harmless]
    trials = question.trials(units)
    fresh = math.floor(trials * growth)
    allowed = -1
    while allowed < fresh and binom_cdf(allowed + 1, fresh, question.alpha) <= question.delta:
        allowed += 1
    steps = sum(unit.steps for unit in units) or 1
    best = 0.0
    for tau in question.taus:
        wrong = sum(unit.saved(tau) is not None for unit in harmful)
        chance = _at_most(allowed, fresh, wrong + 0.5, trials - wrong + 0.5)
        best = max(best, chance * sum(unit.saved(tau) or 0 for unit in units) / steps)
    values = [-math.inf if unit.smallest_tau is None else -unit.smallest_tau for unit in units]
    return best, auroc(values, [unit.harmless for unit in units]) or 0.0


def _at_most(count: int, n: int, a: float, b: float) -> float:
    """P(X <= count) of n trials whose rate has a Beta(a, b) distribution."""
    whole = math.lgamma(n + 1) - _log_beta(a, b)
    logs = (
        whole - math.lgamma(x + 1) - math.lgamma(n - x + 1) + _log_beta(x + a, n - x + b)
        for x in range(count + 1)
    )
    return math.fsum(map(math.exp, logs))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
