"""Audits: would-be cuts that run on by the draw of a coin, what they say, and the alarm they may ring.

Of the signal-bearing groups an enforcing run observes all that the gate lets through, but only the audited
share of those it would cut. So if the gate cuts a signal-bearing group with probability r, an observed one is
an audited would-be cut with probability r * eps / (r * eps + 1 - r): audits thin the rate, and `thinned` and
`unthinned` convert. Where everything is observed (observe mode), eps is 1 and the two are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from selective_rollout.errors import ConfigError
from selective_rollout.stats import EProcess, Interval, clopper_pearson, power

ALARM_LEVEL: Final = 0.05
"""Probability that the alarm ever rings without a reason."""


def thinned(rate: float, audit_rate: float) -> float:
    """P(audited would-be cut | observed and signal-bearing) if P(cut | signal-bearing) is `rate`."""
    return rate * audit_rate / (rate * audit_rate + 1 - rate)


def unthinned(share: float, audit_rate: float) -> float:
    """The inverse of `thinned`."""
    return share / (share + audit_rate * (1 - share))


@dataclass(frozen=True, slots=True)
class AuditedRate:
    """A rate estimated from audits."""

    hits: int
    trials: int
    value: float
    interval: Interval
    """95%, exact given the draw of the audits."""

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON output."""
        return {
            "hits": self.hits,
            "trials": self.trials,
            "value": self.value,
            "interval_95": [self.interval.low, self.interval.high],
        }


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of one group of an enforcing run."""

    cut: bool
    """The gate stopped it."""
    would_cut: bool
    """The gate fired, and an audit let it run on."""
    zero_variance: bool | None
    """Its label; None if its rewards do not tell."""


@dataclass(slots=True)
class AuditCounts:
    """What the groups of one enforcing run say about the gate's errors on the current policy.

    Args of the constructor: `audit_rate`, the probability with which a would-be cut ran on, in (0, 1].
    """

    audit_rate: float
    kept_signal: int = 0
    """Signal-bearing groups that the gate let through."""
    audited_signal: int = 0
    """Audited would-be cuts that turned out signal-bearing: wrong cuts, had they been carried out."""
    audited_zero_variance: int = 0
    audited_unknown: int = 0
    """Audited would-be cuts whose rewards do not tell."""
    unobserved: int = 0
    """Groups that were cut: what they would have become is not known."""

    def __post_init__(self) -> None:
        _require_audits(self.audit_rate)

    def add(self, seen: Seen) -> bool | None:
        """Book one group.

        Returns:
            For an observed signal-bearing group whether it was a would-be cut; None for any other group.
        """
        self.unobserved += seen.cut
        if seen.would_cut and seen.zero_variance is not False:
            self.audited_zero_variance += seen.zero_variance is True
            self.audited_unknown += seen.zero_variance is None
        if seen.cut or seen.zero_variance is not False:
            return None
        self.audited_signal += seen.would_cut
        self.kept_signal += not seen.would_cut
        return seen.would_cut

    @property
    def false_cut_rate(self) -> AuditedRate | None:
        """P(cut | signal-bearing), which a certificate bounds; None if no such group was observed."""
        trials = self.audited_signal + self.kept_signal
        return _rate(self.audited_signal, trials, lambda share: unthinned(share, self.audit_rate))

    @property
    def wrong_cut_share(self) -> AuditedRate | None:
        """P(signal-bearing | cut); None if no audited would-be cut has a label."""
        return _rate(self.audited_signal, self.audited_signal + self.audited_zero_variance, float)


class Alarm:
    """Rings when audits contradict the certificate: P(cut | signal-bearing) is above alpha by now.

    A betting e-process over the observed signal-bearing groups in the order in which they were *begun*:
    would-be cuts end sooner or later than other groups, so they would arrive in clumps. It may be looked at
    after every group; while the rate stays at or below alpha it ever rings with probability at most `level`.

    Args:
        alpha: the certified bound.
        audit_rate: probability with which a would-be cut runs on, in (0, 1].
        level: probability of a false alarm over the whole run.

    Raises:
        ConfigError: alpha or level is not strictly between 0 and 1, or audit_rate not in (0, 1].
    """

    def __init__(self, alpha: float, audit_rate: float, level: float = ALARM_LEVEL) -> None:
        _require_audits(audit_rate)
        self.alpha = alpha
        self.audit_rate = audit_rate
        self.level = level
        self._process = EProcess(thinned(alpha, audit_rate))
        self._process.alarm(level)
        self.counts = AuditCounts(audit_rate)
        self._next = 0
        self._ahead: dict[int, Seen | None] = {}

    @property
    def rung(self) -> bool:
        """Whether it has rung; it never falls silent again."""
        return self._process.alarm(self.level)

    @property
    def e_value(self) -> float:
        """Evidence now; the alarm is at 1/level."""
        return self._process.e_value

    def add(self, seen: Seen) -> bool:
        """Add the next group in the order begun, and tell whether the alarm has rung."""
        would_cut = self.counts.add(seen)
        if would_cut is not None:
            self._process.update(would_cut)
        return self.rung

    def note(self, place: int, seen: Seen | None) -> bool:
        """Add a group in the order of arrival.

        Args:
            place: 0, 1, 2, ... in the order in which the groups were begun; each comes exactly once.
            seen: what became of it; None if it takes no part.

        Returns:
            Whether the alarm has rung, on the groups before the first one that is still out.
        """
        self._ahead[place] = seen
        while self._next in self._ahead:
            arrived = self._ahead.pop(self._next)
            self._next += 1
            if arrived is not None:
                self.add(arrived)
        return self.rung

    def to_dict(self) -> dict[str, Any]:
        """What it has seen, as plain data; groups that wait for an earlier one are not part of it."""
        process = self._process
        return {
            "hits": process.hits,
            "misses": process.misses,
            "peak": process.log_peak,
            "counts": asdict(self.counts),
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Go on from what an alarm of the same bound had seen; places count from 0 again.

        Raises:
            ConfigError: it was of another audit rate.
        """
        counts = AuditCounts(**values["counts"])
        if counts.audit_rate != self.audit_rate:
            raise ConfigError(
                f"alarm: the earlier run was audited at rate {counts.audit_rate:g}, not {self.audit_rate:g}"
            )
        self.counts = counts
        self._process.resume(values["hits"], values["misses"], values["peak"])

    def power(self, false_cut_rate: float, observed: int) -> float:
        """Probability of ringing within so many observed signal-bearing groups at a true false-cut rate."""
        rate = thinned(false_cut_rate, self.audit_rate)
        return power(rate, observed, bound=self._process.bound, level=self.level)

    def describe(self, observed: int = 500) -> str:
        """One line for people, with the power."""
        twice = min(2 * self.alpha, (1 + self.alpha) / 2)
        hits = self.counts.audited_signal
        seen = hits + self.counts.kept_signal
        return (
            f"alarm at e-value {1 / self.level:g}, now {self.e_value:.3g} after {seen} "
            f"observed signal-bearing groups ({hits} audited would-be cuts); at a false-cut rate of "
            f"{twice:.0%} instead of {self.alpha:.0%} it rings within {observed} of them with probability "
            f"{self.power(twice, observed):.0%}"
        )


def _rate(hits: int, trials: int, convert: Callable[[float], float]) -> AuditedRate | None:
    if not trials:
        return None
    raw = clopper_pearson(hits, trials)
    interval = Interval(convert(raw.low), convert(raw.high))
    return AuditedRate(hits, trials, convert(hits / trials), interval)


def _require_audits(audit_rate: float) -> None:
    if not 0 < audit_rate <= 1:
        raise ConfigError(
            f"audits: the audit rate must be above 0 and at most 1, not {audit_rate!r}; "
            "without audits nothing is known of what was cut"
        )
