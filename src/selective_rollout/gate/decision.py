"""What the gate decided at one position, what it read, and the pure rule between the two.

`judge` sees a `GateFacts` and nothing else, so that a decision recorded in a trace replays to the same result
from its own event, whatever the order in which the members' actions arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from selective_rollout.gate.config import GateConfig
from selective_rollout.rewards import zero_variance


class Reason(StrEnum):
    """Why a group was cut, kept, or not yet looked at."""

    FIRED = "fired"
    """Every condition holds: going on is worthless."""
    DISTANCE = "distance"
    """The distance is not below tau."""
    SCORE = "score"
    """The score's P(signal-bearing) is not below tau."""
    SCORE_UNKNOWN = "score_unknown"
    """A feature of the score has no value: its facts were not reported."""
    KNOWN_REWARDS_DIFFER = "known_rewards_differ"
    KNOWN_ANSWERS_DIFFER = "known_answers_differ"
    IDENTICAL_SAMPLING = "identical_sampling"
    """The members are equal by construction, which is no convergence."""
    HISTORY_MIXED = "history_mixed"
    """The prompt's earlier rewards were not all equal, or there are too few of them."""
    NOBODY_RUNNING = "nobody_running"
    """There is nothing left to save."""
    NO_ACTIONS = "no_actions"
    """No member has a single extracted action up to k: an extraction problem, not agreement."""
    TOO_FEW_MEMBERS = "too_few_members"
    SINGLETON = "singleton"
    """A group of one has no pairs."""
    BEFORE_START_STEP = "before_start_step"
    WAITING = "waiting"
    """A check is due, but some member has not reached it."""
    CHECKED = "checked"
    """All due checks are behind; the next one, if any, is further on."""
    LATE_VETO = "late_veto"
    """A fact that arrived after the decision turned the cut, not yet executed, into keep."""
    DISABLED = "disabled"
    """The gate was switched off for this group, for example by a hold timeout."""


@dataclass(frozen=True, slots=True)
class GateFacts:
    """All that a decision at position `step` reads; all of it depends on positions, never on clocks."""

    step: int
    group_size: int
    members: tuple[int, ...]
    """Present at `step`: recorded at least `step` actions, or ended normally before."""
    running: tuple[int, ...]
    """Present, with more actions to come after `step`."""
    has_actions: bool
    """Whether any member has a non-empty action among its first `step`."""
    below_tau: bool | None
    """Whether the distance (or the score's P(signal-bearing)) is below tau; None if it is unknown."""
    rewards: tuple[float | None, ...] = ()
    """Rewards known of the members that had finished by `step`."""
    answers: tuple[str | None, ...] = ()
    """Answers of the members that had finished by `step`."""
    sampling: str | None = None
    """The reason why the members are equal by construction, or None."""
    history: tuple[float, ...] | None = None
    """The prompt's last rewards before this group, newest last, if the rule asks for them."""
    features: tuple[float | None, ...] = ()
    """Values of the features of the rule's score, in its order; empty without a score."""


@dataclass(frozen=True, slots=True)
class GateDecision:
    """The gate's word after one report; `fires` is what a loop acts on."""

    fires: bool
    reason: Reason
    step: int | None = None
    """Position k that was checked; None if this report made no check decidable."""
    distance: float | None = None
    """Mean pairwise distance at k: exact at start_step and on a fire, else possibly only bounded."""
    bounds: tuple[float, float] | None = None
    tau: float | None = None
    facts: GateFacts | None = None
    p_signal: float | None = None
    """P(signal-bearing) by the rule's score; None without a score, or if one of its features is unknown."""

    @property
    def checked(self) -> bool:
        """True if a check position was evaluated."""
        return self.facts is not None

    @property
    def compared(self) -> float | None:
        """What was held against tau: the score's P(signal-bearing) if the rule has one, else the distance."""
        scored = self.facts is not None and self.facts.features
        return self.p_signal if scored else self.distance


def judge(config: GateConfig, facts: GateFacts) -> Reason:
    """Apply the rule to the facts of one position; FIRED is the only reason that cuts."""
    known = known_difference(config, facts.rewards, facts.answers)
    for holds, reason in (
        (facts.group_size < 2, Reason.SINGLETON),
        (len(facts.members) < config.required_members(facts.group_size), Reason.TOO_FEW_MEMBERS),
        (not facts.has_actions, Reason.NO_ACTIONS),
        (not facts.below_tau, _not_below(config, facts)),
        (known is not None, known),
        ("identical_sampling" in config.vetoes and facts.sampling is not None, Reason.IDENTICAL_SAMPLING),
        (_history_mixed(config, facts), Reason.HISTORY_MIXED),
        (not facts.running, Reason.NOBODY_RUNNING),
    ):
        if holds and reason is not None:
            return reason
    return Reason.FIRED


def would_cut_at(fired: GateDecision | None, cut_at: int | None) -> int | None:
    """Position of a decision that fired and was not carried out: observe mode, audit, late veto.

    Args:
        fired: the group's decision that fired, if any did.
        cut_at: position of the decision that was carried out.
    """
    return fired.step if fired is not None and cut_at is None else None


def known_difference(
    config: GateConfig, rewards: Sequence[float | None], answers: Sequence[str | None]
) -> Reason | None:
    """Whether facts of finished members already prove that the group is not of one outcome.

    Answers matter at inference only: in training equal rewards may well hide different answers.
    """
    if "known_rewards_differ" in config.vetoes and zero_variance(rewards, config.reward_tolerance) is False:
        return Reason.KNOWN_REWARDS_DIFFER
    given = {answer for answer in answers if answer is not None}
    if "known_answers_differ" in config.vetoes and config.outcome != "drop" and len(given) > 1:
        return Reason.KNOWN_ANSWERS_DIFFER
    return None


def _not_below(config: GateConfig, facts: GateFacts) -> Reason:
    if config.score is None:
        return Reason.DISTANCE
    return Reason.SCORE_UNKNOWN if None in facts.features else Reason.SCORE


def _history_mixed(config: GateConfig, facts: GateFacts) -> bool:
    if not config.history_mixed:
        return False
    rewards = (facts.history or ())[-config.history_mixed :]
    if len(rewards) < config.history_mixed:
        return True
    return max(rewards) - min(rewards) > config.reward_tolerance
