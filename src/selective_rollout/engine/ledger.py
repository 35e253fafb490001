"""Where the tokens of a group went. Unknown stays unknown: it is counted in requests, never added as 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from selective_rollout.types import Usage, UsageSource


@dataclass(slots=True)
class Ledger:
    """Running token totals of a rollout, a group or a run; totals cover the requests whose count is known."""

    requests: int = 0
    """Completions asked for, retries not counted."""
    prompt: int = 0
    cached: int = 0
    """Part of `prompt` that the server had in its prefix cache."""
    completion: int = 0
    """All completion tokens generated, overrun and wasted included, abandoned not."""
    reasoning: int = 0
    overrun: int = 0
    """Part of `completion` that arrived after the group was cut."""
    wasted: int = 0
    """Part of `completion` that failed attempts had received before they broke."""
    abandoned: int = 0
    """Completion tokens of earlier attempts of the group, before a restart."""
    unknown_requests: int = 0
    """Requests whose completion tokens nobody counted."""
    unknown_prompts: int = 0
    """Requests whose prompt tokens nobody counted."""
    estimated: int = 0
    """Guess at the completion tokens of some of the `unknown_requests`, from their text; never part of
    `completion`."""
    estimated_requests: int = 0
    """Requests that `estimated` covers; a cancelled one without a stream leaves no text to guess from."""
    sources: Counter[UsageSource] = field(default_factory=Counter)
    """Requests by who counted their completion tokens."""

    def add(self, usage: Usage, *, overrun: int = 0, wasted: int = 0, estimate: int | None = None) -> None:
        """Book one request.

        Args:
            usage: its tokens.
            overrun: part of its completion that came after the cut.
            wasted: completion tokens of its failed attempts, which `usage` does not hold.
            estimate: a guess at its completion, which counts only if `usage` does not know it.
        """
        self.requests += 1
        self.sources[usage.source if usage.completion is not None else "unknown"] += 1
        self.unknown_requests += usage.completion is None
        self.unknown_prompts += usage.prompt is None
        if usage.completion is None and estimate is not None:
            self.estimated += estimate
            self.estimated_requests += 1
        self.prompt += usage.prompt or 0
        self.cached += usage.cached or 0
        self.completion += (usage.completion or 0) + wasted
        self.reasoning += usage.reasoning or 0
        self.overrun += overrun
        self.wasted += wasted

    def merge(self, other: Ledger) -> None:
        """Add another ledger's totals."""
        for name in _TOTALS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.sources.update(other.sources)

    @classmethod
    def of(cls, parts: Iterable[Ledger], *, abandoned: int = 0) -> Ledger:
        """The totals of all parts, and of what earlier attempts abandoned."""
        total = cls(abandoned=abandoned)
        for part in parts:
            total.merge(part)
        return total

    def to_dict(self) -> Mapping[str, object]:
        """Plain data for JSON output."""
        return {**{name: getattr(self, name) for name in _TOTALS}, "sources": dict(self.sources)}


_TOTALS: Final = tuple(field.name for field in fields(Ledger) if field.name != "sources")
