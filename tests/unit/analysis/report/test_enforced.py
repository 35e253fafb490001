"""Enforcing runs: what was measured, and what only audits let one estimate."""

from __future__ import annotations

from pathlib import Path

import pytest

from selective_rollout.analysis.prices import Prices
from selective_rollout.analysis.report.collect import ReportData, collect
from selective_rollout.analysis.report.population import NamedGate
from selective_rollout.analysis.report.words import caveats, lead
from selective_rollout.gate.audit import unthinned
from selective_rollout.gate.config import GateConfig
from selective_rollout.trace.recorder import Recorder
from selective_rollout.trace.schema import GroupEndEvent, GroupEvent, RolloutEndEvent, StepEvent, UsageRecord
from selective_rollout.types import Outcome, RolloutStatus, Usage

LENGTH, CUT_AT = 5, 2


def write(
    recorder: Recorder,
    group: str,
    *,
    fires: bool = False,
    audit: bool = False,
    rewards: tuple[float, float] = (0.0, 0.0),
    outcome: Outcome = "drop",
    late_veto: bool = False,
) -> None:
    """Write one enforced group of two as the engine does."""
    cut = fires and not audit and not late_veto
    recorder.write(GroupEvent(group=group, task_id=group, size=2, mode="enforce", audit=audit, gate="rule"))
    for rollout in (0, 1):
        action = "a" if fires else str(rollout)
        for step in range(1, (CUT_AT if cut else LENGTH) + 1):
            usage = UsageRecord(completion=3)
            recorder.write(StepEvent(group=group, rollout=rollout, step=step, action=action, usage=usage))
        status = RolloutStatus.CUT if cut else RolloutStatus.FINISHED
        reward = None if cut else rewards[rollout]
        recorder.write(RolloutEndEvent(group=group, rollout=rollout, status=status, reward=reward))
    recorder.write(
        GroupEndEvent(
            group=group,
            outcome=outcome if cut else None,
            cut_at=CUT_AT if cut else None,
            would_cut_at=CUT_AT if fires and not cut else None,
            late_veto=late_veto,
        )
    )


def collected(path: Path, prices: Prices | None = None) -> ReportData:
    return collect([path], [NamedGate("mine", GateConfig(start_step=CUT_AT, tau=0.3))], prices=prices)


@pytest.fixture
def data(tmp_path: Path) -> ReportData:
    """20 groups: 8 cut, 2 audited would-be cuts (one of them signal-bearing), 9 kept, 1 audited and kept."""
    with Recorder(tmp_path / "t.jsonl") as recorder:
        for i in range(8):
            write(recorder, f"cut {i}", fires=True)
        write(recorder, "audited zero", fires=True, audit=True)
        write(recorder, "audited signal", fires=True, audit=True, rewards=(0.0, 1.0))
        write(recorder, "audited kept", audit=True, rewards=(1.0, 1.0))
        for i in range(9):
            write(recorder, f"kept {i}", rewards=(0.0, 1.0))
    return collected(tmp_path / "t.jsonl")


def test_the_lead_says_whose_shares_these_are_and_what_was_really_stopped(data: ReportData) -> None:
    waste, would, did = lead(data)
    assert waste.startswith(
        "2 of 3 labelled groups that ran on whatever the gate said ended with equal rewards and took 66.7% "
        "of the steps of all such groups"
    )
    assert "would have cut 2 groups" in would
    assert did == (
        "The gate that was on really stopped 8 of 20 groups. By the audits 50.0% of the cuts were "
        "signal-bearing (1 of 2; 95% 1.3 to 98.7%)."
    )


def test_the_lead_of_a_run_without_audits_knows_no_cost(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder:
        write(recorder, "cut", fires=True)
        write(recorder, "kept", rewards=(0.0, 1.0))
    waste, _, did = lead(collected(tmp_path / "t.jsonl"))
    assert waste.startswith("0 of 1 labelled groups that the gate let through ended with equal rewards")
    assert did == (
        "The gate that was on really stopped 1 of 2 groups. No labelled would-be cut was audited, so what "
        "that cost is unknown."
    )


def test_an_exact_vote_needs_no_audit_to_be_free(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder:
        write(recorder, "cut", fires=True, outcome="vote")
        write(recorder, "kept", rewards=(0.0, 1.0))
    assert lead(collected(tmp_path / "t.jsonl"))[-1] == "The gate that was on really stopped 1 of 2 groups."


def test_what_happened_is_counted(data: ReportData) -> None:
    enforced = data.enforced
    assert enforced is not None
    assert (enforced.groups, enforced.stopped, enforced.drawn) == (20, 8, 3)
    assert enforced.spent.steps == 8 * 2 * CUT_AT + 12 * 2 * LENGTH
    assert enforced.spent.known_tokens == 3 * enforced.spent.steps
    assert enforced.money is None
    assert enforced.rules == {"rule": 20}


def test_audits_tell_both_rates_and_what_the_cuts_saved(data: ReportData) -> None:
    assert data.enforced is not None
    estimates = data.enforced.estimates
    assert estimates is not None
    assert (estimates.audited, estimates.audit_rate) == (2, 3 / 20)
    assert estimates.wrong_cut_share is not None
    assert estimates.wrong_cut_share.value == 0.5
    assert estimates.false_cut_rate is not None
    assert estimates.false_cut_rate.value == pytest.approx(unthinned(1 / 10, 3 / 20))
    left = 2 * (LENGTH - CUT_AT)
    assert estimates.lossless.value == 8 * left / 2
    assert estimates.lossy.value == 8 * left / 2
    assert estimates.lossless.interval is None, "two audits are too few"


def test_shares_are_taken_over_audited_groups_only(data: ReportData) -> None:
    assert data.basis == "untouched"
    account = data.population.accounts[0]
    assert (account.groups, account.right, account.wrong) == (3, 1, 1)
    assert account.base_rate.value == pytest.approx(2 / 3)
    assert any("observed and audited groups only" in text for text in caveats(data))


def test_without_audits_nothing_is_estimated_and_the_selection_is_named(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder:
        write(recorder, "cut", fires=True)
        write(recorder, "kept", rewards=(0.0, 1.0))
    data = collected(tmp_path / "t.jsonl")
    assert data.enforced is not None
    assert data.enforced.estimates is None
    assert data.basis == "kept"
    assert any("they are a selection" in text for text in caveats(data))
    assert data.to_dict()["enforced"]["estimated_from_audits"] is None  # type: ignore[index]


def test_a_survivors_own_steps_are_not_saved(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder:
        write(recorder, "cut", fires=True, outcome="survivor")
        write(recorder, "audited", fires=True, audit=True)
    data = collected(tmp_path / "t.jsonl")
    assert data.enforced is not None
    assert data.enforced.estimates is not None
    assert data.enforced.estimates.lossless.value == LENGTH - CUT_AT


def test_money_spent_is_measured_and_money_not_spent_estimated(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder:
        for i in range(4):
            write(recorder, f"cut {i}", fires=True)
        write(recorder, "audited zero", fires=True, audit=True)
        write(recorder, "audited signal", fires=True, audit=True, rewards=(0.0, 1.0))
    enforced = collected(tmp_path / "t.jsonl", Prices(0.0, 1_000_000.0)).enforced
    assert enforced is not None
    assert enforced.money == 3 * enforced.spent.steps
    assert enforced.estimates is not None
    assert enforced.estimates.money is not None
    assert [quantity.value for quantity in enforced.estimates.money] == [
        3 * (enforced.estimates.lossless.value or 0),
        3 * (enforced.estimates.lossy.value or 0),
    ]
    document = enforced.to_dict()
    assert document["measured"]["money"] == enforced.money  # type: ignore[index]
    unpriced = collected(tmp_path / "t.jsonl", Prices(1.0, 1.0)).enforced
    assert unpriced is not None
    assert unpriced.money is None, "prompts were not counted"
    assert unpriced.estimates is not None
    assert unpriced.estimates.money is None


def test_tokens_that_were_estimated_are_named(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder, recorder.group("g", size=2) as log:
        for index, source in enumerate(("estimated", "server")):
            log.step(index, "a", usage=Usage(completion=3, source=source))  # type: ignore[arg-type]
            log.finish(index, 0.0)
    data = collected(tmp_path / "t.jsonl")
    assert data.overview.to_dict()["steps_of_estimated_tokens"] == 1
    assert any("The tokens of 1 steps were estimated" in text for text in caveats(data))


def test_a_late_veto_is_no_would_be_cut(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder:
        write(recorder, "vetoed", fires=True, late_veto=True, rewards=(0.0, 1.0))
    data = collected(tmp_path / "t.jsonl")
    assert data.enforced is not None
    assert (data.enforced.late_vetoes, data.enforced.kept_signal) == (1, 1)
    assert data.enforced.estimates is None


def test_observed_groups_count_beside_enforced_ones(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.jsonl") as recorder:
        write(recorder, "kept", rewards=(0.0, 1.0))
        with recorder.group("observed", size=2) as log:
            for index in (0, 1):
                log.step(index, "a")
                log.finish(index, reward=0.0)
    data = collected(tmp_path / "t.jsonl")
    assert (data.basis, data.population.groups) == ("untouched", 1)
