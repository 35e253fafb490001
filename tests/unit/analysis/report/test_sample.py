"""A bounded sample: the same groups in any order, ranked ones first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from selective_rollout.analysis.report.sample import BoundedSample

items = st.lists(
    st.tuples(st.integers(0, 2), st.text("abcdef", min_size=1, max_size=4)), unique_by=lambda i: i[1]
)


@given(items, st.integers(0, 5), st.randoms(use_true_random=False))
def test_what_is_kept_does_not_depend_on_the_order(
    items: list[tuple[int, str]], most: int, random: object
) -> None:
    def kept(order: list[tuple[int, str]]) -> set[str]:
        sample: BoundedSample[str] = BoundedSample(most)
        for rank, key in order:
            if sample.would_keep(rank, key):
                sample.offer(rank, key, key)
        return set(sample.items())

    assert kept(items) == kept(items[::-1])
    assert len(kept(items)) == min(most, len(items))


@given(items, st.integers(1, 5))
def test_lower_ranks_are_kept_first(items: list[tuple[int, str]], most: int) -> None:
    ranks = {key: rank for rank, key in items}
    sample: BoundedSample[str] = BoundedSample(most)
    for rank, key in items:
        sample.offer(rank, key, key)
    kept = sorted(ranks[key] for key in sample.items())
    assert kept == sorted(ranks.values())[: len(kept)]


def test_items_come_back_in_the_order_they_came() -> None:
    sample: BoundedSample[str] = BoundedSample(9)
    for key in "zebra":
        sample.offer(0, key, key)
    assert sample.items() == list("zebra")


def test_the_budget_bounds_the_cost_but_one_item_may_exceed_it() -> None:
    sample: BoundedSample[str] = BoundedSample(9, budget=10)
    sample.offer(2, "dear", "dear", cost=50)
    assert sample.items() == ["dear"]
    sample.offer(0, "wrong cut", "wrong cut", cost=6)
    assert sample.items() == ["wrong cut"]
    sample.offer(1, "right cut", "right cut", cost=6)
    assert sample.items() == ["wrong cut"]


def test_a_draw_without_ranks_is_fair() -> None:
    sample: BoundedSample[int] = BoundedSample(500)
    for i in range(2000):
        sample.offer(0, f"group {i}", i)
    early = sum(i < 1000 for i in sample.items())
    assert 200 < early < 300
