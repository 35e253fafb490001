"""Server-sent events out of bytes that break anywhere."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selective_rollout.errors import PolicyError
from selective_rollout.policy import events
from selective_rollout.policy.events import EventParser

_FIELDS = st.sampled_from(
    [
        "data: a",
        "data:b",
        "data:  c",
        "data",
        "data: é\u2028ü",
        ": ping",
        "event: x",
        "id: 1",
        "",
        "",
        "nonsense",
    ]
)
_ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def parse(parts: list[bytes]) -> list[bytes]:
    parser = EventParser()
    return [event for part in parts for event in parser.feed(part)]


def oracle(lines: list[str]) -> list[bytes]:
    """The standard's words, line by line."""
    found, data = [], None
    for line in lines:
        name, _, value = line.partition(":")
        if not line:
            if data is not None:
                found.append("\n".join(data).encode())
            data = None
        elif name == "data":
            data = [*(data or []), value.removeprefix(" ")]
    return found


@given(
    lines=st.lists(_FIELDS, max_size=12),
    end=_ENDS,
    bom=st.booleans(),
    cuts=st.lists(st.integers(0, 120), max_size=8),
)
def test_events_do_not_depend_on_where_the_bytes_break(
    lines: list[str], end: str, bom: bool, cuts: list[int]
) -> None:
    whole = (("\ufeff" if bom else "") + "".join(line + end for line in lines)).encode()
    places = sorted({0, *(cut for cut in cuts if cut < len(whole)), len(whole)})
    parts = [whole[a:b] for a, b in pairwise(places)]
    assert parse(parts) == oracle(lines)


def test_an_event_without_its_blank_line_is_none() -> None:
    assert parse([b'data: {"a": 1}\n\ndata: {"b"']) == [b'{"a": 1}']


@pytest.mark.parametrize("part", [b"x" * 40, b"data: " + b"y" * 34 + b"\n"])
def test_an_endless_event_is_refused(part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_MOST_EVENT_BYTES", 100)
    with pytest.raises(PolicyError, match="larger than 64 MiB"):
        parse([part] * 4)
