"""How a recorded rollout ended."""

from __future__ import annotations

from typing import Any

import pytest

from selective_rollout.errors import TraceError
from selective_rollout.trace.importers.status import ending
from selective_rollout.types import RolloutStatus


def status(word: Any = None, error: Any = None, *, acted: bool | None = True, scored: bool = True) -> str:
    found, failure = ending(word, error, acted=acted, scored=scored, declared={}, where="f:1")
    assert (failure is not None) == (found is RolloutStatus.FAILED)
    return f"{found}/{failure.kind}" if failure else str(found)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("done", "finished"),
        ("Success", "finished"),
        ("max-steps", "truncated"),
        ("infra_abort", "failed/infra_abort"),
        ("Timeout", "failed/timeout"),
        ("cancelled", "failed/cancelled"),
        ("running", "running"),
        (float("nan"), "finished"),
        (None, "finished"),
    ],
)
def test_status_words(word: Any, expected: str) -> None:
    assert status(word) == expected


def test_an_error_without_a_word_is_a_failure_of_infrastructure() -> None:
    assert status(error="connection reset") == "failed/error"
    assert status(error={"message": "boom"}, acted=None) == "failed/error"
    assert status(error="tool said no", word="done") == "finished"
    for nothing in ("", None, False, {}, float("nan")):
        assert status(error=nothing) == "finished"


def test_a_rollout_that_never_acted_and_does_not_say_it_ended_is_no_behaviour() -> None:
    assert status(acted=False) == "failed/no_action"
    assert status("done", acted=False) == "finished"
    assert status(acted=None) == "finished"


def test_failed_means_the_task_where_there_is_behaviour_and_a_reward() -> None:
    assert status("failed") == "finished"
    assert status("failed", scored=False) == "failed/failed"
    assert status("failed", acted=False) == "failed/failed"


@pytest.mark.parametrize("word", ["vanished", 200, True, ["done"]])
def test_an_unknown_word_is_an_error_that_shows_how_to_declare_it(word: Any) -> None:
    with pytest.raises(TraceError, match=r"f:1: unknown status .*status:WORD=MEANING"):
        status(word)


def test_words_can_be_declared() -> None:
    declared = {"timeout": RolloutStatus.TRUNCATED, "200": RolloutStatus.FINISHED}
    for word, expected in (("timeout", RolloutStatus.TRUNCATED), (200, RolloutStatus.FINISHED)):
        found, failure = ending(word, None, acted=True, scored=True, declared=declared, where="f:1")
        assert (found, failure) == (expected, None)
