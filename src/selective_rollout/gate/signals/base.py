"""What a signal is, and the refusal of one whose facts nobody feeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from selective_rollout.errors import ConfigError
from selective_rollout.gate.signals.view import GroupView

Direction: TypeAlias = Literal[1, -1]
"""1: the larger the value, the likelier zero variance; -1: the smaller, the likelier."""

NEEDS: Final[Mapping[str, str]] = {
    "actions": "report the members' actions",
    "observations": "report each observation or its hash (Step.observation_hash)",
    "errors": "say of each observation whether it is an error (Step.is_error)",
    "history": "keep a PromptHistory and pass its p_zero_variance",
}
"""What a signal may need of a group, and how to feed it."""


class Signal(Protocol):
    """One number of a group at a position."""

    @property
    def name(self) -> str:
        """Unique name, as used in `signal(name)` and in files."""

    @property
    def needs(self) -> frozenset[str]:
        """Keys of `NEEDS`: the facts without which there is never a value."""

    @property
    def direction(self) -> Direction:
        """Which way the value points."""

    def value(self, view: GroupView, k: int) -> float | None:
        """The value at position k, from the first k steps of the members present at k; None: unknown."""


@dataclass(frozen=True, slots=True)
class FunctionSignal:
    """A signal that is a plain function of view and position."""

    name: str
    needs: frozenset[str]
    direction: Direction
    function: Callable[[GroupView, int], float | None]

    def value(self, view: GroupView, k: int) -> float | None:
        """The function's value at position k."""
        return self.function(view, k)


def missing_needs(signal: Signal, view: GroupView) -> frozenset[str]:
    """Return the signal's needs of which the view holds no fact at all."""
    return signal.needs - view.feeds


def require_needs(signal: Signal, view: GroupView) -> None:
    """Refuse a signal that this view can never give a value.

    Raises:
        ConfigError: names the signal, what it lacks, and how to feed that.
    """
    missing = sorted(missing_needs(signal, view))
    if missing:
        how = "; ".join(NEEDS.get(need, f"feed {need}") for need in missing)
        raise ConfigError(
            f"signal {signal.name!r} needs {' and '.join(missing)}, which nobody fed: {how}, or leave it out"
        )
