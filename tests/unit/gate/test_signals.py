"""Signals: each definition by hand, three published rows, and what is refused."""

from __future__ import annotations

import pickle

import pytest

from selective_rollout.actions import RawAction
from selective_rollout.errors import ConfigError, GroupError
from selective_rollout.gate.signals import (
    DECLARED,
    SIGNALS,
    FunctionSignal,
    GroupView,
    Signal,
    missing_needs,
    require_needs,
    signal,
)
from selective_rollout.types import Group, Rollout, RolloutStatus, Step

FINISHED, FAILED = RolloutStatus.FINISHED, RolloutStatus.FAILED


def running(*rows: str) -> GroupView:
    """Members that all go on, one letter an action."""
    return GroupView(rows, [None] * len(rows))


def ended(*rows: str) -> GroupView:
    """Members that all ended normally, one letter an action."""
    return GroupView(rows, [len(row) for row in rows])


def value(name: str, view: GroupView, k: int, **declared: object) -> float | None:
    return signal(name, **declared).value(view, k)


# Groups rebuilt to have a row of the published feature table at K = 10, G = 8.
PUBLISHED = [
    # All ended early; the odd one out took a fifth step.
    (
        ["abcd"] * 7 + ["abcxy"],
        {
            "unique_action_ratio": 0.125,
            "unique_prefix_ratio": 0.25,
            "action_bigram_jaccard_mean": 0.15625,
            "distance": 0.05,
            "obs_unique_ratio": 0.125,
            "termination_fraction": 1.0,
            "action_entropy": 0.0,
            "repeat_rate": 0.0,
        },
    ),
    # All ended early; the odd one out made a detour first.
    (
        ["abcde"] * 7 + ["xabcde"],
        {
            "unique_action_ratio": 0.125,
            "unique_prefix_ratio": 0.25,
            "action_bigram_jaccard_mean": 0.03571428571428573,
            "distance": 0.05,
            "obs_unique_ratio": 0.125,
            "termination_fraction": 1.0,
            "action_entropy": 0.0,
            "repeat_rate": 0.0,
        },
    ),
    # Seven alike with more to come, one ended after seven steps of its own.
    (
        ["abcdefghijk"] * 7 + ["ijvwxyz"],
        {
            "unique_action_ratio": 0.25,
            "unique_prefix_ratio": 0.25,
            "action_bigram_jaccard_mean": 0.234375,
            "distance": 0.25,
            "obs_unique_ratio": 0.25,
            "termination_fraction": 0.125,
            "action_entropy": 0.1811881477331988,
            "repeat_rate": 0.0,
        },
    ),
]


@pytest.mark.parametrize(("rows", "published"), PUBLISHED)
def test_definitions_reproduce_published_rows(rows: list[str], published: dict[str, float]) -> None:
    view = GroupView(rows, [len(row) for row in rows], observation_hashes=rows)
    measured = {name: value(name, view, 10) for name in published}
    assert measured == pytest.approx(published)


def test_distances_differ_in_what_an_early_end_counts() -> None:
    view = ended("a", "b", "b")
    assert value("distance", view, 10) == pytest.approx(2 / 3 * 0.1), "END dilutes"
    assert value("distance_unpadded", view, 10) == pytest.approx(2 / 3)


def test_tool_distance_reads_names_only() -> None:
    view = GroupView(
        [['search({"q":"x"})', "say hello"], ['search({"q":"y"})', "say good bye"]],
        [None, None],
    )
    assert value("distance", view, 2) == 1.0
    assert value("tool_distance", view, 2) == 0.0


def test_end_is_one_symbol_at_step_k() -> None:
    view = ended("ab", "a", "a", "ac")
    assert value("unique_action_ratio", view, 2) == 3 / 4
    assert value("action_entropy", view, 2) == pytest.approx(1.5 / 2)
    assert value("unique_prefix_ratio", view, 2) == 3 / 4


def test_bigrams_need_two_steps() -> None:
    view = running("ab", "cd")
    assert value("action_bigram_jaccard_mean", view, 1) is None
    assert value("action_bigram_jaccard_mean", view, 2) == 1.0


def test_obs_unique_ratio_compares_what_action_k_answers() -> None:
    view = GroupView(["ab", "ab", "ab"], [None] * 3, observation_hashes=["px", "py", "q"])
    assert value("obs_unique_ratio", view, 2) == 2 / 3, "replies to step 1; those to step 2 are not needed"
    assert value("obs_unique_ratio", view, 1) is None, "the opening is no reply"
    unseen = GroupView(["ab", "ab"], [None] * 2, observation_hashes=[["p"], []])
    assert value("obs_unique_ratio", unseen, 2) is None


def test_or_rule_is_one_threshold_on_the_distance() -> None:
    assert value("or_rule", running("ab", "cd"), 2, t_high=0.9) == 1.0
    assert value("or_rule", ended("ab", "c"), 2, t_high=0.5) == 0.0
    assert value("or_rule", ended("ab", "c"), 2, t_high=0.9) == value("distance", ended("ab", "c"), 2)
    assert value("or_rule", ended("a"), 2, t_high=0.5) is None, "one member agrees with nobody"


def test_termination_counts_ends_before_step_k() -> None:
    view = GroupView(["a", "ab", "abc"], [1, 2, None])
    assert value("termination_fraction", view, 1) == 0.0
    assert value("termination_fraction", view, 2) == 1 / 3
    assert value("termination_fraction", view, 3) == 2 / 3


def test_per_member_shares_are_averaged_over_members_not_steps() -> None:
    view = GroupView(
        ["aaaa", "ab", ""],
        [None, 2, 0],
        observation_hashes=["pppp", "pq", ""],
        errors=[[True] * 4, [False, False], []],
    )
    assert value("repeat_rate", view, 4) == pytest.approx((3 / 4 + 0) / 2)
    assert value("observation_novelty", view, 4) == pytest.approx((1 / 4 + 1) / 2)
    assert value("error_share", view, 4) == 0.5


def test_an_unknown_reply_makes_the_value_unknown() -> None:
    view = GroupView(
        ["ab", "ab"],
        [None, None],
        observation_hashes=[["p", None], ["p", "q"]],
        errors=[[False], [True, False]],
    )
    for name in ("observation_novelty", "error_share"):
        assert value(name, view, 1) is not None, "step 2 is not read at position 1"
        assert value(name, view, 2) is None


def test_the_last_step_of_a_finished_member_may_lack_a_reply() -> None:
    view = GroupView(
        ["ab", "ab"],
        [2, None],
        observation_hashes=[["p"], ["p", "p"]],
        errors=[[True, None], [False, False]],
    )
    assert value("observation_novelty", view, 2) == pytest.approx((1 + 1 / 2) / 2)
    assert value("error_share", view, 2) == 0.5


def test_history_needs_no_step() -> None:
    view = GroupView(["", ""], [None, None], history_p=0.7)
    assert value("history_p_zero_variance", view, 0) == 0.7


BOOK, CANCEL, LOOK = 'book({"n":1})', "cancel({})", 'look({"id":7})'
WRITES = ["book", "cancel"]


def test_effects_are_the_writes_that_did_not_err() -> None:
    view = GroupView(
        [[LOOK, BOOK, CANCEL], [BOOK, CANCEL, LOOK], [CANCEL, BOOK, "nothing to do"]],
        [3, 3, 3],
        errors=[[None, False, False], [False, True, None], [True, False, None]],
    )
    # Done are {book, cancel}, {book} and {book}.
    assert value("effect_equality", view, 3, effects=WRITES) == pytest.approx(1 / 3)
    assert value("effect_jaccard", view, 3, effects=WRITES) == pytest.approx((1 / 2 + 1 / 2 + 1) / 3)


def test_equality_counts_how_often_and_jaccard_does_not() -> None:
    view = GroupView([[BOOK, BOOK], [BOOK, LOOK]], [None, None], errors=[[False, False], [False, None]])
    assert value("effect_equality", view, 2, effects=WRITES) == 0.0
    assert value("effect_jaccard", view, 2, effects=WRITES) == 1.0


def test_parallel_calls_count_one_by_one_and_in_any_order() -> None:
    view = GroupView(
        [[f"{BOOK}+{LOOK}", CANCEL], [CANCEL, BOOK]], [None, None], errors=[[False, False], [False, False]]
    )
    assert value("effect_equality", view, 2, effects=WRITES) == 1.0


def test_nothing_done_yet_is_full_agreement() -> None:
    view = running("ab", "cd")
    assert value("effect_equality", view, 2, effects=WRITES) == 1.0
    assert value("effect_jaccard", view, 2, effects=WRITES) == 1.0


def test_a_write_of_unknown_success_makes_the_value_unknown_unless_it_ended_the_member() -> None:
    rows = [[LOOK, BOOK], [LOOK, BOOK]]
    assert value("effect_jaccard", GroupView(rows, [None, None]), 2, effects=WRITES) is None
    assert value("effect_jaccard", GroupView(rows, [2, 2]), 2, effects=WRITES) == 1.0


def test_effects_may_be_a_predicate_or_the_first_words_of_texts() -> None:
    def writes(action: RawAction) -> bool:
        return any(call.name == "run" and "rm" in str(call.args) for call in action.calls)

    errors = [[False], [False]]
    shell = GroupView([['run({"cmd":"rm x"})'], ['run({"cmd":"ls"})']], [None, None], errors=errors)
    assert value("effect_jaccard", shell, 1, effects=writes) == 0.0
    game = GroupView([["take lamp"], ["look around"]], [None, None], errors=errors)
    assert value("effect_jaccard", game, 1, effects=["take"]) == 0.0


def test_failed_members_are_absent_beyond_their_steps() -> None:
    view = GroupView.of(
        Group(
            id="g",
            size=4,
            task_id="t",
            rollouts=(
                Rollout(0, (Step(1, "a"), Step(2, "b")), FINISHED),
                Rollout(1, (Step(1, "a"),), RolloutStatus.TRUNCATED),
                Rollout(2, (Step(1, "x"),), FAILED),
                Rollout(3, (Step(1, "a"), Step(2, "b"), Step(3, "c")), RolloutStatus.CUT),
            ),
        )
    )
    assert view.present(1) == (0, 1, 2, 3)
    assert view.present(3) == (0, 1, 3)
    assert view.present(4) == (0, 1)
    assert value("unique_action_ratio", view, 1) == 2 / 4
    assert value("unique_action_ratio", view, 3) == 2 / 3


def test_nobody_is_present_before_the_first_step() -> None:
    view = ended("ab", "ab")
    assert view.present(0) == ()
    for name in SIGNALS:
        assert value(name, view, 0) is None


def test_a_view_follows_the_rows_it_was_given() -> None:
    actions, hashes = [["a"], ["a"]], [["p"], ["p"]]
    view = GroupView(actions, [None, None], observation_hashes=hashes)
    actions[0].append("b")
    actions[1].append("c")
    assert value("distance", view, 2) == 0.5
    assert value("observation_novelty", view, 2) is None, "the replies to step 2 have not arrived"


def test_of_takes_over_what_the_steps_know() -> None:
    steps = (Step(1, "a", observation_hash="p", is_error=True), Step(2, "b"))
    view = GroupView.of(Group("g", 1, (Rollout(0, steps, FINISHED),), "t"), history_p=0.25)
    assert view.feeds == {"actions", "observations", "errors", "history"}
    assert value("observation_novelty", view, 2) == 1.0
    assert value("error_share", view, 2) == 1.0
    assert value("history_p_zero_variance", view, 2) == 0.25


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"finished_at": [1]}, "finished_at has 1 entries for 2 members"),
        ({"finished_at": []}, "finished_at has 0 entries for 2 members"),
        ({"finished_at": [1, 1], "errors": [[True]]}, "errors has 1 entries for 2 members"),
        ({"finished_at": [1, 3]}, "member 1 has 1 actions but finished at 3"),
    ],
)
def test_a_view_that_contradicts_itself_is_refused(fields: dict[str, list[int]], message: str) -> None:
    with pytest.raises(GroupError, match=message):
        GroupView(["a", "b"], **fields)  # type: ignore[arg-type]


def every_signal() -> list[Signal]:
    declared = {"t_high": 0.9, "effects": ["book"]}
    made = [signal(name, **{argument: declared[argument]}) for name, argument in DECLARED.items()]
    return [*SIGNALS.values(), *made]


def test_names_are_keys_and_signals_pickle() -> None:
    made = every_signal()
    assert [s.name for s in made] == [*SIGNALS, *DECLARED]
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize("made", every_signal(), ids=lambda s: s.name)
def test_a_signal_that_is_not_fed_has_no_value_and_is_refused_by_name(made: Signal) -> None:
    bare = GroupView([[], []], [None, None])
    assert made.value(bare, 1) is None
    assert missing_needs(made, bare) == made.needs
    with pytest.raises(ConfigError, match=f"signal {made.name!r} needs ") as refusal:
        require_needs(made, bare)
    assert "\n" not in str(refusal.value)


def test_a_refusal_says_what_to_feed() -> None:
    with pytest.raises(ConfigError, match=r"needs errors, which nobody fed: .*is_error"):
        require_needs(SIGNALS["error_share"], running("ab", "cd"))
    require_needs(SIGNALS["distance"], running("ab", "cd"))


def test_needs_of_foreign_signals_are_refused_too() -> None:
    foreign = FunctionSignal("mood", frozenset({"logprobs"}), 1, lambda view, k: None)
    with pytest.raises(ConfigError, match="signal 'mood' needs logprobs, which nobody fed: feed logprobs"):
        require_needs(foreign, running("a", "b"))


@pytest.mark.parametrize(
    ("name", "declared", "message"),
    [
        ("divergence", {}, r"unknown signal 'divergence'; known signals are distance, .*effect_jaccard"),
        ("distance", {"effects": ["x"]}, "signal 'distance' takes no arguments, not effects"),
        ("effect_jaccard", {}, r"signal 'effect_jaccard' needs effects: call signal\('effect_jaccard', eff"),
        ("effect_jaccard", {"effects": ["x"], "t_high": 1}, "takes only effects, not t_high"),
        ("effect_equality", {"effects": []}, "effects is empty"),
        ("effect_equality", {"effects": "book"}, "must be a list of tool names"),
        ("or_rule", {"t_high": 0}, r"t_high must be a number in \(0, 1\]"),
        ("or_rule", {"t_high": float("nan")}, "t_high must be a number"),
        ("or_rule", {"t_high": True}, "t_high must be a number"),
    ],
)
def test_wrong_names_and_declarations_are_refused(
    name: str, declared: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        signal(name, **declared)
