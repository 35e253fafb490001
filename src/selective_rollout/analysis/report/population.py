"""Groups over which shares may be taken, with everything that is counted on them.

In enforce mode the groups that ran on are a selection: the gate took out those it found alike. Shares of
them say nothing about the workload. Observed groups and groups drawn for an audit ran on whatever the gate
thought, so they are what shares are taken over, as soon as there is one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from selective_rollout.analysis.accounting import Accounting, Amount, survivor_of
from selective_rollout.analysis.prices import Prices
from selective_rollout.analysis.rates import Rate
from selective_rollout.analysis.report.inference import AnswerTotals
from selective_rollout.analysis.report.quantities import Quantity, Sums, TaskBootstrap, counted_share, hull
from selective_rollout.gate.config import GateConfig
from selective_rollout.rewards import GroupLabel
from selective_rollout.stats import Interval
from selective_rollout.types import Group, Rollout

Basis: TypeAlias = Literal["untouched", "kept"]
"""untouched: observed or audited groups; kept: only those that an enforcing gate let through."""

WORDS: Final = {
    "zero_variance": "groups with zero variance",
    "all_fail": "groups that all fail",
    "all_success": "groups that all succeed",
    "zero_variance_steps": "steps in zero-variance groups",
    "mean_reward": "mean reward",
    "steps_per_group": "steps per group",
    "failed_rollouts": "rollouts lost to failures",
    "precision": "cuts that are right",
    "loss": "signal-bearing groups lost",
    "lossless": "steps not generated, lossless",
    "lossy": "steps not generated, lossy",
    "efficiency": "efficiency",
}
"""What each named quantity is called in front of people."""

ZERO_VARIANCE_KINDS: Final = ("all_fail", "all_success", "constant")

_COMMON: Final = (
    "groups",
    "rollouts",
    "failed_rollouts",
    "labelled",
    "all_fail",
    "all_success",
    "zero_variance",
    "signal",
    "steps",
    "zero_variance_steps",
    "mean_reward",
    "scored",
)
_PER_GATE: Final = ("labelled_cuts", "right", "wrong", "saved", "lossless", "lossy")
_NO_SHARES: Final = ("mean_reward", "steps_per_group", "efficiency")


@dataclass(frozen=True, slots=True)
class NamedGate:
    """A rule under the name the report gives it."""

    name: str
    rule: GateConfig


@dataclass(slots=True)
class Population:
    """Running totals over one basis."""

    gates: Sequence[NamedGate]
    prices: Prices | None = None
    accounts: list[Accounting] = field(init=False)
    """One per gate."""
    kinds: dict[str, Amount] = field(default_factory=dict)
    """What the groups of each label took."""
    answers: AnswerTotals = field(init=False)
    """Under the first gate."""
    rollouts: int = 0
    failed: int = 0
    scored: int = 0
    reward: float = 0.0
    resampled: TaskBootstrap = field(init=False)

    def __post_init__(self) -> None:
        self.accounts = [
            Accounting(gate.rule.start_step, gate.rule.outcome, self.prices) for gate in self.gates
        ]
        self.answers = AnswerTotals(self.prices)
        names = [f"{name}_{i}" for i in range(len(self.gates)) for name in _PER_GATE]
        self.resampled = TaskBootstrap([*_COMMON, *names])

    @property
    def groups(self) -> int:
        """Groups booked."""
        return self.accounts[0].groups

    def add(self, group: Group, label: GroupLabel, cuts: Sequence[int | None]) -> None:
        """Book one group.

        Args:
            group: a group that no gate stopped.
            label: its label.
            cuts: where each gate would have cut it.
        """
        for account, cut_at in zip(self.accounts, cuts, strict=True):
            account.add(group, cut_at)
        self.answers.add(group, cuts[0])
        self.kinds.setdefault(label.kind, Amount()).add(group, 0)
        rewards = [r.reward for r in group.rollouts if r.reward is not None]
        self.rollouts += len(group.rollouts)
        self.failed += label.failed
        self.scored += len(rewards)
        self.reward += sum(rewards)
        values = _row(group, label, sum(rewards), len(rewards))
        for i, cut_at in enumerate(cuts):
            if cut_at is not None:
                survivor = None if self.gates[i].rule.outcome == "drop" else survivor_of(group)
                values |= _gate_row(i, label, steps_after(group, cut_at, survivor))
        self.resampled.add(group.task_id, values)

    def quantities(self, gate: int = 0) -> list[Quantity]:
        """Everything that has a name, an interval, and a place in `--fail-if` and in comparisons."""
        return [*self._workload(), *self._of_gate(gate)]

    def _workload(self) -> list[Quantity]:
        account = self.accounts[0]
        labelled = account.zero_variance + account.signal
        zero = sum(self.kinds[kind].steps for kind in ZERO_VARIANCE_KINDS if kind in self.kinds)
        rewards, rollouts = (self.reward, self.scored), (self.failed, self.rollouts)
        return [
            self._share("zero_variance", account.base_rate, "zero_variance", "labelled"),
            self._share("all_fail", Rate(account.all_fail, labelled), "all_fail", "labelled"),
            self._share("all_success", Rate(account.all_success, labelled), "all_success", "labelled"),
            self._ratio("zero_variance_steps", zero, account.steps, "zero_variance_steps", "steps"),
            self._ratio("mean_reward", *rewards, "mean_reward", "scored"),
            self._ratio("steps_per_group", account.steps, self.groups, "steps", "groups"),
            self._share("failed_rollouts", Rate(*rollouts), "failed_rollouts", "rollouts"),
        ]

    def _of_gate(self, i: int) -> list[Quantity]:
        account = self.accounts[i]
        steps, lossless, lossy = account.steps, account.lossless.steps, account.lossy.steps
        return [
            self._share("precision", account.precision, f"right_{i}", f"labelled_cuts_{i}"),
            self._share("loss", account.loss, f"wrong_{i}", "signal"),
            self._ratio("lossless", lossless, steps, f"lossless_{i}", "steps"),
            self._ratio("lossy", lossy, steps, f"lossy_{i}", "steps"),
            Quantity("efficiency", WORDS["efficiency"], account.efficiency, self._efficiency(i), False),
        ]

    def _share(self, name: str, rate: Rate, over: str, under: str) -> Quantity:
        """A counted share, whose resampled interval counts only where prompts repeat."""
        resampled = self._resampled(over, under) if self.resampled.repeats else None
        return counted_share(name, WORDS[name], rate, resampled)

    def _ratio(self, name: str, part: float, whole: float, over: str, under: str) -> Quantity:
        value = part / whole if whole else None
        return Quantity(name, WORDS[name], value, self._resampled(over, under), name not in _NO_SHARES)

    def _resampled(self, over: str, under: str) -> Interval | None:
        return self.resampled.interval(lambda sums: sums[over] / sums[under])

    def _efficiency(self, i: int) -> Interval | None:
        """Resampled, and widened by the exact interval of the loss: resampling no wrong cut finds none."""
        account = self.accounts[i]

        def statistic(sums: Sums) -> Any:
            return (1 - sums[f"wrong_{i}"] / sums["signal"]) / (1 - sums[f"saved_{i}"] / sums["steps"])

        resampled, loss, saved = self.resampled.interval(statistic), account.loss.interval, account.saved
        if resampled is None or loss is None or saved is None or saved >= 1:
            return None
        return hull(resampled, Interval((1 - loss.high) / (1 - saved), (1 - loss.low) / (1 - saved)))


def steps_after(group: Group, k: int, survivor: Rollout | None = None) -> int:
    """Steps of a group beyond position k, without those of a survivor that runs on."""
    stopped = (rollout for rollout in group.rollouts if rollout is not survivor)
    return sum(max(0, len(rollout.steps) - k) for rollout in stopped)


def _row(group: Group, label: GroupLabel, reward: float, scored: int) -> dict[str, float]:
    steps = steps_after(group, 0)
    return {
        "groups": 1,
        "rollouts": len(group.rollouts),
        "failed_rollouts": label.failed,
        "labelled": label.zero_variance is not None,
        "all_fail": label.kind == "all_fail",
        "all_success": label.kind == "all_success",
        "zero_variance": label.zero_variance is True,
        "signal": label.zero_variance is False,
        "steps": steps,
        "zero_variance_steps": steps if label.zero_variance else 0,
        "mean_reward": reward,
        "scored": scored,
    }


def _gate_row(i: int, label: GroupLabel, saved: int) -> dict[str, float]:
    zero = label.zero_variance
    return {
        f"labelled_cuts_{i}": zero is not None,
        f"right_{i}": zero is True,
        f"wrong_{i}": zero is False,
        f"saved_{i}": saved,
        f"lossless_{i}": saved if zero is True else 0,
        f"lossy_{i}": saved if zero is False else 0,
    }
