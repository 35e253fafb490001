"""Which rollout a request belongs to: three headers, or a path that starts with /g/."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import unquote_to_bytes

RawHeaders: TypeAlias = Sequence[tuple[bytes, bytes]]

PREFIX: Final = b"x-selective-rollout-"
GROUP: Final = PREFIX + b"group"
ROLLOUT: Final = PREFIX + b"rollout"
SIZE: Final = PREFIX + b"group-size"
TASK: Final = PREFIX + b"task"
_KNOWN: Final = (GROUP, ROLLOUT, SIZE, TASK)

MOST_ROLLOUTS: Final = 512
"""A decision compares every pair, and all clients wait for it."""
_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_NUMBER: Final = re.compile(rb"[0-9]{1,4}")
_PATH: Final = re.compile(rb"/g/([^/]*)/([^/]*)/([^/]*)(/v1/.*)", re.DOTALL)
_SLASHES: Final = re.compile(rb"[/\\]")
_DOTS: Final = frozenset({b".", b".."})


class BadAddress(Exception):
    """The request says unclearly to which rollout it belongs; the text is for the client."""


@dataclass(frozen=True, slots=True)
class Address:
    """One rollout of one group, as a client names it."""

    group: str
    rollout: int
    size: int
    task: str | None = None
    """The independent unit of statistics; None: the group is its own."""


def is_plain(path: bytes) -> bool:
    """Whether a raw path means the same to every server: it goes nowhere by dots, written out or coded."""
    decoded = unquote_to_bytes(path)
    return b"\\" not in path and b"\0" not in decoded and not _DOTS.intersection(_SLASHES.split(decoded))


def read_address(path: bytes, headers: RawHeaders, size: int | None) -> tuple[Address | None, bytes]:
    """Take the address out of a request.

    Args:
        path: its raw path, without the query.
        headers: its headers, names in lower case.
        size: size of groups whose requests name none.

    Returns:
        The address, None for a request of no group; and the path for the upstream server, from /v1 on.

    Raises:
        BadAddress: it is incomplete, contradicts itself, or holds values out of range.
    """
    given: dict[bytes, bytes] = {}
    for name, value in headers:
        if name.startswith(PREFIX):
            if name in given or name not in _KNOWN:
                raise BadAddress(f"header {name.decode('latin-1')} is {_trouble(name in given)}")
            given[name] = value
    if path.startswith(b"/g/"):
        return _from_path(path, given)
    if not given:
        return None, path
    if GROUP not in given or ROLLOUT not in given:
        raise BadAddress("x-selective-rollout-group and x-selective-rollout-rollout go together")
    if SIZE not in given and size is None:
        raise BadAddress("x-selective-rollout-group-size is missing, and the gateway has no --group-size")
    group_size = _number("group-size", given[SIZE]) if SIZE in given else size or 0
    return _address(given[GROUP], given[ROLLOUT], group_size, given.get(TASK)), path


def read_id(what: str, value: bytes) -> str:
    """Check an id.

    Raises:
        BadAddress: it is too long, empty, or holds other characters.
    """
    if not _ID.fullmatch(value):
        raise BadAddress(f"{what} must be 1 to 128 characters of A-Z a-z 0-9 . _ : -")
    return value.decode("ascii")


def _from_path(path: bytes, given: dict[bytes, bytes]) -> tuple[Address, bytes]:
    found = _PATH.fullmatch(path)
    if found is None:
        raise BadAddress("a group's address is /g/GROUP/ROLLOUT/GROUP_SIZE/v1/...")
    if given.keys() - {TASK}:
        raise BadAddress("the group is named twice, in the path and in headers: choose one")
    size = _number("group-size", found[3])
    return _address(found[1], found[2], size, given.get(TASK)), found[4]


def _address(group: bytes, rollout: bytes, size: int, task: bytes | None) -> Address:
    number = _number("rollout", rollout)
    if not 2 <= size <= MOST_ROLLOUTS:
        raise BadAddress(f"group-size must be a whole number from 2 to {MOST_ROLLOUTS}, not {size}")
    if number >= size:
        raise BadAddress(
            f"rollout must be a whole number from 0 to group-size - 1 = {size - 1}, not {number}"
        )
    return Address(read_id("group", group), number, size, None if task is None else read_id("task", task))


def _number(what: str, value: bytes) -> int:
    if not _NUMBER.fullmatch(value):
        raise BadAddress(f"{what} must be a whole number of at most four digits")
    return int(value)


def _trouble(twice: bool) -> str:
    return "given twice" if twice else "unknown (known: -group, -rollout, -group-size, -task)"
