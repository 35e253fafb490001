"""The decision rule of a gate as one frozen, validated, fingerprinted value.

A rule is everything that decides whether a group is cut; how a cut is carried out (mode, hold, stop) belongs
to the engine. The defaults are the published operating point: action level, one check at step 10, strict
`distance < 0.12`, END padding, drop ("Selective Rollout", arXiv 2605.05802, section 4).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, get_args

from selective_rollout.errors import ConfigError
from selective_rollout.gate.score import TwoSidedScore
from selective_rollout.rewards import ZERO_VARIANCE_TOLERANCE
from selective_rollout.types import Level, Outcome, Padding

VETOES: Final = ("known_rewards_differ", "known_answers_differ", "identical_sampling")
"""Facts that keep a group whatever its distance; all on by default."""


@dataclass(frozen=True, slots=True)
class GateConfig:
    """When a group counts as converged.

    Raises:
        ConfigError: a field is out of range; the message names the field, the value and the allowed range.
    """

    level: Level = "action"
    """What one symbol is: a canonical action, a token id, or a character of the joined action texts."""
    start_step: int = 10
    """First step after which the group is checked (the paper's K); nothing fires before it."""
    tau: float = 0.12
    """The group fires if distance < tau, strictly; with a score, if P(signal-bearing) < tau.

    A tau belongs to its level and padding, or to its score."""
    check_every: int | None = None
    """None: one check, at start_step. n: also at start_step + n, + 2n, ..."""
    padding: Padding = "end"
    """"end": finished rows are filled with END up to k; "none": each pair is divided by its longer prefix."""
    outcome: Outcome = "drop"
    """What becomes of a cut group: dropped (training), or answered by a survivor or a vote (inference)."""
    min_members: int | None = None
    """Fewest members that must be present at k; None means ceil(group_size / 2), and never below 2."""
    vetoes: tuple[str, ...] = VETOES
    history_mixed: int = 0
    """H > 0: fire only if the prompt's last H recorded rewards exist and were all equal. 0: off."""
    reward_tolerance: float = ZERO_VARIANCE_TOLERANCE
    """Rewards within this range are equal."""
    separator: str = " | "
    """Joins action texts at char level; unused at the other levels."""
    score: TwoSidedScore | None = None
    """Fitted weights whose P(signal-bearing) takes the place of the distance, at start_step only."""

    def __post_init__(self) -> None:
        if isinstance(self.vetoes, str) or not isinstance(self.vetoes, Iterable):
            raise ConfigError(f"gate.vetoes must be a list, not {self.vetoes!r}")
        object.__setattr__(self, "vetoes", tuple(self.vetoes))
        _require_choice("level", self.level, get_args(Level))
        _require_choice("padding", self.padding, get_args(Padding))
        _require_choice("outcome", self.outcome, get_args(Outcome))
        _require_whole("start_step", self.start_step, 1)
        _require_whole("history_mixed", self.history_mixed, 0)
        if self.check_every is not None:
            _require_whole("check_every", self.check_every, 1)
        if self.min_members is not None:
            _require_whole("min_members", self.min_members, 2)
        _require_number("tau", self.tau, 0.0, 1.0)
        _require_number("reward_tolerance", self.reward_tolerance, 0.0, math.inf)
        if not isinstance(self.separator, str):
            raise ConfigError(f"gate.separator must be text, not {self.separator!r}")
        for veto in self.vetoes:
            _require_choice("vetoes", veto, VETOES)
        if self.level == "char" and self.padding == "end":
            raise ConfigError(
                'gate.padding must be "none" at level "char": characters have no common position'
            )
        if self.score is not None and (self.level != "action" or self.check_every is not None):
            raise ConfigError(
                'gate.score is fitted to actions at start_step: it needs level "action" and no check_every'
            )

    @classmethod
    def paper(cls) -> GateConfig:
        """The paper's operating point, which is also the default."""
        return cls()

    @classmethod
    def tutorial(cls) -> GateConfig:
        """The tutorial's rule: characters of the joined actions, checked after every step. For parity only.

        Unsafe on real agents: groups open alike, so a check after step 1 cuts nearly all of them, and actions
        that differ in one id look 99% equal by characters.
        """
        return cls(level="char", start_step=1, tau=0.05, check_every=1, padding="none", vetoes=())

    @property
    def is_unsafe(self) -> bool:
        """True for rules known to cut groups that merely open alike, or that compare characters."""
        return self.level == "char" or self.start_step < 3

    def required_members(self, group_size: int) -> int:
        """Fewest members that must be present for a group of the given size to fire."""
        return self.min_members if self.min_members is not None else max(2, math.ceil(group_size / 2))

    def is_check(self, step: int) -> bool:
        """Whether the group is checked after this 1-based step."""
        if step < self.start_step:
            return False
        if self.check_every is None:
            return step == self.start_step
        return (step - self.start_step) % self.check_every == 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data in field order; the inverse of `from_dict`."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain["vetoes"] = list(self.vetoes)
        plain["score"] = self.score.to_dict() if self.score is not None else None
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "gate") -> GateConfig:
        """Read a rule from plain data, such as a TOML table.

        Raises:
            ConfigError: unknown keys (named, with the known ones) or a value out of range.
        """
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ConfigError(f"{where}: unknown key {', '.join(unknown)}; known keys are {', '.join(known)}")
        arguments = dict(values)
        if isinstance(arguments.get("vetoes"), str) or not isinstance(
            arguments.get("vetoes", ()), (list, tuple)
        ):
            raise ConfigError(f"{where}: vetoes must be a list, not {arguments['vetoes']!r}")
        if arguments.get("score") is not None:
            arguments["score"] = TwoSidedScore.from_dict(arguments["score"], f"{where}.score")
        return cls(**arguments)

    def fingerprint(self) -> str:
        """Short hash over every field of the rule, stored with each recorded group."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _require_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"gate.{name} must be one of {', '.join(allowed)}, not {value!r}")


def _require_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"gate.{name} must be a whole number >= {least}, not {value!r}")


def _require_number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ConfigError(f"gate.{name} must be a number in [{low:g}, {high:g}], not {value!r}")
