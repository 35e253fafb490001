"""What a gate saves and costs: counted, never blended."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selective_rollout.analysis.accounting import Accounting, Amount, survivor_of, was_stopped
from selective_rollout.analysis.prices import Prices
from selective_rollout.engine.survivor import first_of, survivor_order
from selective_rollout.errors import ConfigError
from selective_rollout.types import Group, Rollout, RolloutStatus, Step, Usage


def group(
    rewards: list[float | None],
    lengths: list[int],
    tokens: int | None = 3,
    size: int | None = None,
    usage: Usage | None = None,
) -> Group:
    if usage is None and tokens is not None:
        usage = Usage(completion=tokens, source="server")
    rollouts = tuple(
        Rollout(i, tuple(Step(k, "a", usage=usage) for k in range(1, n + 1)), RolloutStatus.FINISHED, reward)
        for i, (reward, n) in enumerate(zip(rewards, lengths, strict=True))
    )
    return Group("g", size or len(rollouts), rollouts, "g")


FAIL, WIN, MIXED = [0.0, 0.0], [1.0, 1.0], [0.0, 1.0]


def test_right_wrong_and_missed_have_their_own_columns() -> None:
    account = Accounting(start_step=4)
    account.add(group(FAIL, [10, 10]), 4)
    account.add(group(WIN, [10, 10]), None)
    account.add(group(MIXED, [8, 10]), 4)
    account.add(group(MIXED, [10, 10]), None)
    assert (account.cuts, account.right, account.wrong, account.missed) == (2, 1, 1, 1)
    assert (account.all_fail, account.all_success) == (1, 1)
    assert (account.lossless.steps, account.lossless.tokens) == (12, 36)
    assert (account.lossy.steps, account.lossy.tokens) == (10, 30)
    assert account.base_rate.value == 0.5
    assert account.precision.value == 0.5
    assert account.loss.value == 0.5
    assert account.saved == pytest.approx(22 / 78)
    assert account.efficiency == pytest.approx(0.5 / (1 - 22 / 78))
    assert account.oracle_saved == pytest.approx(24 / 78)
    assert account.random_saved == pytest.approx(0.5 * 46 / 78)


def test_members_that_had_finished_save_nothing() -> None:
    account = Accounting(start_step=4)
    account.add(group(FAIL, [3, 9]), 4)
    assert account.lossless.steps == 5


def test_a_survivor_saves_nothing_either() -> None:
    account = Accounting(start_step=4, outcome="survivor")
    account.add(group(FAIL, [10, 10]), 4)
    assert account.lossless.steps == account.oracle.steps == account.everything.steps == 6


def test_groups_whose_label_is_unknown_are_counted_apart() -> None:
    account = Accounting(start_step=1)
    account.add(group([None, 1.0], [3, 3]), 1)
    assert (account.unknown, account.right, account.wrong) == (1, 0, 0)
    assert account.unlabelled.steps == 4
    assert account.base_rate.value is None
    assert account.efficiency is None


def test_unknown_tokens_are_unknown_not_zero() -> None:
    account = Accounting(start_step=1)
    account.add(group(FAIL, [3, 3], tokens=None), 1)
    account.add(group(FAIL, [3, 3]), 1)
    document = json.loads(json.dumps(account.to_dict()))
    assert document["lossless_tokens"] is None
    assert document["tokens"] is None
    assert document["lossless_steps"] == 8


def test_nothing_recorded_gives_no_rates() -> None:
    account = Accounting(start_step=1)
    values = (account.saved, account.efficiency, account.oracle_saved, account.random_saved, account.dilution)
    assert set(values) == {None}


def test_the_papers_operating_point_has_its_efficiency() -> None:
    """21 cuts, 4 of 61 signal-bearing groups, 11.93% of the steps: 1.06 (the authors' own tables)."""
    account = Accounting(start_step=10)
    account.signal, account.zero_variance = 61, 39
    account.spent.groups, account.spent.steps = 100, 18_197
    account.wrong, account.right = 4, 17
    account.lossless.steps = 2170
    assert account.efficiency == pytest.approx(1.061, abs=5e-4)
    assert account.dilution == pytest.approx((57 / 79) / 0.61)


def test_a_group_that_was_stopped_has_no_counterfactual() -> None:
    whole = group(MIXED, [2, 2])
    stopped = Group("g", 2, (Rollout(0, status=RolloutStatus.CUT), whole.rollouts[1]), "g")
    assert not was_stopped(whole)
    assert was_stopped(stopped)


@given(
    st.lists(st.sampled_from([RolloutStatus.FINISHED, RolloutStatus.FAILED]), min_size=1, max_size=6),
    st.text(max_size=4),
)
def test_the_survivor_is_the_engines(statuses: list[RolloutStatus], group_id: str) -> None:
    rollouts = tuple(Rollout(i, status=status) for i, status in enumerate(statuses))
    found = survivor_of(Group(group_id, len(rollouts), rollouts, "t"))
    sound = {i for i, status in enumerate(statuses) if status is RolloutStatus.FINISHED}
    order = survivor_order(group_id, len(statuses))
    assert (found.index if found is not None else None) == first_of(order, sound)


counts = st.one_of(st.none(), st.integers(0, 9))


@given(st.lists(st.one_of(st.none(), st.builds(Usage, prompt=counts, cached=counts, completion=counts))))
def test_an_amount_is_the_sum_of_its_steps(usages: list[Usage | None]) -> None:
    steps = [Step(k, "a", usage=usage) for k, usage in enumerate(usages, start=1)]
    amount = Amount()
    amount.add_steps(steps)
    known = [usage or Usage() for usage in usages]
    tokens, prompts = [usage.completion for usage in known], [usage.prompt for usage in known]
    cached = [usage.cached for usage in known]
    sums = [
        total
        for column in (tokens, prompts, cached)
        for total in (sum(filter(None, column)), column.count(None))
    ]
    assert amount == Amount(0, len(steps), *sums)


class TestMoney:
    PRICES = Prices(prompt=2.0, completion=8.0, cached=0.5)
    USAGE = Usage(prompt=1_000_000, cached=400_000, completion=500_000, source="server")
    STEP = 0.6 * 2 + 0.4 * 0.5 + 0.5 * 8

    def test_it_stands_beside_the_tokens(self) -> None:
        account = Accounting(4, prices=self.PRICES)
        account.add(group(FAIL, [10, 10], usage=self.USAGE), 4)
        account.add(group(MIXED, [8, 10], usage=self.USAGE), 4)
        account.add(group([None, 0.0], [5, 5], usage=self.USAGE), 4)
        money = account.money
        assert money is not None
        assert money.spent == pytest.approx(48 * self.STEP)
        assert money.lossless == pytest.approx(12 * self.STEP)
        assert money.lossy == pytest.approx(10 * self.STEP)
        assert money.unlabelled == pytest.approx(2 * self.STEP)
        assert account.to_dict()["money"] == money.to_dict()

    def test_without_prices_there_is_none(self) -> None:
        account = Accounting(4)
        account.add(group(FAIL, [10, 10], usage=self.USAGE), 4)
        assert account.money is account.to_dict()["money"] is None

    @pytest.mark.parametrize(
        ("usage", "prices", "known"),
        [
            (Usage(completion=5), Prices(1.0, 1.0), False),
            (Usage(completion=5), Prices(0.0, 1.0), True),
            (Usage(prompt=5), Prices(1.0, 1.0), False),
            (Usage(prompt=5), Prices(1.0, 0.0), True),
            (Usage(prompt=5, completion=5), Prices(1.0, 1.0), True),
            (Usage(prompt=5, completion=5), Prices(1.0, 1.0, cached=0.1), False),
            (Usage(prompt=5, completion=5), Prices(1.0, 1.0, cached=1.0), True),
            (Usage(prompt=5, completion=5, cached=0), Prices(1.0, 1.0, cached=0.1), True),
            (None, Prices(0.0, 0.0), True),
        ],
    )
    def test_a_count_that_matters_and_is_unknown_makes_it_unknown(
        self, usage: Usage | None, prices: Prices, known: bool
    ) -> None:
        amount = Amount()
        amount.add_steps([Step(1, "a", usage=self.USAGE), Step(2, "a", usage=usage)])
        assert (amount.cost(prices) is not None) is known

    def test_what_was_not_generated_costs_nothing(self) -> None:
        assert Amount().cost(self.PRICES) == 0.0

    @pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
    def test_a_price_is_a_price(self, price: float) -> None:
        with pytest.raises(ConfigError, match="price of completion tokens must be a number from 0 up"):
            Prices(1.0, price)
