"""All signals by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from selective_rollout.errors import ConfigError
from selective_rollout.gate.signals import agreement, futility
from selective_rollout.gate.signals.base import FunctionSignal, Signal
from selective_rollout.gate.signals.effects import EffectEquality, EffectJaccard

_ACTIONS: Final = frozenset({"actions"})
_OBSERVATIONS: Final = frozenset({"actions", "observations"})
_ERRORS: Final = frozenset({"actions", "errors"})
_HISTORY: Final = frozenset({"history"})

_PLAIN: Final = (
    FunctionSignal("distance", _ACTIONS, -1, agreement.distance),
    FunctionSignal("distance_unpadded", _ACTIONS, -1, agreement.distance_unpadded),
    FunctionSignal("tool_distance", _ACTIONS, -1, agreement.tool_distance),
    FunctionSignal("unique_action_ratio", _ACTIONS, -1, agreement.unique_action_ratio),
    FunctionSignal("unique_prefix_ratio", _ACTIONS, -1, agreement.unique_prefix_ratio),
    FunctionSignal("action_bigram_jaccard_mean", _ACTIONS, -1, agreement.action_bigram_jaccard_mean),
    FunctionSignal("action_entropy", _ACTIONS, -1, agreement.action_entropy),
    FunctionSignal("obs_unique_ratio", _OBSERVATIONS, -1, agreement.obs_unique_ratio),
    FunctionSignal("termination_fraction", _ACTIONS, 1, futility.termination_fraction),
    FunctionSignal("repeat_rate", _ACTIONS, 1, futility.repeat_rate),
    FunctionSignal("observation_novelty", _OBSERVATIONS, -1, futility.observation_novelty),
    FunctionSignal("error_share", _ERRORS, 1, futility.error_share),
    FunctionSignal("history_p_zero_variance", _HISTORY, 1, futility.history_p_zero_variance),
)

SIGNALS: Final[Mapping[str, Signal]] = MappingProxyType({plain.name: plain for plain in _PLAIN})
"""The signals that need no declaration."""

DECLARED: Final[Mapping[str, str]] = MappingProxyType(
    {"or_rule": "t_high", "effect_equality": "effects", "effect_jaccard": "effects"}
)
"""The other signals, with the argument of `signal` that each of them takes."""

_MAKERS: Final[Mapping[str, Callable[..., Signal]]] = {
    "or_rule": agreement.OrRule,
    "effect_equality": EffectEquality,
    "effect_jaccard": EffectJaccard,
}


def signal(name: str, **declared: Any) -> Signal:
    """Return a signal by name.

    Args:
        name: a key of `SIGNALS` or `DECLARED`.
        declared: the one argument that a signal of `DECLARED` takes, such as `effects=["write_file"]`.

    Raises:
        ConfigError: the name is unknown (the known ones are listed), or the declaration is missing, wrong or
            not the signal's.
    """
    if name not in SIGNALS and name not in DECLARED:
        raise ConfigError(f"unknown signal {name!r}; known signals are {', '.join([*SIGNALS, *DECLARED])}")
    wanted = [DECLARED[name]] if name in DECLARED else []
    for argument in wanted:
        if argument not in declared:
            raise ConfigError(f"signal {name!r} needs {argument}: call signal({name!r}, {argument}=...)")
    for argument in declared:
        if argument not in wanted:
            takes = f"takes only {wanted[0]}" if wanted else "takes no arguments"
            raise ConfigError(f"signal {name!r} {takes}, not {argument}")
    return _MAKERS[name](**declared) if name in DECLARED else SIGNALS[name]
