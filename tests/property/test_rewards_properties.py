"""Labels of groups against brute force over what unscored members could still earn."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.rewards import ZERO_VARIANCE_TOLERANCE, centred, parse_reward, zero_variance

FEW = settings(max_examples=100, deadline=None)
rewards = st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), max_size=5)


@FEW
@given(members=rewards)
def test_a_label_is_known_exactly_if_no_outcome_could_flip_it(members: list[float | None]) -> None:
    unscored = members.count(None)
    known = [reward for reward in members if reward is not None]
    completed = [[*known, *rest] for rest in product([0.0, 0.5, 1.0], repeat=unscored)]
    outcomes = {max(group) - min(group) <= ZERO_VARIANCE_TOLERANCE for group in completed if group}
    expected = outcomes.pop() if len(members) >= 2 and len(outcomes) == 1 else None
    assert zero_variance(members) is expected


@FEW
@given(members=rewards)
def test_advantages_sum_to_zero_and_keep_the_unscored(members: list[float | None]) -> None:
    advantages = centred(members)
    assert [advantage is None for advantage in advantages] == [reward is None for reward in members]
    assert abs(sum(advantage for advantage in advantages if advantage is not None)) < 1e-9


@FEW
@given(number=st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_survive_text(number: float) -> None:
    assert parse_reward(str(number)) == parse_reward(number) == number
