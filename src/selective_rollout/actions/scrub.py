"""Volatile values: what differs between two equal actions only because of when and where they ran.

A pattern belongs here only if an ordinary word, number, date or file name cannot match it: a scrubbed
difference is a difference that the gate will never see. Bare integers (also epoch seconds) are therefore
never touched, since order and product ids look the same; name such arguments in `ignore_args`.
"""

from __future__ import annotations

import re
from typing import Any, Final

_UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
# With seconds, as clocks print it; a plain date or 09:30 is something an agent chooses.
_MONTH, _DAY = r"(?:0[1-9]|1[0-2])", r"(?:0[1-9]|[12]\d|3[01])"
_HOUR, _SIXTY = r"(?:[01]\d|2[0-3])", r"[0-5]\d"
_SECONDS: Final = rf"{_HOUR}:{_SIXTY}:[0-6]\d(?:[.,]\d+)?"
_ZONE: Final = r"(?:\s?(?:z|utc|gmt|[+-]\d{2}:?\d{2}))?"
_MONTH_NAME: Final = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
_DAY_NAME: Final = r"(?:mon|tue|wed|thu|fri|sat|sun)"
_CLOCK: Final = "|".join(
    (
        rf"\d{{4}}[-/]{_MONTH}[-/]{_DAY}[t ]{_SECONDS}{_ZONE}",
        rf"\d{{4}}{_MONTH}{_DAY}t{_HOUR}{_SIXTY}[0-6]\d(?:\.\d+)?{_ZONE}",  # ISO 8601 without separators
        rf"(?:{_DAY_NAME},\s)?\d{{1,2}}[ /-]{_MONTH_NAME}[ /-]\d{{4}}[ :]{_SECONDS}{_ZONE}",  # mail, HTTP
        rf"{_DAY_NAME}\s{_MONTH_NAME}\s+\d{{1,2}}\s{_SECONDS}(?:\s[a-z]{{3,4}})?\s\d{{4}}",  # ctime, date
    )
)
# time.time(): ten digits and a fraction longer than any price's.
_EPOCH: Final = r"1\d{9}\.\d{3,9}"
# 16 digits and up, letters and digits mixed: span ids, object ids, hashes; no word and no card number.
_HEX: Final = r"(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{16,}"
_ADDRESS: Final = r"(?<=\bat )0x[0-9a-f]{6,16}"
# The random part of names that tempfile and mktemp make up; /tmp/report.txt is a chosen name.
_TEMPORARY: Final = (
    r"(?<=[/\\])tmp(?:\.(?-i:(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{10})|(?=[a-z0-9_]*\d)[a-z0-9][a-z0-9_]{7})"
)

_MARKS: Final = {
    "uuid": _UUID,
    "time": f"{_CLOCK}|{_EPOCH}",
    "addr": _ADDRESS,
    "tmp": _TEMPORARY,
    "hex": _HEX,
}
_VOLATILE: Final = re.compile(
    "|".join(rf"(?P<{mark}>(?<![0-9a-z])(?:{pattern})(?![0-9a-z]))" for mark, pattern in _MARKS.items()),
    re.IGNORECASE,
)


def scrub_text(text: str) -> str:
    """Replace volatile parts by `<uuid>`, `<time>`, `<addr>`, `<tmp>` or `<hex>`; idempotent."""
    return _VOLATILE.sub(lambda match: f"<{match.lastgroup}>", text)


def scrub_value(value: Any) -> Any:
    """Return a JSON value with its strings and clock numbers scrubbed; keys stay as they are."""
    if isinstance(value, str):
        return scrub_text(value)
    if isinstance(value, float):
        return scrub_text(written) if _VOLATILE.fullmatch(written := repr(value)) else value
    if isinstance(value, dict):
        return {key: scrub_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [scrub_value(item) for item in value]
    return value
