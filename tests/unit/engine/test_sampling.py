"""What requests reveal about the samples of a group."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from selective_rollout.engine.sampling import IdenticalSamplingWarning, SamplingWatch, UnknownUsageWarning

SAME: list[tuple[dict[str, Any], str]] = [
    ({"seed": 7}, "seed"),
    ({"seed": 7, "temperature": 0.7}, "seed"),
    ({"temperature": 0}, "temperature_zero"),
    ({"temperature": 0.0, "seed": None}, "temperature_zero"),
]


@pytest.mark.parametrize(("settings", "reason"), SAME)
def test_rollouts_that_are_asked_for_alike_are_copies(settings: dict[str, Any], reason: str) -> None:
    watch = SamplingWatch("g")
    watch.asked(0, settings)
    assert watch.copies([0, 1]) is None, "the other one has not asked yet"
    watch.asked(1, settings)
    with pytest.warns(IdenticalSamplingWarning, match="'g' are copies"):
        assert watch.copies([0, 1]) == reason
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert watch.copies([0, 1]) == reason, "it is said once"


@pytest.mark.parametrize(
    "settings", [({"seed": 1}, {"seed": 2}), ({"temperature": 0.7},) * 2, ({}, {}), ({"seed": 1}, {})]
)
def test_others_are_not(settings: tuple[dict[str, Any], dict[str, Any]]) -> None:
    watch = SamplingWatch("g")
    for rollout, asked in enumerate(settings):
        watch.asked(rollout, asked)
    assert watch.copies([0, 1]) is None


def test_the_first_request_speaks_for_its_rollout() -> None:
    watch = SamplingWatch("g")
    for seed in (1, 9):
        watch.asked(0, {"seed": seed})
    watch.asked(1, {"seed": 9})
    assert watch.copies([0, 1]) is None


def test_a_rollout_that_has_ended_is_not_waited_for() -> None:
    watch = SamplingWatch("g")
    watch.asked(0, {"seed": 7})
    watch.asked(1, {"seed": 7})
    with pytest.warns(IdenticalSamplingWarning):
        assert watch.copies([0]) == "seed"


def test_one_response_for_two_rollouts_is_one_sample_unless_ids_say_nothing() -> None:
    watch = SamplingWatch("g")
    watch.sampled(0, "a")
    watch.sampled(1, None)
    assert watch.copies([]) is None
    watch.sampled(1, "a")
    with pytest.warns(IdenticalSamplingWarning, match="one and the same response"):
        assert watch.copies([]) == "response_id"
    watch.repeated()
    assert watch.copies([]) is None


def test_a_cache_and_a_declared_temperature_are_told_at_once() -> None:
    with pytest.warns(IdenticalSamplingWarning, match="set_llm_cache"):
        assert SamplingWatch("g", has_cache=True).declared.cached
    with pytest.warns(IdenticalSamplingWarning, match="temperature 0"):
        SamplingWatch("g", 0.0)


def test_what_was_said_at_the_start_is_not_said_again_when_the_cache_answers() -> None:
    with pytest.warns(IdenticalSamplingWarning, match="set_llm_cache"):
        watch = SamplingWatch("g", has_cache=True)
    for rollout in range(2):
        watch.sampled(rollout, "a")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert watch.copies([0, 1]) == "response_id"


def test_several_choices_per_request_warn_once() -> None:
    watch = SamplingWatch("g")
    with pytest.warns(UnknownUsageWarning, match="n=3"):
        watch.asked(0, {"n": 3})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.asked(1, {"n": 3})
    assert watch.copies([0, 1]) is None
