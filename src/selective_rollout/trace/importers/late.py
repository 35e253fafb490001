"""Rewards that were scored elsewhere, from a file of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from selective_rollout.errors import TraceError
from selective_rollout.rewards import parse_reward
from selective_rollout.trace.importers.columns import ABSENT, Columns, Record, id_text, lookup
from selective_rollout.trace.importers.opening import open_records
from selective_rollout.trace.importers.report import ImportReport


class LateRewards:
    """Rewards by group and rollout, each to be taken once.

    A record names its group by `group` (the id in the trace) or by the columns that are mapped to the group,
    and its rollout by `rollout` or the mapped column: the source's id, or the 0-based index where rollouts
    have no ids.

    Raises:
        TraceError: a record names no group, rollout or reward, or a rollout is scored twice.
        RewardError: a reward cannot be read as one number.
    """

    def __init__(self, path: Path, columns: Columns, reward_key: str | None, report: ImportReport) -> None:
        self._found: dict[tuple[str, str], tuple[str, float | None]] = {}
        file = open_records(path)
        try:
            for place, record in file.scan(report.skip):
                where = f"{path}:{place.line}"
                key = (_name("group", record, columns, where), _name("rollout", record, columns, where))
                reward = parse_reward(_reward(record, columns, where), reward_key=reward_key, where=where)
                if key in self._found:
                    raise TraceError(f"{where}: rollout {key[1]!r} of group {key[0]!r} is scored twice")
                self._found[key] = (where, reward)
        finally:
            file.close()

    def take(self, groups: tuple[str, ...], rollout: str) -> tuple[str, float | None] | None:
        """Take (file:line, reward) of a rollout, whose group may go by several names."""
        for group in groups:
            if (group, rollout) in self._found:
                return self._found.pop((group, rollout))
        return None

    def left(self) -> list[tuple[str, str, str]]:
        """(file:line, group, rollout) of all that nobody took."""
        return [(where, group, rollout) for (group, rollout), (where, _) in self._found.items()]


def _name(role: str, record: Record, columns: Columns, where: str) -> str:
    named = lookup(record, role)
    found = id_text(named, f"{where}: column {role!r}") if named is not ABSENT else None
    if found is None:
        found = columns.identity(role, record, where)
    if found is None:
        raise TraceError(f"{where}: a late reward needs `group`, `rollout` and `reward`; no `{role}`")
    return found


def _reward(record: Record, columns: Columns, where: str) -> Any:
    value = record["reward"] if "reward" in record else columns.value("reward", record)
    if value is ABSENT:
        raise TraceError(f"{where}: a late reward needs `group`, `rollout` and `reward`; no `reward`")
    return value
