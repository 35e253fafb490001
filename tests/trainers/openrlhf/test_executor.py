"""The gated executor in OpenRLHF's own engine actor on Ray, behind its own generator of samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import ray

ALL = 4 * 6
"""Requests of a group that runs to its end."""
AT_THE_CHECK = 4 * 2


def prompts_of(samples: list[Any]) -> Counter[str]:
    return Counter(sample.prompts[0] for sample in samples)


def test_a_cut_group_is_filtered_out_and_replaced(bench: Callable[..., Any]) -> None:
    made = bench()
    samples = made.samples(["a=", "b", "c=", "d", "e", "f"], filtering=True, batch=3)
    assert prompts_of(samples) == {"b:": 4, "d:": 4, "e:": 4}
    assert Counter(sample.rewards.item() for sample in samples) == {0.0: 6, 1.0: 6}
    seen = made.seen()
    assert seen["meter"]["gate/cut"] == 2
    for task in ("a=", "c="):
        assert AT_THE_CHECK <= seen["asked"][task] <= AT_THE_CHECK + 3
        assert seen["aborted"][task] == 3
    assert {seen["asked"][task] for task in "bde"} == {ALL}
    assert (seen["running"], seen["open"]) == (0, 0)

    evaluated = made.evaluation(["a=", "b"])
    assert prompts_of(evaluated) == {"a=:": 4, "b:": 4}
    assert sum(sample.rewards.item() for sample in evaluated) == 2.0
    assert made.seen()["meter"]["gate/groups"] == seen["meter"]["gate/groups"]

    with pytest.raises(ray.exceptions.RayTaskError, match="fell in"):
        made.samples(["d!"], filtering=True, batch=1)
    assert prompts_of(made.samples(["g"], filtering=True, batch=1)) == {"g:": 4}


def test_without_filtering_the_rows_stay_and_have_no_score_to_speak_of(bench: Callable[..., Any]) -> None:
    made = bench(filtering=False)
    samples = made.samples(["a=", "a=", "b", "b"], filtering=False, batch=4, logprobs=True)
    assert prompts_of(samples) == {"a=:": 8, "b:": 8}
    for sample in samples:
        dropped = sample.prompts[0] == "a=:"
        assert sample.info["gate/kept"].item() == float(not dropped)
        assert sample.action_mask.sum().item() == 1 or not dropped
        assert sample.scores.item() in (0.0, 1.0)
        assert sample.rollout_log_probs.shape == sample.action_mask.shape
    assert len({frozenset(sample.info) for sample in samples}) == 1
    seen = made.seen()
    assert seen["meter"]["gate/groups"] == 4
    assert seen["meter"]["gate/cut"] == 2
    assert seen["asked"]["a="] <= 2 * (AT_THE_CHECK + 3)


def test_without_the_gate_every_request_is_made(bench: Callable[..., Any], ungated: str) -> None:
    made = bench(ungated)
    made.samples(["a=", "b"], filtering=False, batch=2)
    seen = made.seen()
    assert seen["asked"] == {"a=": ALL, "b": ALL}
    assert seen["aborted"] == {}
