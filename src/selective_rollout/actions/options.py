"""What counts as the same action. Declared by the user, never guessed from field names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from selective_rollout.actions.raw import RawAction
from selective_rollout.errors import ConfigError

_FLAGS: Final = ("scrub_volatile", "numeric_equal", "name_only", "ordered")
_CALLABLE_ONLY: Final = "extract"


@dataclass(frozen=True, slots=True)
class ActionOptions:
    """How completions become canonical actions.

    Attributes:
        ignore_args: per tool, the arguments that do not count. A dotted path reaches nested keys (also inside
            lists), `"*"` as path means every argument; positional arguments are named "0", "1", ... The tool
            `"*"` stands for every tool, and for the top level of JSON actions.
        scrub_volatile: replace UUIDs, clock times, long hex ids, addresses and temporary names by a marker.
        numeric_equal: 1 and 1.0 are the same argument; the string "1" stays different.
        name_only: keep the tool names only; of a text action its first word.
        ordered: the order of parallel calls counts.
        pattern: regular expression with one group that finds the action in the text of a completion; where
            it does not match, no action was extracted.
        extract: the same as a function of the text; Python only, excludes `pattern`.
        effects: tools that change the world (for a text action: its first word), or a predicate.

    Raises:
        ConfigError: an option has the wrong type, or two contradict each other.
    """

    ignore_args: Mapping[str, Sequence[str]] = field(default_factory=dict, hash=False)
    scrub_volatile: bool = False
    numeric_equal: bool = False
    name_only: bool = False
    ordered: bool = False
    pattern: str | None = None
    extract: Callable[[str], str | None] | None = None
    effects: Iterable[str] | Callable[[RawAction], bool] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "ignore_args", _checked_ignore_args(self.ignore_args))
        object.__setattr__(self, "effects", _checked_effects(self.effects))
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, not {getattr(self, name)!r}")
        _check_pattern(self.pattern)
        if self.extract is not None and not callable(self.extract):
            raise ConfigError("extract must be a function from text to action; use pattern for an expression")
        if self.extract is not None and self.pattern is not None:
            raise ConfigError("pattern and extract both say how to find the action: give one of them")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a file; an absent `pattern` is left out.

        Raises:
            ConfigError: an option is a Python function, which no file can hold.
        """
        if self.extract is not None:
            raise ConfigError("extract is a Python function and cannot be written to a file: use pattern")
        if callable(self.effects):
            raise ConfigError("effects is a Python function and cannot be written to a file: list tool names")
        plain: dict[str, Any] = {name: getattr(self, name) for name in _FLAGS}
        plain["ignore_args"] = {tool: list(paths) for tool, paths in sorted(self.ignore_args.items())}
        plain["effects"] = sorted(self.effects)
        if self.pattern is not None:
            plain["pattern"] = self.pattern
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ActionOptions:
        """Read what `to_dict` wrote.

        Raises:
            ConfigError: a key is unknown, or a value is out of range.
        """
        known = [entry.name for entry in fields(cls) if entry.name != _CALLABLE_ONLY]
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ConfigError(f"unknown action option {', '.join(unknown)} (known: {', '.join(known)})")
        return cls(**values)


def _checked_ignore_args(ignore: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    example = 'write {"search": ["query"]}'
    if not isinstance(ignore, Mapping):
        raise ConfigError(f"ignore_args must map tools to lists of arguments: {example}")
    for tool, paths in ignore.items():
        if isinstance(paths, str) or not isinstance(paths, Sequence):
            raise ConfigError(f"ignore_args[{tool!r}] must be a list of arguments, not {paths!r}: {example}")
        if not all(isinstance(path, str) and path for path in paths):
            raise ConfigError(f"ignore_args[{tool!r}] must hold non-empty names: {example}")
    return {tool: tuple(paths) for tool, paths in ignore.items()}


def _checked_effects(effects: Any) -> frozenset[str] | Callable[[RawAction], bool]:
    if callable(effects):
        return effects  # type: ignore[no-any-return]
    if isinstance(effects, str) or not isinstance(effects, Iterable):
        raise ConfigError(f"effects must be a list of tool names or a function, not {effects!r}")
    names = frozenset(effects)
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigError("effects must hold non-empty tool names")
    return names


def _check_pattern(pattern: str | None) -> None:
    if pattern is None:
        return
    try:
        groups = re.compile(pattern).groups
    except (re.error, TypeError) as error:
        raise ConfigError(f"pattern {pattern!r} is not a regular expression: {error}") from None
    if groups != 1:
        raise ConfigError(f"pattern {pattern!r} has {groups} groups: mark the action with exactly one (...)")


DEFAULT_OPTIONS: Final = ActionOptions()
"""Full arguments, parallel calls in any order, nothing ignored or scrubbed."""
