"""The rollouts of one group: attempts resolved, facts of the group collected."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from selective_rollout.errors import TraceError
from selective_rollout.rewards import last_attempts
from selective_rollout.trace.importers.columns import Columns, Record
from selective_rollout.trace.importers.rollouts import ImportedRollout, RolloutReader
from selective_rollout.trace.importers.tokens import read_usage, token_count
from selective_rollout.trace.schema import LARGEST_GROUP
from selective_rollout.types import Usage

_SAFE_INTEGER = 2**53


@dataclass(frozen=True, slots=True)
class Members:
    """What the records of one group say.

    Attributes:
        rollouts: one per member, numbered from 0 in the order of their first records.
        size: rollouts requested, at least as many as there are.
        superseded: earlier attempts that are not among the rollouts.
        facts: the declared metadata.
        policy_version: None if unknown, or if the records differ.
        request: tokens of a request whose choices nobody told apart.
    """

    rollouts: tuple[ImportedRollout, ...]
    size: int
    superseded: int
    facts: dict[str, Any]
    policy_version: str | None
    request: Usage | None


def read_members(records: Iterable[tuple[str, Record]], reader: RolloutReader, group: str) -> Members:
    """Read a group's records.

    Raises:
        TraceError: two records of one rollout both ended and nothing tells which counts, or a fact differs
            within the group.
    """
    columns = reader.columns
    attempts: list[ImportedRollout] = []
    facts: dict[str, Any] = {}
    versions: set[str | None] = set()
    size, request = 0, None
    for where, record in records:
        attempts.append(reader.read(record, where))
        _take_facts(facts, columns, record, where, group)
        versions.add(columns.identity("policy_version", record, where))
        size = max(size, _size(columns.get("size", record), where))
        request = request or read_usage(record.get("_group_tokens"), where)
    rollouts = _resolved(attempts, group)
    return Members(
        rollouts=rollouts,
        size=max(size, len(rollouts)),
        superseded=len(attempts) - len(rollouts),
        facts=facts,
        policy_version=versions.pop() if len(versions) == 1 else None,
        request=request,
    )


def _size(value: Any, where: str) -> int:
    size = token_count(value, f"{where}: size") or 0
    if size > LARGEST_GROUP:
        raise TraceError(f"{where}: a group of {size:,} rollouts: is the column of the size right?")
    return size


def _resolved(attempts: Sequence[ImportedRollout], group: str) -> tuple[ImportedRollout, ...]:
    """Keep one attempt per rollout; the tokens of the others were paid for its sake."""
    by_id: dict[Hashable, list[ImportedRollout]] = {}
    for number, attempt in enumerate(attempts):
        by_id.setdefault(number if attempt.source_id is None else attempt.source_id, []).append(attempt)
    for tries in by_id.values():
        _require_order(tries, group)
        tries.sort(key=lambda attempt: attempt.attempt or 0)
    kept = last_attempts((key, attempt) for key, tries in by_id.items() for attempt in tries)
    resolved = []
    for rollout, tries in zip(kept, by_id.values(), strict=True):
        assert isinstance(rollout, ImportedRollout)
        others = sum(attempt.completion_tokens for attempt in tries if attempt.where != rollout.where)
        resolved.append(replace(rollout, wasted=rollout.wasted + others))
    return tuple(resolved)


def _require_order(tries: Sequence[ImportedRollout], group: str) -> None:
    """Two records of one rollout need attempt numbers, unless at most one of them ended normally."""
    ended = [attempt for attempt in tries if attempt.status.ended_normally]
    numbers = [attempt.attempt for attempt in tries]
    if len(ended) < 2 or (None not in numbers and len(set(numbers)) == len(numbers)):
        return
    raise TraceError(
        f"{ended[1].where}: rollout {ended[1].source_id!r} of group {group!r} has ended before, at "
        f"{ended[0].where}: the group needs more columns, or map attempt= if it was started again"
    )


def _take_facts(facts: dict[str, Any], columns: Columns, record: Record, where: str, group: str) -> None:
    for name, value in columns.each("metadata", record).items():
        if not _plain(value):
            raise TraceError(
                f"{where}: metadata column {name!r} must hold plain values, not {type(value).__name__}"
            )
        if name in facts and facts[name] != value:
            raise TraceError(
                f"{where}: metadata column {name!r} differs within group {group!r} "
                f"({facts[name]!r}, {value!r}); strata are facts of the whole group"
            )
        facts[name] = value


def _plain(value: Any) -> bool:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return True
    if isinstance(value, int):
        return abs(value) <= _SAFE_INTEGER
    return isinstance(value, float) and math.isfinite(value)
