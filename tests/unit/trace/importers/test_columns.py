"""Which columns mean what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selective_rollout.errors import ConfigError, TraceError
from selective_rollout.trace.importers import ColumnMapping
from selective_rollout.trace.importers.columns import ABSENT, Columns, column_list, lookup, shortened
from selective_rollout.types import RolloutStatus


def columns_of(*items: str, usual: dict[str, tuple[str, ...]] | None = None) -> Columns:
    return Columns(ColumnMapping.parse(items), usual or {}, column_list)


def test_a_mapping_is_written_as_roles_and_columns() -> None:
    mapping = ColumnMapping.parse(["group=source+model+id, reward=success", "status:agent_timeout=truncated"])
    assert mapping.columns == {"group": ("source", "model", "id"), "reward": ("success",)}
    assert mapping.statuses == {"agent_timeout": RolloutStatus.TRUNCATED}


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ("groups=id", "cannot map 'groups'"),
        ("group", "write ROLE=COLUMN"),
        ("group=a,group=b", "given twice"),
        ("group=a+", "at least one column"),
        ("answer=a+b", "takes one column"),
        ("status:odd=maybe", "a status is one of"),
    ],
)
def test_a_malformed_mapping_is_one_clear_error(item: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ColumnMapping.parse([item])


def test_a_dotted_name_reaches_inside_unless_it_is_a_column_itself() -> None:
    assert lookup({"info": {"error": "x"}}, "info.error") == "x"
    assert lookup({"info.error": 1, "info": {"error": 2}}, "info.error") == 1
    assert lookup({"info": None}, "info.error") is ABSENT


def test_a_record_without_its_group_names_the_columns_there_are() -> None:
    with pytest.raises(TraceError, match=r"^a.jsonl:3: no group id in uid; columns: id, reward"):
        columns_of("group=uid").group_id({"id": 1, "reward": 0}, "a.jsonl:3")


def test_a_group_needs_all_of_its_columns() -> None:
    columns = columns_of("group=model+id")
    assert columns.group_id({"model": "m", "id": 0}, "f:1") == "m|0"
    for record in ({"id": 0}, {"model": None, "id": 0}, {"model": "", "id": 0}):
        with pytest.raises(TraceError, match="no group id"):
            columns.group_id(record, "f:1")


def test_lists_and_objects_identify_nothing() -> None:
    with pytest.raises(TraceError, match="holds a list"):
        columns_of("group=prompt").group_id({"prompt": [{"role": "user"}]}, "f:1")


def test_a_declared_column_that_no_record_has_is_an_error() -> None:
    columns = columns_of("group=id", "reward=sucess")
    columns.notice({"id": 1, "success": 0}, "f:1")
    columns.notice({"id": 2, "success": 1}, "f:2")
    with pytest.raises(TraceError, match=r"f:1: no record has a column 'sucess' \(columns: id, success\)"):
        columns.require_declared()


def test_a_declared_column_may_be_left_out_of_some_records() -> None:
    columns = columns_of("group=id", "reward=score")
    columns.notice({"id": 1}, "f:1")
    columns.notice({"id": 2, "score": 1}, "f:2")
    columns.require_declared()


def test_usual_names_are_tried_in_order() -> None:
    columns = columns_of(usual={"group": ("group_id", "group")})
    assert columns.group_id({"group": "a"}, "f:1") == "a"
    assert columns.group_id({"group": "a", "group_id": "b"}, "f:1") == "b"


@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), min_size=2, max_size=2, unique=True))
def test_different_parts_never_make_the_same_id(pairs: list[tuple[str, str]]) -> None:
    columns = columns_of("group=a+b")
    ids = [columns.identity("group", {"a": a, "b": b}, "f:1") for a, b in pairs]
    assert ids[0] is None or ids[1] is None or ids[0] != ids[1]


def test_long_ids_are_shortened_and_stay_apart() -> None:
    first, second = (shortened("p" * 1000 + end) for end in "ab")
    assert first != second
    assert len(first) < 200
    assert shortened("short") == "short"
