"""What a gate saves and what it costs, on groups whose rollouts ran to their own end.

Lossless and lossy never share a number: what is saved on zero-variance groups is free for a group-centred
advantage, what is saved on signal-bearing groups costs gradient. Finished members save nothing. Every rate
stands beside its base rate and an exact interval, and groups whose label is unknown are counted apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from selective_rollout.analysis.prices import Prices
from selective_rollout.analysis.rates import CutCounts
from selective_rollout.analysis.replay import Replay
from selective_rollout.draws import survivor_order
from selective_rollout.gate.config import GateConfig
from selective_rollout.rewards import GroupLabel, group_label
from selective_rollout.types import Group, Outcome, Rollout, RolloutStatus, Step, Usage

_NOT_COUNTED: Final = Usage()


@dataclass(slots=True)
class Amount:
    """Steps and their tokens, generated or not; totals cover the steps whose count is known."""

    groups: int = 0
    steps: int = 0
    tokens: int = 0
    """Completion tokens."""
    steps_of_unknown_tokens: int = 0
    prompt_tokens: int = 0
    """Cached ones included."""
    steps_of_unknown_prompts: int = 0
    cached_tokens: int = 0
    steps_of_unknown_cache: int = 0

    @property
    def known_tokens(self) -> int | None:
        """Completion tokens, if every step's count is known: a part is not the whole."""
        return None if self.steps_of_unknown_tokens else self.tokens

    def add(self, group: Group, cut_at: int, survivor: int | None = None) -> None:
        """Add what stopping a group after step `cut_at` would have left ungenerated.

        A survivor runs on, so its steps are not saved.
        """
        self.groups += 1
        for rollout in group.rollouts:
            if rollout.index != survivor:
                self.add_steps(rollout.steps[cut_at:])

    def add_steps(self, steps: Iterable[Step]) -> None:
        """Add steps of a group that is counted already."""
        usages = [step.usage or _NOT_COUNTED for step in steps]
        completion = [usage.completion for usage in usages if usage.completion is not None]
        prompt = [usage.prompt for usage in usages if usage.prompt is not None]
        cached = [usage.cached for usage in usages if usage.cached is not None]
        self.steps += len(usages)
        self.tokens += sum(completion)
        self.steps_of_unknown_tokens += len(usages) - len(completion)
        self.prompt_tokens += sum(prompt)
        self.steps_of_unknown_prompts += len(usages) - len(prompt)
        self.cached_tokens += sum(cached)
        self.steps_of_unknown_cache += len(usages) - len(cached)

    def cost(self, prices: Prices) -> float | None:
        """What the steps cost, or would have; None if tokens that have a price were not counted."""
        return prices.of(
            prompt=None if self.steps_of_unknown_prompts else self.prompt_tokens,
            cached=None if self.steps_of_unknown_cache else self.cached_tokens,
            completion=self.known_tokens,
        )


@dataclass(frozen=True, slots=True)
class Money:
    """Costs at given prices; None where a token count that matters is unknown."""

    spent: float | None
    """On everything that was recorded."""
    lossless: float | None
    """Not spent on zero-variance groups, thanks to right cuts."""
    lossy: float | None
    unlabelled: float | None

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON output."""
        return {
            "spent": self.spent,
            "lossless_not_spent": self.lossless,
            "lossy_not_spent": self.lossy,
            "unlabelled_not_spent": self.unlabelled,
        }


@dataclass(slots=True)
class Accounting(CutCounts):
    """Running totals of one gate configuration over recorded groups.

    `lossless`, `lossy` and `unlabelled` are what the gate's cuts would have saved on groups of each label;
    `oracle` is what a gate that cuts exactly the zero-variance groups, at the same position, would save.
    """

    start_step: int
    outcome: Outcome = "drop"
    """What becomes of a cut group; anything but drop leaves a survivor running."""
    prices: Prices | None = None
    """What tokens cost; None: nobody said, so there is no money either."""
    spent: Amount = field(default_factory=Amount)
    """All that was recorded: the cost without a gate."""
    all_fail: int = 0
    all_success: int = 0
    singletons: int = 0
    failed_rollouts: int = 0
    lossless: Amount = field(default_factory=Amount)
    lossy: Amount = field(default_factory=Amount)
    unlabelled: Amount = field(default_factory=Amount)
    oracle: Amount = field(default_factory=Amount)
    everything: Amount = field(default_factory=Amount)
    """What cutting every group at start_step would save: the pool a random gate draws from."""

    def add(self, group: Group, cut_at: int | None) -> GroupLabel:
        """Book one group; `cut_at` is the position at which the gate fires, None if it does not.

        Returns:
            The group's label.
        """
        label = group_label(group)
        survivor = None if self.outcome == "drop" else survivor_of(group)
        survives = None if survivor is None else survivor.index
        self.failed_rollouts += label.failed
        self.singletons += label.singleton
        self.spent.add(group, 0)
        self.everything.add(group, self.start_step, survives)
        self.count(label.zero_variance, cut_at is not None)
        self.all_fail += label.kind == "all_fail"
        self.all_success += label.kind == "all_success"
        if label.zero_variance:
            self.oracle.add(group, self.start_step, survives)
        if cut_at is not None:
            self._saving_of(label).add(group, cut_at, survives)
        return label

    @property
    def groups(self) -> int:
        """Groups booked."""
        return self.spent.groups

    @property
    def steps(self) -> int:
        """Steps recorded."""
        return self.spent.steps

    @property
    def missed(self) -> int:
        """Zero-variance groups let through."""
        return self.zero_variance - self.right

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

    @property
    def money(self) -> Money | None:
        """What was spent, and what the cuts would not have spent; None without prices."""
        if self.prices is None:
            return None
        amounts = (self.spent, self.lossless, self.lossy, self.unlabelled)
        return Money(*(amount.cost(self.prices) for amount in amounts))

    def _saving_of(self, label: GroupLabel) -> Amount:
        if label.zero_variance is None:
            return self.unlabelled
        return self.lossless if label.zero_variance else self.lossy

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
            "tokens": self.spent.known_tokens,
            "cuts": self.cuts,
            "right": self.right,
            "wrong": self.wrong,
            "unknown_cuts": self.unknown_cuts,
            "missed": self.missed,
            "base_rate": self.base_rate.to_dict(),
            "precision": self.precision.to_dict(),
            "loss": self.loss.to_dict(),
            "lossless_steps": self.lossless.steps,
            "lossy_steps": self.lossy.steps,
            "unlabelled_steps": self.unlabelled.steps,
            "lossless_tokens": self.lossless.known_tokens,
            "lossy_tokens": self.lossy.known_tokens,
            "money": None if (money := self.money) is None else money.to_dict(),
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


def survivor_of(group: Group) -> Rollout | None:
    """Who would have run on alone and answered: the first in the group's order that did not fail.

    Wherever the group is cut that is the engine's survivor: a member that breaks later is replaced by the
    next in order. None if all failed.
    """
    sound = {r.index: r for r in group.rollouts if r.status is not RolloutStatus.FAILED}
    return next((sound[i] for i in survivor_order(group.id, group.size) if i in sound), None)


def was_stopped(group: Group) -> bool:
    """True if a gate stopped any rollout of the group, so that what it would have become is unknown."""
    return any(rollout.status is RolloutStatus.CUT for rollout in group.rollouts)
