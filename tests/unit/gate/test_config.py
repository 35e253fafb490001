"""The decision rule: validation, plain data, fingerprint."""

from __future__ import annotations

from dataclasses import replace

import pytest

from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.score import TwoSidedScore

SCORE = TwoSidedScore(("distance",), (0.4,), (0.2,), (-1.0,), (-2.0,), 0.1, -0.3)


def test_the_default_is_the_papers_operating_point() -> None:
    rule = GateConfig.paper()
    assert rule == GateConfig()
    assert (rule.level, rule.start_step, rule.tau, rule.check_every) == ("action", 10, 0.12, None)
    assert (rule.padding, rule.outcome) == ("end", "drop")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("tau", 1.5, r"gate.tau must be a number in \[0, 1\], not 1.5"),
        ("tau", float("nan"), r"gate.tau must be a number in \[0, 1\], not nan"),
        ("tau", -0.1, "gate.tau"),
        ("tau", "0.1", "gate.tau"),
        ("tau", True, "gate.tau"),
        ("start_step", 0, "gate.start_step must be a whole number >= 1, not 0"),
        ("start_step", 2.0, "gate.start_step"),
        ("check_every", 0, "gate.check_every must be a whole number >= 1"),
        ("min_members", 1, "gate.min_members must be a whole number >= 2"),
        ("history_mixed", -1, "gate.history_mixed"),
        ("level", "word", "gate.level must be one of action, token, char, not 'word'"),
        ("padding", "left", "gate.padding must be one of end, none"),
        ("outcome", "kill", "gate.outcome must be one of drop, survivor, vote"),
        ("vetoes", ["luck"], "gate.vetoes must be one of known_rewards_differ"),
        ("reward_tolerance", -1.0, "gate.reward_tolerance"),
        ("separator", 3, "gate.separator must be text"),
    ],
)
def test_bad_values_are_named_with_what_is_allowed(field: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        GateConfig.from_dict({field: value})


def test_characters_have_no_common_position() -> None:
    with pytest.raises(ConfigError, match='padding must be "none" at level "char"'):
        GateConfig(level="char")


def test_unknown_keys_are_named_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match="gate.toml: unknown key threshold; known keys are level, start_step"
    ):
        GateConfig.from_dict({"threshold": 0.1}, where="gate.toml")


def test_a_list_is_not_a_word() -> None:
    with pytest.raises(ConfigError, match="vetoes must be a list"):
        GateConfig.from_dict({"vetoes": "identical_sampling"})
    for vetoes in ("identical_sampling", None):
        with pytest.raises(ConfigError, match=f"gate.vetoes must be a list, not {vetoes!r}"):
            GateConfig(vetoes=vetoes)  # type: ignore[arg-type]


def test_plain_data_round_trips() -> None:
    rule = GateConfig(tau=0.2, check_every=5, vetoes=("identical_sampling",), outcome="survivor")
    assert GateConfig.from_dict(rule.to_dict()) == rule
    scored = GateConfig(score=SCORE)
    assert GateConfig.from_dict(scored.to_dict()) == scored


@pytest.mark.parametrize("other", [{"check_every": 2}, {"level": "token"}])
def test_a_score_looks_once_at_actions(other: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="gate.score is fitted to actions at start_step"):
        GateConfig(score=SCORE, **other)  # type: ignore[arg-type]


def test_every_field_changes_the_fingerprint() -> None:
    rule = GateConfig()
    others = [
        replace(rule, level="token"),
        replace(rule, start_step=11),
        replace(rule, tau=0.13),
        replace(rule, check_every=1),
        replace(rule, padding="none"),
        replace(rule, outcome="survivor"),
        replace(rule, min_members=3),
        replace(rule, vetoes=()),
        replace(rule, history_mixed=8),
        replace(rule, reward_tolerance=0.1),
        replace(rule, separator="|"),
        replace(rule, score=SCORE),
    ]
    assert len(others) == len(rule.to_dict())
    assert len({rule.fingerprint(), *(other.fingerprint() for other in others)}) == len(others) + 1


@pytest.mark.parametrize(("size", "required"), [(2, 2), (3, 2), (4, 2), (5, 3), (8, 4)])
def test_half_the_group_must_be_there_and_never_less_than_a_pair(size: int, required: int) -> None:
    assert GateConfig().required_members(size) == required


def test_check_positions() -> None:
    once, again = GateConfig(start_step=3), GateConfig(start_step=3, check_every=2)
    assert [k for k in range(1, 10) if once.is_check(k)] == [3]
    assert [k for k in range(1, 10) if again.is_check(k)] == [3, 5, 7, 9]
