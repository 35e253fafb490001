"""What a calibration promises about a gate, and which live rules the promise covers.

A certificate says: with confidence 1 - delta, the rule cuts at most a share alpha of the signal-bearing
groups of the policy that was recorded. Or, where a survivor answers for the groups cut: at most a share alpha
of all groups is cut and answered differently than by the full vote. It covers every rule that provably cuts a
subset of the same groups, and no other; who survives depends on the group alone, so a subset does no more
harm in either sense. It says nothing about another policy, and a policy in training becomes another one.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Literal, TypeAlias, get_args

from selective_rollout.errors import ConfigError
from selective_rollout.gate.audit import Alarm, thinned, unthinned
from selective_rollout.gate.config import GateConfig
from selective_rollout.stats import binom_cdf, upper_bound

Risk: TypeAlias = Literal["signal", "answer"]
"""What is bounded. signal: P(cut | signal-bearing). answer: P(cut and the survivor's answer does not lead the
full vote), over all groups whose full vote is known."""

_SLACK: Final = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Workload:
    """What was recorded; None is unknown. A live workload that differs is warned about, not refused."""

    model: str | None = None
    sampling: str | None = None
    """Such as "temperature 0.7"."""
    max_steps: int | None = None
    source: str | None = None
    """The recorded data: the environment or files."""
    group_size: int | None = None


@dataclass(frozen=True, slots=True)
class Stratum:
    """The certified threshold of one stratum, with its own counts."""

    name: str
    tau: float
    n_signal: int | None
    false_cuts: int
    cuts: int
    groups: int

    @property
    def trials(self) -> int:
        """What the bound is over: signal-bearing groups, or all where answers are at risk."""
        return self.groups if self.n_signal is None else self.n_signal


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certified rule, the counts behind it, and how they came about.

    Raises:
        ConfigError: the counts do not support the claim.
    """

    rule: GateConfig
    alpha: float
    """Bound on the risk."""
    delta: float
    """Allowed probability that the bound does not hold."""
    n_signal: int | None
    """Signal-bearing groups, one per independent task; None where answers are at risk: all groups count."""
    false_cuts: int
    """Groups that the rule cuts and should not: signal-bearing ones, or those answered differently."""
    cuts: int
    groups: int
    """Labelled groups, or those whose full vote is known; one per independent task."""
    grid: str
    """The thresholds declared beforehand, walked upward."""
    choose_share: float
    """Share of the tasks set aside to choose the rule; 0: it was fixed beforehand."""
    split_seed: int
    """Draws the split and the one group per task."""
    chains: int = 1
    """Claims that share delta: start_steps tried without a split, or strata."""
    recertification: int = 0
    """j > 0: the j-th renewal from audited data, which spends delta / (j (j + 1))."""
    audit_rate: float | None = None
    """Of a renewal: the probability with which would-be cuts ran on."""
    stratum_key: str | None = None
    """Metadata key that tells the strata apart; None: one threshold for all."""
    joint: bool = True
    """False: each stratum's bound holds on its own, not all at once."""
    strata: tuple[Stratum, ...] = ()
    workload: Workload = field(default_factory=Workload)
    risk: Risk = "signal"
    """What alpha bounds."""

    def __post_init__(self) -> None:
        self._require_one_risk()
        for name, low in (("alpha", 0.0), ("delta", 0.0)):
            if not low < getattr(self, name) < 1:
                raise ConfigError(f"certificate.{name} must be strictly between 0 and 1")
        if bool(self.strata) != (self.stratum_key is not None):
            raise ConfigError("certificate.stratum_key and the strata belong together")
        if bool(self.recertification) != (self.audit_rate is not None):
            raise ConfigError("certificate.recertification and audit_rate belong together")
        for false_cuts, trials in self._tested:
            if not 0 <= false_cuts <= trials or not self._supported(false_cuts, trials):
                kind = "signal-bearing " if self.risk == "signal" else ""
                raise ConfigError(
                    f"certificate: {false_cuts} false cuts of {trials} {kind}groups do not "
                    f"support alpha {self.alpha:g} at confidence {self.confidence:g}"
                )

    @property
    def confidence(self) -> float:
        """1 - delta."""
        return 1 - self.delta

    @property
    def level(self) -> float:
        """The part of delta that each single test may spend."""
        j = self.recertification
        return self.delta / self.chains / (j * (j + 1) if j else 1)

    @property
    def trials(self) -> int:
        """What the bound is over: signal-bearing groups, or all where answers are at risk."""
        return self.groups if self.n_signal is None else self.n_signal

    @property
    def bound(self) -> float:
        """Upper confidence bound of the risk, at most alpha; over the strata, the largest."""
        return max(self.bound_of(false_cuts, trials) for false_cuts, trials in self._tested)

    def bound_of(self, false_cuts: int, trials: int) -> float:
        """Upper bound of a share of false cuts at this certificate's level."""
        raw = upper_bound(false_cuts, trials, 1 - self.level)
        return raw if self.audit_rate is None else unthinned(raw, self.audit_rate)

    def tau_for(self, metadata: Mapping[str, object]) -> float:
        """The threshold of a group with this metadata; 0, which never fires, in a stratum not certified."""
        if self.stratum_key is None:
            return self.rule.tau
        name = str(metadata.get(self.stratum_key))
        return next((stratum.tau for stratum in self.strata if stratum.name == name), 0.0)

    def alarm(self, audit_rate: float) -> Alarm | None:
        """Watches the bound on audits; None without audits, or where answers are at risk.

        Audits are booked by the label of a group's rewards, which says nothing about its answers.
        """
        return Alarm(self.alpha, audit_rate) if audit_rate and self.risk == "signal" else None

    def describe(self) -> str:
        """The claim in plain words, wrapped."""
        sentences = [self._claim()]
        if self.stratum_key is not None:
            names = ", ".join(f"{stratum.name} {stratum.tau:g}" for stratum in self.strata)
            scope = "for all strata at once" if self.joint else "per stratum, not for all at once"
            sentences.append(f"This holds {scope}; tau by {self.stratum_key}: {names}; off in all others.")
        watch = "keep audits on, and" if self.risk == "signal" else "no audit watches answers, so"
        sentences += [
            "It certifies the policy that was recorded. New weights, prompts, sampling or tasks make another",
            f"policy: {watch} calibrate again.",
        ]
        return textwrap.fill(" ".join(sentences), width=100)

    def _claim(self) -> str:
        confidence, alpha = f"{100 * self.confidence:g}%", f"{100 * self.alpha:g}%"
        bound = f"(upper bound {100 * self.bound:.1f}%)"
        if self.risk == "signal":
            return (
                f"With {confidence} confidence this gate cuts at most {alpha} of the signal-bearing groups: "
                f"it would have cut {self.false_cuts} of {self.n_signal} observed, and {self.cuts} of all "
                f"{self.groups} {bound}."
            )
        return (
            f"With {confidence} confidence at most {alpha} of all groups are cut and then answered "
            f"differently than by their full vote: it would have cut {self.cuts} of {self.groups} observed, "
            f"and {self.false_cuts} of the survivors would have answered differently {bound}."
        )

    @property
    def _tested(self) -> list[tuple[int, int]]:
        return [(part.false_cuts, part.trials) for part in (self.strata or (self,))]

    def _supported(self, false_cuts: int, trials: int) -> bool:
        rate = self.alpha if self.audit_rate is None else thinned(self.alpha, self.audit_rate)
        return binom_cdf(false_cuts, trials, rate) <= self.level * _SLACK

    def _require_one_risk(self) -> None:
        if self.risk not in get_args(Risk):
            raise ConfigError(f"certificate.risk must be signal or answer, not {self.risk!r}")
        for n_signal in (self.n_signal, *(stratum.n_signal for stratum in self.strata)):
            if (n_signal is None) != (self.risk == "answer"):
                raise ConfigError(
                    "certificate.n_signal: signal-bearing groups are counted with risk signal, and only there"
                )
        if self.risk == "answer" and self.rule.outcome != "survivor":
            raise ConfigError(
                "certificate.risk answer is about survivors, so the rule's outcome must be survivor, not "
                f"{self.rule.outcome!r}"
            )
        if self.risk == "answer" and self.recertification:
            raise ConfigError("certificate.risk answer cannot be renewed from audits")


def accepts(certificate: Certificate, live: GateConfig, *, per_stratum: bool = False) -> list[str]:
    """Tell why a certificate does not cover a live rule.

    Covered are the certified rule and rules that provably cut a subset of its groups: a lower tau (schedules
    are clipped at it), fewer checks among the certified positions, added vetoes, larger min_members, a
    history veto added or longer.

    Args:
        certificate: the certificate.
        live: the rule that is to be enforced.
        per_stratum: each group is given `certificate.tau_for(metadata)` as its own tau.

    Returns:
        One line per field that stands against it, starting with its name; empty if the rule is covered.
    """
    certified = certificate.rule
    reasons = [
        _differs(name, getattr(live, name), getattr(certified, name))
        for name in ("level", "padding", "outcome", "reward_tolerance", "score")
        if getattr(live, name) != getattr(certified, name)
    ]
    if live.level == "char" and live.separator != certified.separator:
        reasons.append(_differs("separator", live.separator, certified.separator))
    if not _checks_within(live, certified):
        reasons.append(
            f"start_step, check_every: checks at {_positions(live)} are not all among the certified ones, "
            f"{_positions(certified)}"
        )
    if live.tau > certified.tau:
        reasons.append(f"tau: {live.tau:g} is above the certified {certified.tau:g}")
    if certificate.strata and not per_stratum:
        reasons.append(f"tau: it is certified per {certificate.stratum_key}; give each group its own")
    if not _members_suffice(live, certified, certificate.workload.group_size):
        reasons.append(_differs("min_members", live.min_members, certified.min_members))
    missing = [veto for veto in certified.vetoes if veto not in live.vetoes]
    if missing:
        reasons.append(f"vetoes: {', '.join(missing)} was on when the rule was certified")
    if live.history_mixed < certified.history_mixed:
        reasons.append(
            f"history_mixed: {live.history_mixed} is below the certified {certified.history_mixed}"
        )
    return reasons


def workload_differences(certificate: Certificate, live: Workload) -> list[str]:
    """One line per fact that is known of both workloads and differs; worth a warning, no refusal."""
    pairs = [(f.name, getattr(live, f.name), getattr(certificate.workload, f.name)) for f in fields(Workload)]
    return [
        f"{name}: running {now!r}, certified on {before!r}"
        for name, now, before in pairs
        if now is not None and before is not None and now != before
    ]


def _differs(name: str, live: object, certified: object) -> str:
    if name == "score":
        return "score: the weights are not those of the certificate"
    return f"{name}: {live!r} instead of the certified {certified!r}"


def _checks_within(live: GateConfig, certified: GateConfig) -> bool:
    if not certified.is_check(live.start_step):
        return False
    if live.check_every is None:
        return True
    return certified.check_every is not None and live.check_every % certified.check_every == 0


def _positions(rule: GateConfig) -> str:
    again = "" if rule.check_every is None else f" and every {rule.check_every} steps"
    return f"step {rule.start_step}{again}"


def _members_suffice(live: GateConfig, certified: GateConfig, group_size: int | None) -> bool:
    """Whether the live rule never needs fewer members; with None on one side that depends on the size."""
    if live.min_members == certified.min_members:
        return True
    if live.min_members is not None and certified.min_members is not None:
        return live.min_members > certified.min_members
    if group_size is None:
        return False
    return live.required_members(group_size) >= certified.required_members(group_size)
