"""The tree holds every rollout's actions once, and parts exactly where they part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from selective_rollout.analysis.report.tree import Branch, action_tree


def paths(branch: Branch, before: tuple[str, ...] = ()) -> dict[int, tuple[str, ...]]:
    """Read every rollout's actions back from the tree."""
    here = before + branch.actions
    found = dict.fromkeys(branch.ended, here)
    for child in branch.children:
        found |= paths(child, here)
    return found


def test_it_parts_where_the_rollouts_part() -> None:
    tree = action_tree({0: "abcx", 1: "abd", 2: "abcyz", 3: "ab"})
    assert tree.actions == ("a", "b")
    assert tree.ended == (3,)
    assert [(child.actions, child.rollouts) for child in tree.children] == [(("c",), (0, 2)), (("d",), (1,))]
    assert [child.actions for child in tree.children[0].children] == [("x",), ("y", "z")]
    assert tree.rollouts == (3, 0, 2, 1)


def test_the_most_frequent_way_comes_first() -> None:
    tree = action_tree({0: "x", 1: "y", 2: "y"})
    assert [child.actions for child in tree.children] == [("y",), ("x",)]


def test_rollouts_that_do_the_same_are_one_stretch() -> None:
    tree = action_tree({0: "abc", 1: "abc"})
    assert tree == Branch(("a", "b", "c"), (0, 1), ())


def test_nobody_is_a_tree_too() -> None:
    assert action_tree({}) == Branch((), (), ())
    assert action_tree({0: ""}) == Branch((), (0,), ())


@given(st.dictionaries(st.integers(0, 9), st.text("abc", max_size=8), max_size=7))
def test_every_rollout_can_be_read_back(actions: dict[int, str]) -> None:
    tree = action_tree(actions)
    assert {rollout: "".join(path) for rollout, path in paths(tree).items()} == actions
    assert sorted(tree.rollouts) == sorted(actions)
    prefixes = {text[:k] for text in actions.values() for k in range(1, len(text) + 1)}
    assert tree.size == len(prefixes), "each distinct prefix is one cell"


@given(st.dictionaries(st.integers(0, 9), st.text("ab", max_size=6), max_size=7))
def test_siblings_begin_differently(actions: dict[int, str]) -> None:
    def check(branch: Branch) -> None:
        starts = [child.actions[0] for child in branch.children]
        assert len(set(starts)) == len(starts)
        for child in branch.children:
            check(child)

    check(action_tree(actions))
