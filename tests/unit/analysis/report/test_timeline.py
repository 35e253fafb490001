"""All positions at once: what the live gate says at each of them, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selective_rollout.analysis.replay import replay
from selective_rollout.analysis.report import timeline as module
from selective_rollout.analysis.report.timeline import can_serve, timelines
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import Reason
from selective_rollout.types import Group, Rollout, RolloutStatus, SamplingInfo, Step

STATUSES = list(RolloutStatus)


def group(*rows: tuple[str, RolloutStatus, float | None], late: bool = False, seeded: bool = False) -> Group:
    """A group of rollouts whose actions are single letters; "." is an empty action."""
    rollouts = tuple(
        Rollout(
            i,
            tuple(Step(k, "" if a == "." else a) for k, a in enumerate(actions, start=1)),
            status,
            reward if status.ended_normally else None,
            late_reward=late,
            answer=None if reward is None else f"{reward}",
        )
        for i, (actions, status, reward) in enumerate(rows)
    )
    sampling = (SamplingInfo(seed=1),) * len(rows) if seeded else None
    return Group("g", len(rows), rollouts, "g", sampling=sampling)


rows = st.lists(
    st.tuples(st.text("ab.", max_size=7), st.sampled_from(STATUSES), st.sampled_from([None, 0.0, 1.0])),
    min_size=1,
    max_size=5,
)


@given(
    rows, st.booleans(), st.booleans(), st.sampled_from(["end", "none"]), st.sampled_from([None, [0.0, 1.0]])
)
def test_it_says_what_the_live_gate_says_at_every_position(
    rows: list[tuple[str, RolloutStatus, float | None]],
    late: bool,
    seeded: bool,
    padding: str,
    history: list[float] | None,
) -> None:
    rule = GateConfig.from_dict(
        {"padding": padding, "outcome": "survivor", "history_mixed": 1 if history else 0}
    )
    one = group(*rows, late=late, seeded=seeded)
    [line] = timelines([one], rule, [history])
    live = replay(one, replace(rule, start_step=1, check_every=1), history=history)
    for check in live.checks:
        if check.step <= len(line.distances):
            assert line.distances[check.step - 1] == check.distance
            assert line.reason_at(check.step) == check.reason


@given(rows, st.sampled_from([None, 1, 2]), st.sampled_from([0.0, 0.2, 0.25, 0.5, 1.0]), st.integers(1, 8))
def test_it_fires_where_the_live_gate_fires(
    rows: list[tuple[str, RolloutStatus, float | None]], every: int | None, tau: float, start: int
) -> None:
    rule = GateConfig(start_step=start, check_every=every, tau=tau)
    one = group(*rows)
    [line] = timelines([one], GateConfig(), [None])
    assert line.fires_at(rule) == replay(one, rule).fires_at(tau)


def test_a_long_group_is_covered_up_to_a_limit_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_STEPS", 5)
    long = group(("a" * 9, RolloutStatus.FINISHED, 0.0), ("b" * 7, RolloutStatus.FAILED, None))
    [line] = timelines([long], GateConfig(), [None])
    assert line.distances == (1.0,) * 5
    assert not line.whole


def test_a_group_without_steps_has_no_positions() -> None:
    [line] = timelines([group(("", RolloutStatus.FINISHED, 0.0))], GateConfig(), [None])
    assert line.distances == ()
    assert line.reason_at(3) is Reason.NOBODY_RUNNING
    assert line.fires_at(GateConfig(start_step=1)) is None


@pytest.mark.parametrize(
    ("other", "served"),
    [
        ({"tau": 0.5, "start_step": 3, "check_every": 2}, True),
        ({"padding": "none"}, False),
        ({"vetoes": ()}, False),
        ({"min_members": 5}, False),
        ({"level": "char", "padding": "none"}, False),
    ],
)
def test_only_tau_and_the_checks_may_differ(other: dict[str, object], served: bool) -> None:
    assert can_serve(GateConfig.from_dict(other), GateConfig()) is served
