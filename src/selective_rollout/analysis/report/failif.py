"""Checks such as `loss>0.1`, for scripts that must not go on when one holds.

A check is one name, one comparison and one number. Nothing is evaluated.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from selective_rollout.errors import ConfigError

_FORM: Final = re.compile(r"\s*([a-z][a-z0-9_]*)\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*")
_OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True)
class Check:
    """`name comparison limit`, as parsed."""

    name: str
    comparison: str
    limit: float

    def __str__(self) -> str:
        return f"{self.name} {self.comparison} {self.limit:g}"

    def failure(self, values: Mapping[str, float | None]) -> str | None:
        """Why the check fails, or None if it passes.

        A value that is unknown fails too: a guard that cannot see must not wave through.

        Raises:
            ConfigError: there is no value of that name; the message lists the names.
        """
        if self.name not in values:
            raise ConfigError(f"--fail-if {self}: unknown name; known are {', '.join(sorted(values))}")
        value = values[self.name]
        if value is None:
            return f"{self}: {self.name} is unknown here, so the check cannot pass"
        return f"{self}: it is {value:.4g}" if _OPERATORS[self.comparison](value, self.limit) else None


def parse_check(text: str) -> Check:
    """Read a check.

    Raises:
        ConfigError: the text is no name, comparison and number.
    """
    found = _FORM.fullmatch(text)
    try:
        limit = float(found[3]) if found is not None else math.nan
    except ValueError:
        limit = math.nan
    if found is None or not math.isfinite(limit):
        raise ConfigError(f'--fail-if {text!r}: write a name, a comparison and a number, e.g. "loss>0.1"')
    return Check(found[1], found[2], limit)
