"""Every signal against its definition written out on recorded groups, with exact fractions."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.distance.reference import mean_distance
from selective_rollout.gate.signals import SIGNALS, GroupView, Signal, signal
from selective_rollout.types import Group, Rollout, RolloutStatus, Step

FINISHED, FAILED = RolloutStatus.FINISHED, RolloutStatus.FAILED
END = "<end>"
WRITES = ("write({})", "erase({})")
positions = st.integers(1, 6)


def rollout(steps: list[tuple[str, str | None, bool | None]], status: RolloutStatus) -> Rollout:
    return Rollout(
        0,
        tuple(
            Step(t, action, observation_hash=seen, is_error=error)
            for t, (action, seen, error) in enumerate(steps, start=1)
        ),
        status,
    )


def groups_with(hashes: list[str | None], errors: list[bool | None]) -> st.SearchStrategy[Group]:
    step = st.tuples(
        st.sampled_from(["go", "go north", 'look({"at":1})', *WRITES]),
        st.sampled_from(hashes),
        st.sampled_from(errors),
    )
    member = st.builds(rollout, st.lists(step, max_size=6), st.sampled_from([FINISHED, FINISHED, FAILED]))
    return st.lists(member, min_size=1, max_size=5).map(
        lambda members: Group("g", len(members), tuple(members), "t")
    )


known_groups = groups_with(["p", "q", "r"], [True, False])
patchy_groups = groups_with(["p", "p", "q", "q", None], [True, False, False, False, None])


def rows_at(group: Group, k: int) -> list[tuple[Step, ...]]:
    """Steps of the members present at k, never more than k each."""
    present = [r for r in group.rollouts if r.status is FINISHED or len(r.steps) >= k]
    return [r.steps[:k] for r in present]


def symbols(row: tuple[Step, ...], k: int) -> list[str]:
    return [step.action for step in row] + [END] * (k - len(row))


def mean(values: list[Fraction]) -> Fraction | None:
    return sum(values, Fraction(0)) / len(values) if values else None


def mean_jaccard(rows: list[set[Any]]) -> Fraction | None:
    return mean(
        [Fraction(len(a & b), len(a | b)) if a | b else Fraction(1) for a, b in combinations(rows, 2)]
    )


def tool(action: str) -> str:
    return action.split("(")[0].split()[0]


def distinct(values: list[object]) -> Fraction | None:
    return Fraction(len(set(values)), len(values)) if len(values) > 1 else None


def bigrams(group: Group, k: int) -> Fraction | None:
    rows = [symbols(row, k) for row in rows_at(group, k)]
    alike = mean_jaccard([set(pairwise(row)) for row in rows]) if k > 1 else None
    return None if alike is None else 1 - alike


def entropy(group: Group, k: int) -> float | None:
    last = [symbols(row, k)[-1] for row in rows_at(group, k)]
    if len(last) < 2:
        return None
    shares = [last.count(symbol) / len(last) for symbol in set(last)]
    return -sum(share * math.log(share, len(last)) for share in shares)


def writes(row: tuple[Step, ...]) -> list[str]:
    return [step.action for step in row if step.action in WRITES and not step.is_error]


def equal_writes(group: Group, k: int) -> Fraction | None:
    done = [sorted(writes(row)) for row in rows_at(group, k)]
    return mean([Fraction(a == b) for a, b in combinations(done, 2)])


DEFINITIONS: dict[str, Callable[[Group, int], Fraction | float | None]] = {
    "distance": lambda g, k: mean_distance([symbols(row, k) for row in rows_at(g, k)], k, "none"),
    "distance_unpadded": lambda g, k: mean_distance(
        [[step.action for step in row] for row in rows_at(g, k)], k, "none"
    ),
    "tool_distance": lambda g, k: mean_distance(
        [[tool(symbol) for symbol in symbols(row, k)] for row in rows_at(g, k)], k, "none"
    ),
    "unique_action_ratio": lambda g, k: distinct([symbols(row, k)[-1] for row in rows_at(g, k)]),
    "unique_prefix_ratio": lambda g, k: distinct([tuple(symbols(row, k)) for row in rows_at(g, k)]),
    "action_bigram_jaccard_mean": bigrams,
    "action_entropy": entropy,
    "obs_unique_ratio": lambda g, k: (
        distinct([row[k - 2].observation_hash if len(row) == k else END for row in rows_at(g, k)])
        if k > 1
        else None
    ),
    "termination_fraction": lambda g, k: mean([Fraction(len(row) < k) for row in rows_at(g, k)]),
    "repeat_rate": lambda g, k: mean(
        [1 - Fraction(len({step.action for step in row}), len(row)) for row in rows_at(g, k) if row]
    ),
    "observation_novelty": lambda g, k: mean(
        [Fraction(len({step.observation_hash for step in row}), len(row)) for row in rows_at(g, k) if row]
    ),
    "error_share": lambda g, k: mean(
        [Fraction(sum(bool(step.is_error) for step in row), len(row)) for row in rows_at(g, k) if row]
    ),
    "effect_equality": equal_writes,
    "effect_jaccard": lambda g, k: mean_jaccard([set(writes(row)) for row in rows_at(g, k)]),
}


MADE: dict[str, Signal] = {
    name: signal(name, effects=["write", "erase"]) if name.startswith("effect") else signal(name)
    for name in DEFINITIONS
}


def test_every_computed_signal_has_a_definition_here() -> None:
    assert SIGNALS.keys() - DEFINITIONS.keys() == {"history_p_zero_variance"}


@pytest.mark.parametrize("name", DEFINITIONS)
@settings(max_examples=60)
@given(group=known_groups, k=positions)
def test_values_follow_the_definition(name: str, group: Group, k: int) -> None:
    expected = DEFINITIONS[name](group, k)
    value = MADE[name].value(GroupView.of(group), k)
    if expected is None:
        assert value is None
    else:
        assert value is not None
        assert value == pytest.approx(float(expected), abs=1e-12)
        assert 0.0 <= value <= 1.0


@settings(max_examples=60)
@given(known_groups, positions, st.sampled_from([0.25, 0.5, 1.0]), st.sampled_from([0.05, 0.25, 0.5]))
def test_a_threshold_on_or_rule_is_the_or_of_two_thresholds(
    group: Group, k: int, t_high: float, d_low: float
) -> None:
    view = GroupView.of(group)
    apart, gone = (signal(name).value(view, k) for name in ("distance", "termination_fraction"))
    value = signal("or_rule", t_high=t_high).value(view, k)
    assert (value is None) == (apart is None)
    if value is not None and apart is not None and gone is not None:
        assert (value < d_low) == (apart < d_low or gone >= t_high)


@settings(max_examples=60)
@given(patchy_groups, positions)
def test_nothing_after_position_k_is_read(group: Group, k: int) -> None:
    """Also with unknown replies: a group cut off at k reads as the group that went on."""

    def cut_off(member: Rollout) -> Rollout:
        goes_on = len(member.steps) > k
        return Rollout(0, member.steps[:k], RolloutStatus.RUNNING if goes_on else member.status)

    at_k = Group("g", group.size, tuple(map(cut_off, group.rollouts)), "t")
    for name in DEFINITIONS:
        assert MADE[name].value(GroupView.of(at_k), k) == MADE[name].value(GroupView.of(group), k)


@settings(max_examples=60)
@given(patchy_groups, positions, st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_matter(group: Group, k: int, rng: random.Random) -> None:
    shuffled = list(group.rollouts)
    rng.shuffle(shuffled)
    mixed = Group("g", group.size, tuple(shuffled), "t")
    for name in DEFINITIONS:
        assert MADE[name].value(GroupView.of(mixed), k) == MADE[name].value(GroupView.of(group), k)


@settings(max_examples=60)
@given(patchy_groups, positions)
def test_an_unknown_reply_gives_none_or_changes_nothing(group: Group, k: int) -> None:
    """Filling in what was unknown never contradicts a value, except for a finished member's last step."""

    def filled(member: Rollout, error: bool) -> Rollout:
        ends = len(member.steps) if member.status is FINISHED else 0
        steps = [
            (
                step.action,
                step.observation_hash or (None if step.index == ends else f"new {step.index}"),
                error if step.is_error is None and step.index != ends else step.is_error,
            )
            for step in member.steps
        ]
        return rollout(steps, member.status)

    for error in (True, False):
        complete = Group("g", group.size, tuple(filled(r, error) for r in group.rollouts), "t")
        for name in DEFINITIONS:
            value = MADE[name].value(GroupView.of(group), k)
            assert value is None or value == MADE[name].value(GroupView.of(complete), k)


@settings(max_examples=60)
@given(known_groups, positions)
def test_agreement_signals_are_ordered_as_in_the_published_table(group: Group, k: int) -> None:
    view = GroupView.of(group)
    size = len(view.present(k))
    apart, last, rows, spread = (
        signal(name).value(view, k)
        for name in ("distance", "unique_action_ratio", "unique_prefix_ratio", "action_entropy")
    )
    if apart is None or last is None or rows is None or spread is None:
        assert size < 2
        return
    assert last <= rows
    assert (apart == 0) == (rows == 1 / size)
    assert (spread == 0) == (last == 1 / size)
    assert (spread == pytest.approx(1)) == (last == 1)
    equal, alike = (MADE[name].value(view, k) for name in ("effect_equality", "effect_jaccard"))
    assert equal is not None
    assert alike is not None
    assert equal <= alike
