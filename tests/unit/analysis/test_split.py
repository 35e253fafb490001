"""Splits by task, one group per task, and the marks of a sweep."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from selective_rollout.analysis.split import OnePerTask, Split, mark_swept, require_unseen
from selective_rollout.errors import ConfigError


def test_a_task_stays_in_its_part() -> None:
    split = Split()
    parts = {f"t{i}": split.part(f"t{i}") for i in range(2000)}
    assert all(split.part(task) == part for task, part in parts.items())
    assert 0.37 < sum(part == "choose" for part in parts.values()) / 2000 < 0.43
    assert parts != {task: Split(seed=1).part(task) for task in parts}


def test_a_larger_share_only_adds_tasks_to_choose_on() -> None:
    small, large = Split(0.3), Split(0.6)
    assert all(large.part(f"t{i}") == "choose" for i in range(500) if small.part(f"t{i}") == "choose")


def test_without_a_share_everything_certifies() -> None:
    assert {Split(0.0).part(f"t{i}") for i in range(50)} == {"certify"}


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_something_must_be_left_to_certify_on(share: float) -> None:
    with pytest.raises(ConfigError, match=r"must be in \[0, 1\)"):
        Split(share)


def test_one_group_per_task_whatever_the_order() -> None:
    groups = [(f"t{i % 7}", f"g{i}") for i in range(50)]

    def drawn(order: list[tuple[str, str]], seed: int = 0) -> list[str]:
        draw: OnePerTask[str] = OnePerTask(seed)
        for task, group in order:
            draw.offer(task, group, group)
        assert len(draw) == 7
        return draw.items

    shuffled = groups.copy()
    random.Random(1).shuffle(shuffled)
    assert drawn(groups) == drawn(shuffled)
    assert drawn(groups) != drawn(groups, seed=1)
    assert {int(group[1:]) % 7 for group in drawn(groups)} == set(range(7))


def test_every_group_of_a_task_is_equally_likely() -> None:
    first = 0
    for seed in range(400):
        draw: OnePerTask[int] = OnePerTask(seed)
        for group in range(4):
            draw.offer("t", f"g{group}", group)
        first += draw.items == [0]
    assert 70 < first < 130


def trace(folder: Path) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("{}\n")
    return path


def test_a_sweep_of_the_choose_part_leaves_the_rest(tmp_path: Path) -> None:
    trace(tmp_path)
    require_unseen([tmp_path], Split())
    mark_swept([tmp_path], Split())
    mark_swept([tmp_path], Split())
    require_unseen([tmp_path], Split())
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".jsonl"] == ["trace.jsonl"]


@pytest.mark.parametrize("other", [Split(seed=1), Split(0.5), Split(0.0)])
def test_another_split_would_certify_on_what_was_seen(tmp_path: Path, other: Split) -> None:
    mark_swept([trace(tmp_path)], Split())
    with pytest.raises(ConfigError, match="a sweep has looked at another part"):
        require_unseen([tmp_path], other)


def test_after_a_sweep_of_all_nothing_is_left(tmp_path: Path) -> None:
    mark_swept([trace(tmp_path)], Split())
    mark_swept([tmp_path], None)
    with pytest.raises(ConfigError, match=r"trace\.jsonl: a sweep has looked at all of its tasks \(--all\)"):
        require_unseen([tmp_path], Split())


def test_a_mark_that_cannot_be_left_is_an_error(tmp_path: Path) -> None:
    path = trace(tmp_path)
    (tmp_path / "trace.jsonl.swept").mkdir()
    with pytest.raises(ConfigError, match="cannot mark the trace as swept"):
        mark_swept([path], None)
