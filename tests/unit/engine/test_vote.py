"""The draw of a group's own order."""

from __future__ import annotations

from selective_rollout.engine.survivor import first_of, survivor_order


def test_the_order_is_the_groups_own() -> None:
    assert survivor_order("g1", 8) == survivor_order("g1", 8)
    assert sorted(survivor_order("g1", 8)) == list(range(8))
    assert len({tuple(survivor_order(f"g{i}", 8)) for i in range(50)}) > 40
    assert first_of([3, 1, 2], {1, 2}) == 1
    assert first_of([3, 1], set()) is None
