"""What a model emitted in one step, before anything is made equal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RawCall:
    """One tool call.

    Attributes:
        name: the tool; empty if the model named none.
        args: the arguments as an object, or None if what the model wrote is not a JSON object.
        raw: the arguments as written, or None if they were handed over as an object.
        id: the call's id at the server; never part of the canonical action.
    """

    name: str
    args: Mapping[str, Any] | None
    raw: str | None = None
    id: str | None = None

    def __str__(self) -> str:
        written = self.raw if self.raw is not None else json.dumps(self.args, ensure_ascii=False, default=str)
        return f"{self.name}({written})"


@dataclass(frozen=True, slots=True)
class RawAction:
    """Tool calls or text; `str()` of it is what an environment should be given.

    Attributes:
        calls: the calls of one step, in the order written; empty for a text action.
        text: the text action, without reasoning; empty if there is none.
    """

    calls: tuple[RawCall, ...] = ()
    text: str = ""

    def __str__(self) -> str:
        return "\n".join(map(str, self.calls)) if self.calls else self.text
