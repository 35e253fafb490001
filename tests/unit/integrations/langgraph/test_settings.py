"""Settings: what a context changes, what the state keeps, what is warned about."""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from dataclasses import replace
from typing import Any

import pytest
from langgraph.types import RetryPolicy

from selective_rollout.actions import ActionOptions
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.rule import UncertifiedGateWarning, warn_about
from selective_rollout.errors import ConfigError, MissingExtraError
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.langgraph import GroupContext
from selective_rollout.integrations.langgraph.settings import SETTINGS, record, restore
from selective_rollout.integrations.langgraph.state import GroupFacts

BUILT = RunConfig(actions=ActionOptions(name_only=True), rollout_timeout_s=5)
GIVEN: dict[str, Any] = {
    "group_size": 4,
    "max_steps": 12,
    "mode": "enforce",
    "outcome": "survivor",
    "start_step": 3,
    "tau": 0.3,
    "check_every": 2,
    "level": "char",
    "padding": "none",
    "min_members": 3,
    "vetoes": ("known_rewards_differ",),
    "reward_tolerance": 0.01,
    "separator": " ; ",
    "audit_rate": 0.1,
    "rollout_timeout_s": 7.5,
    "seed": 7,
    "temperature": 0.8,
}


def facts(gate: GateConfig, config: RunConfig) -> GroupFacts:
    return GroupFacts(
        prompt="q",
        task_id="t",
        group_id="g",
        group_size=config.group_size,
        metadata={},
        settings=json.loads(json.dumps(record(gate, config))),
        attempt=1,
        audited=False,
    )


def test_every_setting_reaches_its_place() -> None:
    assert {*GIVEN, "max_attempts"} == set(SETTINGS)
    gate, config = GroupContext.read(GIVEN).apply(GateConfig(), BUILT)
    for name, value in GIVEN.items():
        assert getattr(config if hasattr(config, name) else gate, name) == value
    assert config.actions == BUILT.actions


def test_how_often_a_step_is_tried_is_a_matter_of_one_run() -> None:
    built = RetryPolicy(initial_interval=3.0, max_attempts=2)
    assert GroupContext().retry(built) is built
    assert GroupContext().retry(None) is None
    assert GroupContext(max_attempts=5).retry(built) == built._replace(max_attempts=5)
    assert GroupContext(max_attempts=5).retry(None) == RetryPolicy(max_attempts=5)
    settings = GroupContext.read(GIVEN).apply(GateConfig(), BUILT)
    assert restore(facts(*settings), GroupContext(max_attempts=5), BUILT) == settings


def test_vetoes_may_come_as_a_list_as_json_has_them() -> None:
    read = GroupContext.read({**GIVEN, "vetoes": ["known_rewards_differ"]})
    settings = read.apply(GateConfig(), BUILT)
    assert settings == GroupContext.read(GIVEN).apply(GateConfig(), BUILT)
    assert restore(facts(*settings), read, BUILT) == settings


def test_no_context_keeps_what_was_built() -> None:
    assert GroupContext.read(None).apply(GateConfig(), BUILT) == (GateConfig(), BUILT)


@pytest.mark.parametrize("context", [None, GIVEN])
def test_the_state_gives_back_what_it_was_given(context: Any) -> None:
    read = GroupContext.read(context)
    settings = read.apply(GateConfig(vetoes=()), BUILT)
    assert restore(facts(*settings), GroupContext(), BUILT) == settings
    assert restore(facts(*settings), read, BUILT) == settings


@pytest.mark.parametrize(("name", "other"), [("tau", 0.2), ("group_size", 3), ("mode", "observe")])
def test_a_resumed_group_keeps_its_settings(name: str, other: Any) -> None:
    settings = GroupContext(**GIVEN).apply(GateConfig(), BUILT)
    with pytest.raises(ConfigError, match=f"context: {name} {other!r} differs from the {GIVEN[name]!r}"):
        restore(facts(*settings), GroupContext(**{name: other}), BUILT)


@pytest.mark.parametrize(
    ("gate", "config", "message"),
    [
        (GateConfig(), RunConfig(max_steps=9), "max_steps 9 is below start_step 10"),
        (GateConfig(tau=0), RunConfig(), "tau is 0, and no distance is below 0"),
    ],
)
def test_a_gate_that_cannot_fire_warns(gate: GateConfig, config: RunConfig, message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        warn_about(gate, config, certified=True)


def test_enforcing_without_a_certificate_warns() -> None:
    enforce = RunConfig(mode="enforce")
    with pytest.warns(UncertifiedGateWarning):
        warn_about(GateConfig(), enforce, certified=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_about(GateConfig(), enforce, certified=True)
        warn_about(GateConfig(), RunConfig(), certified=False)
        warn_about(replace(GateConfig(), outcome="vote"), enforce, certified=False)


def test_without_langgraph_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "selective_rollout.integrations.langgraph"
    for module in [m for m in sys.modules if m == name or m.startswith(("langgraph", f"{name}."))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "langgraph", None)
    with pytest.raises(MissingExtraError, match=r'pip install "selective-rollout\[langgraph\]"'):
        importlib.import_module(name)
