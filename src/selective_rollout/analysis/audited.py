"""What an enforcing run with audits says about its gate, and renewing the certificate from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from selective_rollout.analysis.accounting import was_stopped
from selective_rollout.analysis.replay import Check, Replay, replay
from selective_rollout.analysis.sample import Unit, unit_of
from selective_rollout.analysis.split import OnePerTask
from selective_rollout.errors import ConfigError
from selective_rollout.gate.audit import ALARM_LEVEL, AuditCounts, thinned
from selective_rollout.gate.certificate import Certificate, accepts
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import judge
from selective_rollout.rewards import group_label
from selective_rollout.stats import binom_cdf, decimal_grid, fixed_sequence, needed_with
from selective_rollout.trace.reader import RecordedGroup
from selective_rollout.trace.seen import seen_of


@dataclass(frozen=True, slots=True)
class Renewal:
    """What the audits say about a certificate."""

    certificate: Certificate | None
    """The renewed one; None if they do not support it at any tau of the grid."""
    observed: int
    """Signal-bearing groups that were observed, one for each task."""
    would_be_cuts: int
    """Of these, those that the certified rule would cut."""
    allowed: float
    """The share of them that the certificate allows: alpha, thinned by the audits."""
    more_needed: int | None
    """So many further ones, none of them a would-be cut, would renew it; None: it is renewed."""

    @property
    def is_contradicted(self) -> bool:
        """Whether so many would-be cuts have a chance of at most 5% where the certificate holds."""
        cuts, observed = self.would_be_cuts, self.observed
        if self.certificate is not None or not cuts:
            return False
        return 1 - binom_cdf(cuts - 1, observed, self.allowed) <= ALARM_LEVEL


def audit_counts(groups: Iterable[RecordedGroup], audit_rate: float, rule: GateConfig) -> AuditCounts:
    """Count the audits of an enforcing run; groups of other modes are passed over.

    Args:
        groups: recorded groups.
        audit_rate: the probability with which would-be cuts ran on.
        rule: says which rewards count as equal.

    Raises:
        ConfigError: the audit rate is not in (0, 1].
    """
    counts = AuditCounts(audit_rate)
    for recorded in groups:
        if (seen := seen_of(recorded, rule)) is not None:
            counts.add(seen)
    return counts


def renew(
    groups: Iterable[RecordedGroup],
    certificate: Certificate,
    audit_rate: float,
    *,
    enforced: GateConfig | None = None,
    seed: int = 0,
) -> Renewal:
    """Certify a rule again, on the groups that it gated itself.

    Tests whether the share of audited would-be cuts among the observed signal-bearing groups, one group per
    task, shows P(cut | signal-bearing) <= alpha, at the certified tau or below. The j-th renewal spends
    delta / (j (j + 1)), so that all of them together spend delta. A group that the certified rule would cut
    and that ran on for another reason than an audit (a lower live tau, a late veto) counts as a cut, which
    errs on the safe side.

    Args:
        groups: groups of an enforcing run; those of other modes are passed over.
        certificate: the certificate in force.
        audit_rate: the probability with which would-be cuts ran on.
        enforced: the rule of the run, if it was not the certified one but one that the certificate covers.
        seed: draws the group of each task.

    Raises:
        ConfigError: the certificate has strata, does not cover the rule of the run, or no group of the trace
            was enforced.
    """
    enforced = enforced or certificate.rule
    _require_renewable(certificate, enforced)
    drawn: OnePerTask[Unit | None] = OnePerTask(seed)
    for recorded in groups:
        if recorded.begin.mode == "enforce":
            _require_rule(recorded, enforced)
            drawn.offer(recorded.group.task_id, recorded.group.id, _observed(recorded, certificate.rule))
    units = [unit for unit in drawn.items if unit is not None]
    if not units:
        raise ConfigError("renewal: the trace holds no labelled group of an enforcing run")
    signal = [unit for unit in units if not unit.harmless]
    number = certificate.recertification + 1
    rate, level = thinned(certificate.alpha, audit_rate), certificate.delta / (number * (number + 1))
    taus = [tau for tau in decimal_grid(certificate.grid) if tau <= certificate.rule.tau]
    cuts = [_cuts(signal, tau) for tau in taus]
    last = fixed_sequence(cuts, len(signal), rate, level) if signal else -1
    renewed, more_needed = None, None
    if last < 0:
        more_needed = needed_with(cuts[0] if cuts else 0, rate, level) - len(signal)
    else:
        renewed = replace(
            certificate,
            rule=replace(certificate.rule, tau=taus[last]),
            n_signal=len(signal),
            false_cuts=cuts[last],
            cuts=_cuts(units, taus[last]),
            groups=len(units),
            choose_share=0.0,
            split_seed=seed,
            chains=1,
            recertification=number,
            audit_rate=audit_rate,
        )
    return Renewal(renewed, len(signal), _cuts(signal, certificate.rule.tau), rate, more_needed)


def _require_renewable(certificate: Certificate, enforced: GateConfig) -> None:
    if certificate.risk != "signal":
        raise ConfigError(
            "renewal: audits are booked by rewards; a certificate over answers has to be made anew"
        )
    if certificate.strata:
        raise ConfigError("renewal: a certificate with strata has to be calibrated again, stratum by stratum")
    reasons = accepts(certificate, enforced)
    if reasons:
        raise ConfigError(
            f"renewal: the certificate does not cover the rule of the run: {'; '.join(reasons)}"
        )


def _require_rule(recorded: RecordedGroup, enforced: GateConfig) -> None:
    if recorded.begin.gate != enforced.fingerprint():
        raise ConfigError(
            f"{recorded.where}: group {recorded.group.id!r} was gated by rule {recorded.begin.gate}, not by "
            f"{enforced.fingerprint()}; renew with the certificate and the rule that were in force"
        )


def _observed(recorded: RecordedGroup, rule: GateConfig) -> Unit | None:
    """The group as the rule saw it; None if it was cut or has no label."""
    group = recorded.group
    label = group_label(group, tolerance=rule.reward_tolerance).zero_variance
    if was_stopped(group) or label is None:
        return None
    if rule.score is None:
        return unit_of(replay(group, rule, history=recorded.begin.history), label)
    checks = (  # what the score read of the prompt's past is on record in the decisions only
        Check(facts.step, decision.compared, judge(rule, replace(facts, below_tau=True)))
        for decision in recorded.decisions
        if (facts := decision.facts) is not None
    )
    return unit_of(Replay(group, tuple(checks)), label)


def _cuts(units: Iterable[Unit], tau: float) -> int:
    return sum(unit.saved(tau) is not None for unit in units)
