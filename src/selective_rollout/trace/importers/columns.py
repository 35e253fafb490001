"""Which columns of a foreign record mean what.

A role (`group`, `reward`, ...) is filled by columns the user declared, or else by the format's usual names.
Declared columns must exist; usual names may be absent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from selective_rollout.errors import ConfigError, TraceError
from selective_rollout.types import RolloutStatus

Record: TypeAlias = dict[str, Any]

ROLES: Final = {
    "group": "identity of the group; several columns joined by + identify it together",
    "task": "the independent unit of statistics, shared by groups of one prompt; may be several columns",
    "rollout": "identity of the rollout within its group; repeated where a rollout was started again",
    "attempt": "number of the attempt at the rollout",
    "size": "rollouts requested for the group",
    "status": "how the rollout ended, in a word",
    "error": "what infrastructure broke; empty if nothing did",
    "actions": "actions, steps or chat messages of the rollout",
    "tools": "tool names, one per action, for logs whose actions are arguments only",
    "observations": "replies of the environment, one per action",
    "is_error": "whether a reply was an error, one per action",
    "finish_reason": "why each completion ended, one per action",
    "reward": "the trained reward; several columns are added up",
    "answer": "the rollout's own final answer, never the reference answer",
    "tokens": "completion tokens (one number, or one per action), or a usage object",
    "prompt": "the prompt, to notice groups that share one; it identifies nothing",
    "policy_version": "version of the weights that sampled the group",
    "metadata": "facts of the group for strata, such as model+source",
}
"""The roles a column can be mapped to, and what they mean."""

ABSENT: Final = object()
"""Value of a role that no column of the record fills."""

_SEVERAL: Final = frozenset({"group", "task", "reward", "metadata"})
_STATUS_PREFIX: Final = "status:"
_LONGEST_ID: Final = 200
_SHOWN_COLUMNS: Final = 30


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """Columns as the user declared them.

    Attributes:
        columns: columns by role (see `ROLES`). A dotted name reaches into nested objects.
        separator: what separates the actions where they are one text.
        statuses: meaning of status words that are not generally known.

    Raises:
        ConfigError: a role is unknown, has no column, or takes one column only.
    """

    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    separator: str | None = None
    statuses: Mapping[str, RolloutStatus] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for role, names in self.columns.items():
            if role not in ROLES:
                raise ConfigError(f"cannot map {role!r} (known: {', '.join(ROLES)})")
            if isinstance(names, str) or not names or not all(names):
                raise ConfigError(f"map {role}: give at least one column")
            if len(names) > 1 and role not in _SEVERAL:
                raise ConfigError(f"map {role}: takes one column, not {'+'.join(names)}")
        if self.separator == "":
            raise ConfigError("the separator of actions must not be empty")

    @classmethod
    def parse(cls, items: Iterable[str], *, separator: str | None = None) -> ColumnMapping:
        """Read `ROLE=COLUMN[+COLUMN],...` items; `status:WORD=STATUS` declares a status word.

        Raises:
            ConfigError: an item is malformed, or a role is given twice.
        """
        columns: dict[str, tuple[str, ...]] = {}
        statuses: dict[str, RolloutStatus] = {}
        for item in (part.strip() for text in items for part in text.split(",")):
            role, equals, value = (part.strip() for part in item.partition("="))
            if not (role and equals and value):
                raise ConfigError(f"map {item!r}: write ROLE=COLUMN, such as group=source+group_id")
            if role.startswith(_STATUS_PREFIX):
                statuses[role.removeprefix(_STATUS_PREFIX)] = _status(item, value)
                continue
            if role in columns:
                raise ConfigError(f"map {role}: given twice")
            columns[role] = tuple(name.strip() for name in value.split("+"))
        return cls(columns, separator, statuses)


def _status(item: str, value: str) -> RolloutStatus:
    try:
        return RolloutStatus(value.casefold())
    except ValueError:
        raise ConfigError(f"map {item!r}: a status is one of {', '.join(RolloutStatus)}") from None


Advice = Callable[[Record], str]
"""Says what to do about a record without a group id."""


class Columns:
    """Reads roles out of records: declared columns first, else the first usual name that is there."""

    def __init__(self, mapping: ColumnMapping, usual: Mapping[str, tuple[str, ...]], advice: Advice) -> None:
        self.separator = mapping.separator
        self.statuses = mapping.statuses
        self._declared = dict(mapping.columns)
        self._usual = usual
        self._advice = advice
        self._missing = {name for names in self._declared.values() for name in names}
        self._found: set[str] = set()
        self._example: tuple[str, Record] | None = None

    def value(self, role: str, record: Record) -> Any:
        """The value of a role, or ABSENT."""
        for name in self._declared.get(role) or self._usual.get(role, ()):
            value = lookup(record, name)
            if value is not ABSENT:
                return value
        return ABSENT

    def get(self, role: str, record: Record) -> Any:
        """The value of a role; None if it is absent."""
        value = self.value(role, record)
        return None if value is ABSENT else value

    def each(self, role: str, record: Record) -> dict[str, Any]:
        """Values by column of a role that may have several; empty if none is there."""
        names = self._declared.get(role)
        if names is None:
            names = next(((n,) for n in self._usual.get(role, ()) if lookup(record, n) is not ABSENT), ())
        values = {name: lookup(record, name) for name in names}
        return {name: value for name, value in values.items() if value is not ABSENT}

    def identity(self, role: str, record: Record, where: str) -> str | None:
        """The id that one or several columns make together; None if a column is absent or empty.

        Raises:
            TraceError: a column holds a list or an object, which identifies nothing.
        """
        values = self.each(role, record)
        if not values or len(values) < len(self._declared.get(role, ())):
            return None
        parts = [id_text(value, f"{where}: column {name!r}") for name, value in values.items()]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return shortened(known[0] if len(known) == 1 else "|".join(map(_escaped, known)))

    def group_id(self, record: Record, where: str) -> str:
        """The identity of the record's group.

        Raises:
            TraceError: it has none; the message says what to do.
        """
        found = self.identity("group", record, where)
        if found is not None:
            return found
        names = self._declared.get("group") or self._usual.get("group", ())
        declared = "group" in self._declared
        what = f"no group id in {(' + ' if declared else ' or ').join(names)}"
        raise TraceError(f"{where}: {what}; {self._advice(record)}")

    def notice(self, record: Record, where: str) -> None:
        """Remember which roles and declared columns occur at all."""
        if self._example is None:
            self._example = (where, record)
        if self._missing:
            self._missing = {name for name in self._missing if lookup(record, name) is ABSENT}
        for role in ("actions", "reward"):
            if role not in self._found and self.value(role, record) is not ABSENT:
                self._found.add(role)

    def occurs(self, role: str) -> bool:
        """Whether any record noticed so far has an `actions` or `reward` column."""
        return role in self._found

    def columns_seen(self) -> str:
        """The columns of the first record, for messages."""
        return column_list(self._example[1]) if self._example else "no records"

    def require_declared(self) -> None:
        """Complain about declared columns that no record had.

        Raises:
            TraceError: a column is missing; the message lists the columns of the first record.
        """
        if self._missing and self._example is not None:
            where, record = self._example
            names = ", ".join(map(repr, sorted(self._missing)))
            raise TraceError(f"{where}: no record has a column {names} ({column_list(record)})")


def lookup(record: Record, name: str) -> Any:
    """A column by its literal name, else along its dots into nested objects; ABSENT if not there."""
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return ABSENT
        value = value[part]
    return value


def column_list(record: Record) -> str:
    """The names of a record's columns, as far as they fit into a message."""
    names = [" ".join(str(name).split())[:60] for name in record if not str(name).startswith("_")]
    more = f", and {len(names) - _SHOWN_COLUMNS} more" if len(names) > _SHOWN_COLUMNS else ""
    return f"columns: {', '.join(names[:_SHOWN_COLUMNS]) or 'none'}{more}"


def shortened(identity: str) -> str:
    """An id as it stands; a very long one (a prompt used as id) as its beginning and a hash."""
    if len(identity) <= _LONGEST_ID:
        return identity
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{identity[:100]}...{digest}"


def id_text(value: Any, where: str) -> str | None:
    """An id as text; None if the cell is empty. A number that a table made a float is the whole one it was.

    Raises:
        TraceError: the value is a list or an object.
    """
    if value is None or value == "" or value != value:  # NaN is how tables spell an empty cell
        return None
    if isinstance(value, (dict, list)):
        kind = "a list" if isinstance(value, list) else "an object"
        raise TraceError(f"{where} holds {kind}, which cannot identify a group or rollout")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _escaped(part: str) -> str:
    return part.replace("\\", "\\\\").replace("|", "\\|")
