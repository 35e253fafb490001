"""The actions of a group as a tree: together while the rollouts act alike, apart from where they split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Branch:
    """A stretch of equal actions."""

    actions: tuple[str, ...]
    """What all rollouts of the branch do, one after the other."""
    ended: tuple[int, ...]
    """Rollouts whose actions end with this stretch."""
    children: tuple[Branch, ...]
    """How the others go on, the most frequent way first."""

    @property
    def rollouts(self) -> tuple[int, ...]:
        """All rollouts that pass through, in the order in which their leaves lie side by side."""
        return self.ended + tuple(rollout for child in self.children for rollout in child.rollouts)

    @property
    def size(self) -> int:
        """Actions in the branch and all below it: the cells it takes to draw them."""
        return len(self.actions) + sum(child.size for child in self.children)


def action_tree(actions: Mapping[int, Sequence[str]]) -> Branch:
    """Grow the tree of a group.

    Args:
        actions: `actions[rollout][k - 1]` is the action of step k.

    Returns:
        The root; its own actions are what everybody does at first, possibly nothing.
    """
    return _branch(actions, sorted(actions), 0)


def _branch(actions: Mapping[int, Sequence[str]], rollouts: Sequence[int], start: int) -> Branch:
    end = start
    while _agree(actions, rollouts, end):
        end += 1
    ways: dict[str, list[int]] = {}
    for rollout in rollouts:
        if len(actions[rollout]) > end:
            ways.setdefault(actions[rollout][end], []).append(rollout)
    return Branch(
        actions=tuple(actions[rollouts[0]][start:end]) if rollouts else (),
        ended=tuple(rollout for rollout in rollouts if len(actions[rollout]) == end),
        children=tuple(_branch(actions, way, end) for way in sorted(ways.values(), key=_frequent_first)),
    )


def _agree(actions: Mapping[int, Sequence[str]], rollouts: Sequence[int], place: int) -> bool:
    """Whether every rollout has an action at this place, and all the same one."""
    if not rollouts or any(len(actions[rollout]) <= place for rollout in rollouts):
        return False
    return len({actions[rollout][place] for rollout in rollouts}) == 1


def _frequent_first(way: Sequence[int]) -> tuple[int, int]:
    return -len(way), way[0]
