"""What a gate saves and what it costs, on groups whose rollouts ran to their own end.

Lossless and lossy never share a number: what is saved on zero-variance groups is free for a group-centred
advantage, what is saved on signal-bearing groups costs gradient. Finished members save nothing. Every rate
stands beside its base rate and an exact interval, and groups whose label is unknown are counted apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from selective_rollout.analysis.replay import Replay
from selective_rollout.draws import survivor_order
from selective_rollout.gate.config import GateConfig
from selective_rollout.rewards import GroupLabel, group_label
from selective_rollout.stats import Interval, clopper_pearson
from selective_rollout.types import Group, Outcome, Rollout, RolloutStatus


@dataclass(slots=True)
class Saving:
    """Steps and tokens not generated; tokens cover the steps whose count is known."""

    groups: int = 0
    steps: int = 0
    tokens: int = 0
    steps_of_unknown_tokens: int = 0

    def add(self, group: Group, cut_at: int, survivor: int | None = None) -> None:
        """Add what stopping a group after step `cut_at` would have left ungenerated.

        A survivor runs on, so its steps are not saved.
        """
        self.groups += 1
        stopped = [rollout for rollout in group.rollouts if rollout.index != survivor]
        for step in (step for rollout in stopped for step in rollout.steps[cut_at:]):
            self.steps += 1
            if step.usage is None or step.usage.completion is None:
                self.steps_of_unknown_tokens += 1
            else:
                self.tokens += step.usage.completion


@dataclass(frozen=True, slots=True)
class Rate:
    """A share with its exact interval; None where there is nothing to take a share of."""

    hits: int
    trials: int

    @property
    def value(self) -> float | None:
        """The share itself."""
        return self.hits / self.trials if self.trials else None

    @property
    def interval(self) -> Interval | None:
        """95% Clopper-Pearson interval."""
        return clopper_pearson(self.hits, self.trials) if self.trials else None

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON output."""
        interval = self.interval
        return {
            "hits": self.hits,
            "trials": self.trials,
            "value": self.value,
            "interval_95": None if interval is None else [interval.low, interval.high],
        }


@dataclass(slots=True)
class Accounting:
    """Running totals of one gate configuration over recorded groups.

    `lossless`, `lossy` and `unlabelled` are what the gate's cuts would have saved on groups of each label;
    `oracle` is what a gate that cuts exactly the zero-variance groups, at the same position, would save.
    """

    start_step: int
    outcome: Outcome = "drop"
    """What becomes of a cut group; anything but drop leaves a survivor running."""
    groups: int = 0
    steps: int = 0
    tokens: int = 0
    steps_of_unknown_tokens: int = 0
    all_fail: int = 0
    all_success: int = 0
    zero_variance: int = 0
    signal: int = 0
    unknown: int = 0
    singletons: int = 0
    failed_rollouts: int = 0
    lossless: Saving = field(default_factory=Saving)
    lossy: Saving = field(default_factory=Saving)
    unlabelled: Saving = field(default_factory=Saving)
    oracle: Saving = field(default_factory=Saving)
    everything: Saving = field(default_factory=Saving)
    """What cutting every group at start_step would save: the pool a random gate draws from."""

    def add(self, group: Group, cut_at: int | None) -> GroupLabel:
        """Book one group; `cut_at` is the position at which the gate fires, None if it does not.

        Returns:
            The group's label.
        """
        label = group_label(group)
        self.groups += 1
        self.failed_rollouts += label.failed
        self.singletons += label.singleton
        self._add_cost(group.rollouts)
        self.everything.add(group, self.start_step, self._survivor(group))
        if label.zero_variance is None:
            self.unknown += 1
        elif label.zero_variance:
            self.zero_variance += 1
            self.all_fail += label.kind == "all_fail"
            self.all_success += label.kind == "all_success"
            self.oracle.add(group, self.start_step, self._survivor(group))
        else:
            self.signal += 1
        if cut_at is not None:
            self._saving_of(label).add(group, cut_at, self._survivor(group))
        return label

    @property
    def cuts(self) -> int:
        """Groups the gate fires on."""
        return self.lossless.groups + self.lossy.groups + self.unlabelled.groups

    @property
    def right(self) -> int:
        """Cuts of zero-variance groups."""
        return self.lossless.groups

    @property
    def wrong(self) -> int:
        """Cuts of signal-bearing groups."""
        return self.lossy.groups

    @property
    def missed(self) -> int:
        """Zero-variance groups let through."""
        return self.zero_variance - self.right

    @property
    def base_rate(self) -> Rate:
        """Share of zero variance among all labelled groups: the precision of cutting blindly."""
        return Rate(self.zero_variance, self.zero_variance + self.signal)

    @property
    def precision(self) -> Rate:
        """Share of zero variance among the labelled cuts."""
        return Rate(self.right, self.right + self.wrong)

    @property
    def loss(self) -> Rate:
        """Share of the signal-bearing groups that are cut: the false-cut rate."""
        return Rate(self.wrong, self.signal)

    @property
    def saved(self) -> float | None:
        """Share of all recorded steps that the cuts leave ungenerated, lossy ones included."""
        steps = self.lossless.steps + self.lossy.steps + self.unlabelled.steps
        return steps / self.steps if self.steps else None

    @property
    def efficiency(self) -> float | None:
        """(1 - loss) / (1 - saved): signal-bearing groups per generated step, relative to no gate.

        At or below 1 the gate is worse than spending the steps on fresh prompts. None if unknown.
        """
        loss, saved = self.loss.value, self.saved
        return None if loss is None or saved is None or saved >= 1 else (1 - loss) / (1 - saved)

    @property
    def oracle_saved(self) -> float | None:
        """Share of steps that a gate without errors would save at start_step."""
        return self.oracle.steps / self.steps if self.steps else None

    @property
    def random_saved(self) -> float | None:
        """Expected share of steps that cutting as many groups at random would save at start_step."""
        if not self.groups or not self.steps:
            return None
        return self.cuts / self.groups * self.everything.steps / self.steps

    @property
    def dilution(self) -> float | None:
        """Expected growth of the gradient norm from dropping the cuts: (1 - z') / (1 - z).

        z is the share of zero variance before, z' after the cuts; only for losses that average over groups.
        """
        before, kept = self.base_rate.value, self.signal + self.zero_variance - self.right - self.wrong
        if before is None or before == 1 or not kept:
            return None
        return (self.signal - self.wrong) / kept / (1 - before)

    def _survivor(self, group: Group) -> int | None:
        """Who would have run on: the first in the group's order that did not fail."""
        if self.outcome == "drop":
            return None
        sound = {r.index for r in group.rollouts if r.status is not RolloutStatus.FAILED}
        order = survivor_order(group.id, group.size)
        return next((index for index in order if index in sound), None)

    def _saving_of(self, label: GroupLabel) -> Saving:
        if label.zero_variance is None:
            return self.unlabelled
        return self.lossless if label.zero_variance else self.lossy

    def _add_cost(self, rollouts: tuple[Rollout, ...]) -> None:
        for step in (step for rollout in rollouts for step in rollout.steps):
            self.steps += 1
            if step.usage is None or step.usage.completion is None:
                self.steps_of_unknown_tokens += 1
            else:
                self.tokens += step.usage.completion

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON output; unknown is null."""
        return {
            "groups": self.groups,
            "labelled": {
                "zero_variance": self.zero_variance,
                "all_fail": self.all_fail,
                "all_success": self.all_success,
                "signal_bearing": self.signal,
                "unknown": self.unknown,
                "singletons": self.singletons,
            },
            "failed_rollouts": self.failed_rollouts,
            "steps": self.steps,
            "tokens": _tokens(self.tokens, self.steps_of_unknown_tokens),
            "cuts": self.cuts,
            "right": self.right,
            "wrong": self.wrong,
            "unknown_cuts": self.unlabelled.groups,
            "missed": self.missed,
            "base_rate": self.base_rate.to_dict(),
            "precision": self.precision.to_dict(),
            "loss": self.loss.to_dict(),
            "lossless_steps": self.lossless.steps,
            "lossy_steps": self.lossy.steps,
            "unlabelled_steps": self.unlabelled.steps,
            "lossless_tokens": _tokens(self.lossless.tokens, self.lossless.steps_of_unknown_tokens),
            "lossy_tokens": _tokens(self.lossy.tokens, self.lossy.steps_of_unknown_tokens),
            "saved": self.saved,
            "efficiency": self.efficiency,
            "oracle_saved": self.oracle_saved,
            "random_saved": self.random_saved,
            "dilution": self.dilution,
        }


def account_of(replays: Iterable[Replay], rule: GateConfig, tau: float) -> Accounting:
    """The accounting of replayed groups under a rule at one threshold."""
    account = Accounting(rule.start_step, rule.outcome)
    for one in replays:
        account.add(one.group, one.fires_at(tau))
    return account


def was_stopped(group: Group) -> bool:
    """True if a gate stopped any rollout of the group, so that what it would have become is unknown."""
    return any(rollout.status is RolloutStatus.CUT for rollout in group.rollouts)


def _tokens(known: int, steps_of_unknown: int) -> int | None:
    """Tokens as a number only if every step's count is known; a part is not the whole."""
    return None if steps_of_unknown else known
