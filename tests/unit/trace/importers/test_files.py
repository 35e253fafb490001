"""Reading records out of files, also hostile ones."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selective_rollout.errors import TraceError
from selective_rollout.trace.importers import files, tables
from selective_rollout.trace.importers.files import Place, RecordFile
from selective_rollout.trace.importers.opening import input_files, labels, open_records

RECORDS = st.lists(
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9) | st.none(), max_size=3),
    min_size=1,
    max_size=5,
)


def scanned(path: Path) -> tuple[RecordFile, list[tuple[Place, dict[str, Any]]], list[str]]:
    skipped: list[str] = []
    file = open_records(path)
    found = list(file.scan(lambda where, reason: skipped.append(f"{where}: {reason}")))
    for place, record in reversed(found):
        assert file.load(place) == record
    file.close()
    return file, found, skipped


def refusal(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        scanned(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(path))


@given(RECORDS, st.sampled_from([None, 1]), st.booleans(), st.sampled_from(["\n", "\r\n"]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lines_and_arrays_give_the_same_records(
    tmp_path: Path, records: list[dict[str, Any]], indent: int | None, bom: bool, newline: str
) -> None:
    mark = b"\xef\xbb\xbf" if bom else b""
    lines = tmp_path / "a.jsonl"
    lines.write_bytes(mark + (newline + newline).join(map(json.dumps, records)).encode())
    array = tmp_path / "a.json"
    array.write_bytes(mark + json.dumps(records, indent=indent).replace("\n", newline).encode())
    assert [record for _, record in scanned(lines)[1]] == records
    assert [record for _, record in scanned(array)[1]] == records


@given(st.lists(st.tuples(st.text("ab\"\n,' é", max_size=6), st.text('xy\n"', max_size=6)), max_size=5))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_csv_cells_may_hold_quotes_and_line_breaks(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerows([("p", "c"), *rows])
    path = tmp_path / "a.csv"
    path.write_bytes(text.getvalue().encode())
    assert [tuple(record.values()) for _, record in scanned(path)[1]] == [
        (p or None, c or None) for p, c in rows
    ]


def test_lines_are_numbered_as_an_editor_does(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('\n[\n  {"a": 1},\n  {\n    "a": 2\n  }, {"a": 3}\n]\n')
    assert [place.line for place, _ in scanned(path)[1]] == [3, 4, 6]
    table = tmp_path / "a.csv"
    table.write_text('p,c\nx,"1\n2"\n\ny,3\n')
    assert [place.line for place, _ in scanned(table)[1]] == [2, 5]


def test_csv_words_become_values(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b,c,d\nTrue,false,,1.5\n")
    [(_, record)] = scanned(path)[1]
    assert record == {"a": True, "b": False, "c": None, "d": "1.5"}


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b'{"a": 1}\n{"a": 2\n{"a": 3}\n', ":2: not JSON"),
        (b'{"a": 1}\n[1]\n', ":2: a record must be a JSON object, not list"),
        (b'"text"\n', ":1: a record must be a JSON object, not str"),
        (b'{"a": "\xff"}\n', ":1: not UTF-8 (byte 8: 0xff)"),
        (b"\xff\xfe{\x00", ":1: the file is UTF-16"),
        (b'{"a":' + b"[" * 100_000 + b"}\n", ":1: JSON nested too deeply"),
        (b'{"a":' + b"9" * 10_000 + b"}\n", ":1: not JSON (Exceeds the limit"),
        (b'{\n  "results": []\n}\n', ":1: not JSON"),
        (b'[{"a": 1},\n{"b": 2}', ":2: not a JSON array: the array is not closed"),
        (b'[{"a": 1}\n{"b": 2}]', ":1: not a JSON array: no comma"),
        (b'[{"a": 1},\n\n3]', ":3: a record must be a JSON object, not int"),
        (b'[{"a": 1},\n{"a": nope}]', ":2: not JSON"),
        (b'[{"a": 1}]\n[{"a": 1}]', ":1: text after the JSON array"),
        (b"[" * 100_000, ":1: JSON nested too deeply"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_its_place(tmp_path: Path, raw: bytes, says: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(raw)
    assert refusal(path).startswith(says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n3\n", ":3: 1 cells under 2 column names"),
        ('a,b\n1,"2\n3,4\n', ":2: not CSV"),
        ('a,b\n1,"2"x\n', ":2: not CSV"),
    ],
)
def test_broken_tables_are_one_line_with_their_place(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    assert refusal(path).startswith(says)


def test_a_torn_last_line_is_skipped_and_told(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": ')
    _, found, skipped = scanned(path)
    assert [record for _, record in found] == [{"a": 1}]
    assert skipped == [f"{path}:2: the last line was torn by a killed writer"]


def test_endless_lines_and_arrays_are_refused_before_they_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 2**20)
    monkeypatch.setattr(files, "MAX_ARRAY_BYTES", 2**20)
    monkeypatch.setattr(tables, "MAX_LINE_BYTES", 2**20)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": "' + b"x" * 2**21)
    assert refusal(path) == ":1: the line is longer than 1 MiB"
    path.write_bytes(b"[" + b" " * 2**21)
    assert "a JSON array of more than 1 MiB" in refusal(path)
    table = tmp_path / "a.csv"
    table.write_bytes(b'a\n"' + (b"x" * 1000 + b"\n") * 1100)
    assert "field larger than field limit" in refusal(table)


def test_folders_give_their_files_by_name(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.json", "notes.txt"):
        (tmp_path / name).write_text("{}")
    assert input_files([tmp_path]) == [tmp_path / "a.json", tmp_path / "b.jsonl"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match="holds no .jsonl"):
        input_files([tmp_path / "empty"])
    with pytest.raises(TraceError, match="no such file"):
        input_files([tmp_path / "missing.jsonl"])
    with pytest.raises(TraceError, match="given twice"):
        input_files([tmp_path, tmp_path / "b.jsonl"])
    with pytest.raises(TraceError, match="no regular file"):
        input_files(["/dev/null"])


def test_labels_are_as_short_as_telling_files_apart_allows() -> None:
    assert labels([Path("x/a.json"), Path("x/b.json")]) == ["a", "b"]
    assert labels([Path("m1/h/results.jsonl"), Path("m2/h/results.jsonl")]) == [
        "m1/h/results",
        "m2/h/results",
    ]
