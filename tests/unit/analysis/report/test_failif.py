"""Checks of one name, one comparison and one number."""

from __future__ import annotations

import pytest

from selective_rollout.analysis.report.failif import Check, parse_check
from selective_rollout.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("loss>0.1", Check("loss", ">", 0.1)),
        (" efficiency < 1 ", Check("efficiency", "<", 1.0)),
        ("wrong>=1e0", Check("wrong", ">=", 1.0)),
        ("cuts != 0", Check("cuts", "!=", 0.0)),
        ("change_loss_low<=-0.5", Check("change_loss_low", "<=", -0.5)),
    ],
)
def test_a_check_is_read(text: str, check: Check) -> None:
    assert parse_check(text) == check


@pytest.mark.parametrize(
    "text",
    [
        "",
        "loss",
        "loss>",
        ">1",
        "loss > x",
        "loss>nan",
        "loss>inf",
        "loss=1",
        "__import__('os')>1",
        "loss>1 or 1",
        "Loss>1",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write a name, a comparison and a number"):
        parse_check(text)


@pytest.mark.parametrize(
    ("text", "fails"),
    [("loss>0.1", True), ("loss>0.2", False), ("loss>=0.2", True), ("loss<0.2", False), ("loss!=0.2", False)],
)
def test_it_fails_when_it_holds(text: str, fails: bool) -> None:
    assert (parse_check(text).failure({"loss": 0.2}) is not None) is fails


def test_what_is_unknown_cannot_pass() -> None:
    failure = parse_check("loss>0.1").failure({"loss": None})
    assert failure == "loss > 0.1: loss is unknown here, so the check cannot pass"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown name; known are efficiency, loss"):
        parse_check("los>1").failure({"loss": 1, "efficiency": 1})
