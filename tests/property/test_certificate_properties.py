"""A covered rule cuts a subset; a gate file gives back what went in."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from selective_rollout.analysis.replay import replay
from selective_rollout.gate.certificate import Certificate, Workload, accepts
from selective_rollout.gate.config import VETOES, GateConfig
from selective_rollout.gate.decision import Reason
from selective_rollout.gate.toml_text import to_toml
from selective_rollout.types import Group, Rollout, RolloutStatus, Step

rules = st.builds(
    GateConfig,
    start_step=st.integers(1, 4),
    tau=st.sampled_from([0.1, 0.25, 0.5, 0.75, 1.0]),
    check_every=st.sampled_from([None, 1, 2, 3]),
    padding=st.sampled_from(["end", "none"]),
    min_members=st.sampled_from([None, 2, 3]),
    vetoes=st.sets(st.sampled_from(VETOES)).map(lambda found: tuple(sorted(found))),
    history_mixed=st.sampled_from([0, 1, 2]),
)
changes = st.fixed_dictionaries(
    {},
    optional={
        "start_step": st.integers(1, 6),
        "tau": st.sampled_from([0.1, 0.25, 0.5]),
        "check_every": st.sampled_from([None, 1, 2, 4]),
        "min_members": st.sampled_from([None, 2, 3, 4]),
        "vetoes": st.just(VETOES),
        "history_mixed": st.sampled_from([0, 2, 3]),
    },
)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    members = []
    for index in range(4):
        actions = draw(st.lists(st.sampled_from("ab"), max_size=7))
        status = draw(st.sampled_from([RolloutStatus.FINISHED, RolloutStatus.FAILED]))
        reward = draw(st.sampled_from([None, 0.0, 1.0])) if status is RolloutStatus.FINISHED else None
        steps = tuple(Step(k, action) for k, action in enumerate(actions, start=1))
        members.append(Rollout(index, steps, status, reward))
    return Group("g", 4, tuple(members), "g")


def cuts(group: Group, rule: GateConfig, history: list[float]) -> bool:
    """Whether the rule cuts the group, from the checks of a replay."""
    given = history[-rule.history_mixed :] if rule.history_mixed else None
    return any(
        check.reason is Reason.FIRED and check.distance is not None and check.distance < rule.tau
        for check in replay(group, rule, history=given).checks
    )


@given(
    rules,
    changes,
    st.lists(groups(), min_size=1, max_size=4),
    st.lists(st.sampled_from([0.0, 1.0]), max_size=3),
)
def test_whatever_a_covered_rule_cuts_the_certified_one_cuts_too(
    certified: GateConfig, change: dict[str, Any], recorded: list[Group], history: list[float]
) -> None:
    live = replace(certified, **change)
    certificate = Certificate(
        certified, 0.1, 0.05, 100, 0, 0, 100, "0.1", 0.0, 0, workload=Workload(group_size=4)
    )
    assume(accepts(certificate, live) == [])
    for group in recorded:
        assert not cuts(group, live, history) or cuts(group, certified, history)


values = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=3),
)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
tables = st.dictionaries(names, values, max_size=4)


@given(st.dictionaries(names, st.one_of(tables, st.lists(tables, min_size=1, max_size=2)), max_size=3), names)
def test_toml_is_read_back_as_written(data: dict[str, Any], comment: str) -> None:
    assert tomllib.loads(to_toml(data, comment)) == data
