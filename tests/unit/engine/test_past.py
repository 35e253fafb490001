"""What a rule reads of a prompt's past, and what is kept of it."""

from __future__ import annotations

import pytest

from selective_rollout.engine.ledger import Ledger
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.past import Past, past_of, remember
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.history import PromptHistory
from selective_rollout.gate.score import HISTORY_FEATURE, TwoSidedScore
from selective_rollout.types import Group, Outcome, Rollout, RolloutStatus

ONE = (1.0,)
SCORED = GateConfig(score=TwoSidedScore((HISTORY_FEATURE,), (0.0,), ONE, ONE, ONE, 0.0, 0.0))


@pytest.fixture
def history() -> PromptHistory:
    made = PromptHistory()
    made.record("t", "g1", [0.0, 1.0])
    made.record("t", "g2", [1.0, None])
    return made


@pytest.mark.parametrize("rule", [GateConfig(history_mixed=2), SCORED])
def test_without_a_history_nothing_is_known(rule: GateConfig) -> None:
    assert past_of(None, rule, "t", 4) == Past()


def test_a_rule_is_given_what_it_reads_and_no_more(history: PromptHistory) -> None:
    assert past_of(history, GateConfig(), "t", 4) == Past()
    assert past_of(history, GateConfig(history_mixed=2), "t", 4) == Past(rewards=(1.0, 1.0))
    assert past_of(history, SCORED, "t", 4) == Past(p_zero_variance=history.p_zero_variance("t", 4))


def test_a_new_prompt_has_no_past(history: PromptHistory) -> None:
    assert past_of(history, GateConfig(history_mixed=2), "new", 4) == Past(rewards=())
    assert past_of(history, SCORED, "new", 4) == Past()


@pytest.mark.parametrize(("cut_as", "kept"), [(None, (1.0, 0.5)), ("drop", ())])
def test_what_a_group_was_rewarded_is_kept_unless_it_was_cut(
    cut_as: Outcome | None, kept: tuple[float, ...]
) -> None:
    rollouts = tuple(
        Rollout(i, (), RolloutStatus.FINISHED, reward) for i, reward in enumerate((1.0, None, 0.5))
    )
    outcome = GroupOutcome(Group("g", 3, rollouts, "t"), (), Ledger(), cut_as)
    history = PromptHistory()
    for keeping in (history, None):
        remember(keeping, outcome)
    assert history.last("t", 3) == kept
