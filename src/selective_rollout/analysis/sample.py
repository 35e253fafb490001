"""What a calibration keeps of recorded groups: one pass, a few numbers per group.

The rule is applied by the very gate that runs live. The groups of the *choose* part are all kept; of the
tasks of the *certify* part one group each, drawn by a stored seed, since only tasks are independent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from selective_rollout.analysis.accounting import survivor_of, was_stopped
from selective_rollout.analysis.fit_score import Example, Outcome
from selective_rollout.analysis.inference import survivor_agrees
from selective_rollout.analysis.replay import Replay, replay
from selective_rollout.analysis.split import OnePerTask, Split
from selective_rollout.errors import ConfigError
from selective_rollout.gate.certificate import Risk
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import Reason
from selective_rollout.gate.history import PromptHistory
from selective_rollout.gate.score import HISTORY_FEATURE
from selective_rollout.gate.signals import GroupView, signal
from selective_rollout.rewards import GroupKind, GroupLabel, group_label
from selective_rollout.trace.reader import RecordedGroup
from selective_rollout.types import Group, Rollout

_PROMPT_KEYS: Final = ("prompt_hash", "prompt")


@dataclass(frozen=True, slots=True)
class Unit:
    """One group under one rule, tau left open."""

    task_id: str
    harmless: bool
    """Cutting it does no harm: it has zero variance, or, where answers are at risk, its survivor answers as
    the full vote does."""
    looks: tuple[tuple[float, int], ...]
    """(value held against tau, steps not generated if cut there) of each check that may fire, in order; only
    those whose value is below all before it."""
    steps: int
    """Recorded steps of all members."""

    @property
    def smallest_tau(self) -> float | None:
        """The group is cut by every tau above this value and by none at or below it; None: by no tau."""
        return self.looks[-1][0] if self.looks else None

    def saved(self, tau: float) -> int | None:
        """Steps that cutting at this tau leaves ungenerated; None if it does not cut."""
        return next((saved for value, saved in self.looks if value < tau), None)


def unit_of(replayed: Replay, harmless: bool, survivor: Rollout | None = None) -> Unit:
    """Reduce a replayed group to what a calibration asks of it; a survivor runs on, so it saves nothing."""
    group = replayed.group
    looks: list[tuple[float, int]] = []
    for check in replayed.checks:
        fires = check.reason is Reason.FIRED and check.distance is not None
        if fires and check.distance is not None and (not looks or check.distance < looks[-1][0]):
            looks.append((check.distance, _steps_after(group, check.step, survivor)))
    return Unit(group.task_id, harmless, tuple(looks), _steps_after(group, 0))


@dataclass(frozen=True, slots=True)
class Entry:
    """One group, under each of the rules."""

    units: tuple[Unit, ...]
    outcome: Outcome | None
    """What its rewards say; None if they do not tell."""
    features: Mapping[str, float | None]
    """Signals at start_step, if a score is to be fitted."""
    stratum: str | None

    def example(self) -> Example:
        """The group as an example for a fit, which is of labelled groups."""
        assert self.outcome is not None
        return Example(self.units[0].task_id, self.outcome, self.features)


@dataclass(slots=True)
class Sample:
    """What was kept, and what was left out and why."""

    split: Split
    choose: list[Entry] = field(default_factory=list)
    """All labelled groups of the tasks set aside for choosing."""
    certify: list[Entry] = field(default_factory=list)
    """One labelled group for each other task."""
    risk: Risk = "signal"
    """What labels a group: the variance of its rewards, or whether its survivor answers as the vote does."""
    groups: int = 0
    unknown: int = 0
    """Groups whose label unscored members could flip, or whose full vote is not known."""
    singletons: int = 0
    sizes: Counter[int] = field(default_factory=Counter)
    max_steps: int = 0
    """Longest rollout."""
    policy_versions: set[str | None] = field(default_factory=set)
    repeated_prompts: int = 0
    """Groups that share a prompt with a group of another task id."""

    @property
    def group_size(self) -> int | None:
        """The groups' size, if all have the same."""
        return next(iter(self.sizes)) if len(self.sizes) == 1 else None

    @property
    def warnings(self) -> list[str]:
        """What stands in the way of taking the numbers at face value."""
        found = []
        if self.groups and self.singletons == self.groups:
            found.append("every group has a single member: nothing can vary; check how rollouts are grouped")
        if self.unknown:
            share = f"{self.unknown} of {self.groups} groups"
            flip = "unscored members could flip their label"
            why = flip if self.risk == "signal" else "their full vote is not known"
            found.append(f"{share} left out: {why}")
        if self.repeated_prompts:
            found.append(
                f"{self.repeated_prompts} groups share a prompt but not a task id, and count as independent: "
                "give the groups of one prompt one task_id"
            )
        if len(self.sizes) > 1:
            sizes = ", ".join(f"{count} of {size}" for size, count in sorted(self.sizes.items()))
            found.append(f"group sizes differ ({sizes}): the certificate is for this mixture")
        if (versions := len(self.policy_versions)) > 1:
            found.append(f"{versions} policy versions recorded: the certificate is for their mixture")
        return found


class Collector:
    """Takes recorded groups one by one.

    Args:
        rules: rules to apply to each group; they differ in when they look, not in what counts as equal.
        split: divides the tasks.
        features: signals to keep for a fit, at the first rule's start_step.
        stratum_key: metadata key that tells the strata apart.
        highest_reward: reward of a full success, which tells the two kinds of zero variance apart.
        risk: what is to be bounded, which says what labels a group.

    Raises:
        ConfigError: answers are at risk, and a rule lets no survivor answer.
    """

    def __init__(
        self,
        rules: Sequence[GateConfig],
        split: Split,
        *,
        features: Sequence[str] = (),
        stratum_key: str | None = None,
        highest_reward: float = 1.0,
        risk: Risk = "signal",
    ) -> None:
        if risk == "answer" and any(rule.outcome != "survivor" for rule in rules):
            raise ConfigError("risk answer is about survivors: the rule's outcome must be survivor")
        self._rules = rules
        self._signals = [signal(name) for name in features]
        self._stratum_key = stratum_key
        self._highest_reward = highest_reward
        self._last = max(rule.history_mixed for rule in rules)
        self._history = PromptHistory(keep=max(16, self._last))
        self._reads_p = HISTORY_FEATURE in features or any(
            rule.score is not None and rule.score.reads_history for rule in rules
        )
        self._sample = Sample(split, risk=risk)
        self._draw: OnePerTask[Entry] = OnePerTask(split.seed)
        self._prompts: dict[int, str] = {}

    def add(self, recorded: RecordedGroup) -> None:
        """Take one group.

        Raises:
            ConfigError: a gate stopped the group, or it lacks the stratum.
        """
        group = recorded.group
        if was_stopped(group):
            raise ConfigError(
                f"{recorded.where}: a gate stopped group {group.id!r}, so nobody knows what it would have "
                "become; calibrate on groups recorded in observe mode, or renew a certificate from audits"
            )
        sample = self._sample
        self._count(group)
        label = group_label(
            group, highest_reward=self._highest_reward, tolerance=self._rules[0].reward_tolerance
        )
        harmless = label.zero_variance if sample.risk == "signal" else survivor_agrees(group)
        sample.unknown += harmless is None and not label.singleton
        sample.singletons += label.singleton
        if harmless is not None:
            entry = self._entry(recorded, harmless, label)
            if sample.split.part(group.task_id) == "choose":
                sample.choose.append(entry)
            else:
                self._draw.offer(group.task_id, group.id, entry)
        if self._last or self._reads_p:
            self._history.record(group.task_id, group.id, [rollout.reward for rollout in group.rollouts])

    def sample(self) -> Sample:
        """What was kept of all groups so far."""
        self._sample.certify = self._draw.items
        return self._sample

    def _entry(self, recorded: RecordedGroup, harmless: bool, label: GroupLabel) -> Entry:
        group = recorded.group
        history = recorded.begin.history
        if history is None and self._last:
            history = list(self._history.last(group.task_id, self._last))
        p = self._history.p_zero_variance(group.task_id, group.size) if self._reads_p else None
        features: dict[str, float | None] = {}
        if self._signals:
            view = GroupView.of(group, p)
            features = {s.name: s.value(view, self._rules[0].start_step) for s in self._signals}
        return Entry(
            units=tuple(
                unit_of(
                    replay(group, rule, history=history, history_p=p),
                    harmless,
                    None if rule.outcome == "drop" else survivor_of(group),
                )
                for rule in self._rules
            ),
            outcome=None if label.zero_variance is None else self._outcome(label.kind, group),
            features=features,
            stratum=self._stratum(recorded),
        )

    def _outcome(self, kind: GroupKind, group: Group) -> Outcome:
        """A constant reward between failure and success counts to the side it is nearer to."""
        if kind == "all_fail" or kind == "all_success" or kind == "mixed":
            return kind
        reward = max(rollout.reward or 0.0 for rollout in group.rollouts)
        return "all_success" if 2 * reward >= self._highest_reward else "all_fail"

    def _stratum(self, recorded: RecordedGroup) -> str | None:
        if self._stratum_key is None:
            return None
        metadata = recorded.group.metadata
        if self._stratum_key not in metadata:
            known = ", ".join(map(str, metadata)) or "none"
            raise ConfigError(
                f"{recorded.where}: group {recorded.group.id!r} has no metadata {self._stratum_key!r} "
                f"(keys: {known}); strata must be declared for every group"
            )
        return str(metadata[self._stratum_key])

    def _count(self, group: Group) -> None:
        sample = self._sample
        sample.groups += 1
        sample.sizes[group.size] += 1
        sample.policy_versions.add(group.policy_version)
        sample.max_steps = max(sample.max_steps, *(len(rollout.steps) for rollout in group.rollouts), 0)
        prompt = next((str(group.metadata[key]) for key in _PROMPT_KEYS if key in group.metadata), None)
        if prompt is not None:
            sample.repeated_prompts += self._prompts.setdefault(hash(prompt), group.task_id) != group.task_id


def collect(
    groups: Iterable[RecordedGroup],
    collector: Collector,
    on_group: Callable[[], None] | None = None,
) -> Sample:
    """Pass recorded groups through a collector, in one pass.

    Raises:
        ConfigError: see `Collector.add`.
        TraceError: the trace is unreadable.
    """
    for recorded in groups:
        collector.add(recorded)
        if on_group is not None:
            on_group()
    return collector.sample()


def _steps_after(group: Group, k: int, survivor: Rollout | None = None) -> int:
    stopped = (rollout for rollout in group.rollouts if rollout is not survivor)
    return sum(max(0, len(rollout.steps) - k) for rollout in stopped)
