"""The rules of rewards and groups, on records of one rollout each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selective_rollout.errors import ConfigError, RewardError, SelectiveRolloutError, TraceError
from selective_rollout.rewards import centred, group_label
from selective_rollout.trace.importers import FORMATS, ColumnMapping, ImportReport, import_rollouts
from selective_rollout.trace.reader import RecordedGroup, read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import RolloutStatus, Usage


def imported(
    tmp_path: Path,
    records: Sequence[Any],
    *,
    form: str = "generic",
    maps: Sequence[str] = (),
    separator: str | None = None,
    **options: Any,
) -> tuple[ImportReport, dict[str, RecordedGroup]]:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    target = tmp_path / "out.jsonl"
    target.unlink(missing_ok=True)
    mapping = ColumnMapping.parse(maps, separator=separator)
    with Recorder(target, record_observations=True, record_completions=True) as out:
        report = import_rollouts(form, source, out, mapping=mapping, **options)
    groups = {recorded.group.id: recorded for recorded in read_groups(target)}
    assert report.groups == len(groups)
    return report, groups


def refusal(tmp_path: Path, records: Sequence[Any], **options: Any) -> str:
    with pytest.raises((TraceError, RewardError)) as caught:
        imported(tmp_path, records, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(tmp_path / "in.jsonl"))


def rollout(group: object = "g", **columns: Any) -> dict[str, Any]:
    return {"group_id": group, "actions": ["look"], "reward": 0, **columns}


def rewards(recorded: RecordedGroup) -> list[float | None]:
    return [rollout.reward for rollout in recorded.group.rollouts]


def test_interleaved_records_become_whole_groups_in_order_of_appearance(tmp_path: Path) -> None:
    records = [rollout(g, actions=[f"{g}{i}"], reward=i) for i in range(3) for g in ("b", "a")]
    report, groups = imported(tmp_path, records)
    assert list(groups) == ["b", "a"]
    assert [r.actions for r in groups["a"].group.rollouts] == [("a0",), ("a1",), ("a2",)]
    assert groups["b"].group.size == 3
    assert groups["b"].end is not None
    assert (report.records, report.rollouts, report.steps, report.signal_bearing) == (6, 6, 6, 2)


def test_a_rollout_started_again_is_one_member_and_its_last_finished_attempt_counts(tmp_path: Path) -> None:
    records = [
        {"group": "g", "rollout": "r1", "attempt": 1, "status": "timeout", "reward": None, "tokens": 40},
        {"group": "g", "rollout": "r1", "attempt": 2, "status": "done", "reward": 1.0},
        {"group": "g", "rollout": "r2", "attempt": 1, "status": "done", "reward": 0.0},
    ]
    for order in (records, records[::-1]):
        report, groups = imported(tmp_path, order)
        assert groups["g"].group.size == 2
        assert sorted(rewards(groups["g"])) == [0.0, 1.0]
        assert (report.superseded, report.signal_bearing, report.problem_count) == (1, 1, 1)
        assert groups["g"].lost == 40


def test_two_ended_records_of_one_rollout_are_no_guess(tmp_path: Path) -> None:
    same = [rollout(rollout_id=0), rollout(rollout_id=0, reward=1)]
    assert refusal(tmp_path, same).startswith(":2: rollout '0' of group 'g' has ended before, at ")
    report, groups = imported(tmp_path, [row | {"attempt": n} for n, row in enumerate(same)])
    assert rewards(groups["g"]) == [1.0]
    assert report.superseded == 1


def test_groups_go_by_id_and_shared_prompts_are_told(tmp_path: Path) -> None:
    records = [rollout(g, prompt="Describe.", reward=g == "imgB") for g in ("imgA", "imgB") for _ in range(3)]
    report, groups = imported(tmp_path, records)
    assert [group_label(groups[g].group).zero_variance for g in groups] == [True, True]
    assert report.warnings == [
        "2 groups share 1 prompts and have no task id: groups of one prompt are not independent; "
        "map task=COLUMN"
    ]
    hashes = [recorded.group.metadata["prompt_hash"] for recorded in groups.values()]
    assert hashes[0] == hashes[1]
    assert "Describe" not in (tmp_path / "out.jsonl").read_text()
    report, groups = imported(tmp_path, records, maps=["task=prompt"])
    assert {recorded.group.task_id for recorded in groups.values()} == {"Describe."}
    assert report.warnings == []


def test_a_group_column_that_lumps_prompts_together_is_told(tmp_path: Path) -> None:
    records = [rollout("model", prompt=f"p{i}") for i in range(2)]
    report, groups = imported(tmp_path, records)
    assert report.warnings == [
        "1 groups ('model') hold rollouts of different prompts; is the group column right?"
    ]
    assert "prompt_hash" not in groups["model"].group.metadata


def test_one_task_with_different_prompts_is_told(tmp_path: Path) -> None:
    records = [rollout(g, prompt=g, task_id=0) for g in "ab" for _ in range(2)]
    report, _ = imported(tmp_path, records)
    assert report.warnings[0].startswith("1 tasks ('0') have different prompts")


def test_uneven_groups_keep_their_sizes(tmp_path: Path) -> None:
    report, groups = imported(tmp_path, [rollout(0, reward=1), rollout(0, reward=3), rollout(1, reward=5)])
    assert [groups[g].group.size for g in ("0", "1")] == [2, 1]
    assert [c for g in groups.values() for c in centred(rewards(g))] == [-1.0, 1.0, 0.0]
    assert report.warnings == [
        "group sizes differ (1 of size 1, 1 of size 2); for groups recorded in part, map size=COLUMN"
    ]


def test_groups_recorded_in_part_are_unknown(tmp_path: Path) -> None:
    report, groups = imported(tmp_path, [rollout(size=4), rollout(size=4)], maps=["size=size"])
    assert groups["g"].group.size == 4
    assert (report.unknown, report.zero_variance, report.warnings) == (1, 0, [])


def test_a_size_that_no_group_has_is_refused(tmp_path: Path) -> None:
    problem = refusal(tmp_path, [rollout(group_size=2_000_000_000)])
    assert problem == ":1: a group of 2,000,000,000 rollouts: is the column of the size right?"


def test_singletons_raise_a_loud_warning(tmp_path: Path) -> None:
    report, _ = imported(tmp_path, [rollout(0), rollout(1)])
    assert report.unknown == 2
    assert report.warnings[0].startswith("ALL 2 groups hold a single rollout")


@pytest.mark.parametrize(
    ("given", "expected", "label"),
    [
        ([1.0, None, 0.0, "NaN"], [1.0, None, 0.0, None], "signal_bearing"),
        ([1.0, float("nan")], [1.0, None], "unknown"),
        ([None, None], [None, None], "unknown"),
        ([True, "1"], [1.0, 1.0], "zero_variance"),
        ([0.35, 0.35000002], [0.35, 0.35000002], "zero_variance"),
    ],
)
def test_unscored_is_never_zero(
    tmp_path: Path, given: list[Any], expected: list[float | None], label: str
) -> None:
    report, groups = imported(tmp_path, [rollout(reward=value) for value in given])
    assert rewards(groups["g"]) == expected
    assert getattr(report, label) == 1
    assert report.unscored == expected.count(None)


def test_rewards_that_are_objects_need_a_key(tmp_path: Path) -> None:
    records = [rollout(reward={"score": score, "pred": ""}) for score in (1.0, 0.0)]
    assert refusal(tmp_path, records).startswith(":1: reward is a dict (keys: score, pred)")
    _, groups = imported(tmp_path, records, reward_key="score")
    assert rewards(groups["g"]) == [1.0, 0.0]
    assert refusal(tmp_path, [rollout(), rollout(reward="good")]).startswith(":2: reward 'good' is not")


def test_several_reward_columns_are_added_up(tmp_path: Path) -> None:
    records = [rollout(fmt=0.5, acc=1), rollout(fmt=0.5, acc=None), rollout(fmt=None, acc=None)]
    _, groups = imported(tmp_path, records, maps=["reward=fmt+acc"])
    assert rewards(groups["g"]) == [1.5, 0.5, None]


def test_infrastructure_is_kept_apart_from_behaviour(tmp_path: Path) -> None:
    records = [
        rollout(status="infra_abort", actions=["a", "b"], reward=0.0),
        rollout(error="connection reset", reward=0.0),
        rollout(actions=[], reward=0.0),
        rollout(status="done", reward=1.0),
        rollout(status="done", reward=1.0),
    ]
    report, groups = imported(tmp_path, records)
    failed = groups["g"].group.rollouts[:3]
    assert [r.status for r in failed] == [RolloutStatus.FAILED] * 3
    assert [r.failure.kind for r in failed if r.failure] == ["infra_abort", "error", "no_action"]
    assert rewards(groups["g"]) == [None, None, None, 1.0, 1.0]
    assert (report.failed, report.rewards_left_out, report.zero_variance) == (3, 3, 1)
    assert report.problems[1] == f"{tmp_path}/in.jsonl:1: reward 0 of a rollout that is failed left out"


def test_rewards_alone_are_imported_with_a_warning(tmp_path: Path) -> None:
    records = [{"group": 1, "score": n, "length": 12} for n in range(2)]
    report, _ = imported(tmp_path, records, maps=["reward=score"])
    assert (report.signal_bearing, report.failed, report.without_actions) == (1, 0, 2)
    assert report.warnings[0].startswith("no actions in any record: rewards only")
    report, _ = imported(tmp_path, records)
    assert report.warnings[1].startswith("no reward in any record: every group is unknown")
    assert "columns: group, score, length" in report.warnings[1]


def test_a_column_without_a_single_action_is_told(tmp_path: Path) -> None:
    report, _ = imported(tmp_path, [rollout(actions=[], reward=n) for n in range(2)])
    assert (report.failed, report.warnings) == (
        2,
        ["NO rollout has any action; is the column of actions right?"],
    )


def test_a_rollout_still_running_has_no_end(tmp_path: Path) -> None:
    report, groups = imported(tmp_path, [rollout(status="running"), rollout(reward=1)])
    assert groups["g"].group.rollouts[0].status is RolloutStatus.RUNNING
    assert (report.running, report.unknown, report.rewards_left_out) == (1, 1, 1)


def test_lists_beside_the_actions_describe_their_steps(tmp_path: Path) -> None:
    record = rollout(
        actions=["a", "b"],
        observations=["room", None],
        is_error=[False, True],
        tokens=[5, {"prompt_tokens": 7, "completion_tokens": 6}],
        finish_reasons=["stop", "stop"],
    )
    _, groups = imported(tmp_path, [record])
    first, second = groups["g"].group.rollouts[0].steps
    assert (first.observation, first.is_error, first.usage) == ("room", False, Usage(completion=5))
    assert (second.observation, second.is_error, second.usage) == (None, True, Usage(7, None, 6))
    assert "tokens needs a list with one value for each of 1 actions, not 2 values" in refusal(
        tmp_path, [rollout(tokens=[1, 2])]
    )


def test_a_finish_reason_of_the_rollout_is_that_of_its_last_completion(tmp_path: Path) -> None:
    records = [rollout(actions=list("ab"), finish_reason="length"), rollout(actions=[], finish_reason="stop")]
    report, groups = imported(tmp_path, records)
    cut_off = groups["g"].group.rollouts[0]
    assert (cut_off.actions, cut_off.status) == (("a",), RolloutStatus.TRUNCATED)
    assert (report.truncated, report.failed) == (1, 1)


def test_tool_names_complete_actions_that_are_arguments_only(tmp_path: Path) -> None:
    record = rollout(actions=['{"q": 1}', "search(x)"], tools=["search", "search"])
    _, groups = imported(tmp_path, [record], maps=["tools=tools"])
    assert groups["g"].group.rollouts[0].actions == ('search({"q":1})', "search(x)")


def test_totals_of_a_rollout_are_no_usage_of_a_step(tmp_path: Path) -> None:
    totals = {"prompt_tokens": 100, "completion_tokens": 30}
    records = [rollout(actions=["a", "b"], usage=totals), rollout(actions=["a", "b"], usage=12)]
    _, groups = imported(tmp_path, records)
    assert [step.usage for r in groups["g"].group.rollouts for step in r.steps] == [None] * 4
    assert groups["g"].begin.metadata["recorded_tokens"] == {
        "prompt": None,
        "completion": 42,
        "rollouts": [{"prompt": 100, "completion": 30}, {"prompt": None, "completion": 12}],
    }
    _, groups = imported(tmp_path, [rollout(usage=totals)])
    assert groups["g"].group.rollouts[0].steps[0].usage == Usage(100, None, 30)


def test_strata_are_declared_facts_of_the_whole_group(tmp_path: Path) -> None:
    records = [rollout(model="m", seed=n) for n in range(2)]
    _, groups = imported(tmp_path, records, maps=["metadata=model"])
    assert groups["g"].begin.metadata == {"model": "m"}
    assert ":2: metadata column 'seed' differs within group 'g' (0, 1)" in refusal(
        tmp_path, records, maps=["metadata=model+seed"]
    )
    assert "must hold plain values, not list" in refusal(
        tmp_path, [rollout(model=[1])], maps=["metadata=model"]
    )


def test_the_ids_of_rollouts_stay_known(tmp_path: Path) -> None:
    _, groups = imported(tmp_path, [rollout(rollout_id=name) for name in ("x", "y")])
    assert groups["g"].begin.metadata == {"rollout_ids": ["x", "y"]}
    _, groups = imported(tmp_path, [rollout(rollout_id=n) for n in range(2)])
    assert groups["g"].begin.metadata == {}


def test_answers_are_mapped_and_normalised_never_guessed(tmp_path: Path) -> None:
    records = [rollout(answer="Final Answer: 42.")]
    _, groups = imported(tmp_path, records)
    assert groups["g"].group.rollouts[0].answer is None
    _, groups = imported(tmp_path, records, maps=["answer=answer"])
    assert groups["g"].group.rollouts[0].answer == "42"


def test_late_rewards_become_events_that_no_decision_reads(tmp_path: Path) -> None:
    late = tmp_path / "rewards.jsonl"
    rows = [("g", "x", 1.0), ("g", "y", None), ("g", "z", 5), ("other", "x", 1)]
    late.write_text("".join(json.dumps({"group": g, "rollout": r, "reward": v}) + "\n" for g, r, v in rows))
    records = [
        rollout(rollout_id="x", reward=None),
        rollout(rollout_id="y", reward=None),
        rollout(rollout_id="z", status="timeout"),
    ]
    report, groups = imported(tmp_path, records, rewards_file=late)
    assert rewards(groups["g"]) == [1.0, None, None]
    assert groups["g"].group.rollouts[0].late_reward
    assert (report.late_rewards, report.skipped, report.unscored) == (2, 2, 1)
    assert f"{late}:4: skipped: no rollout 'x' in group 'other'" in report.problems
    assert f"{late}:3: skipped: rollout 'z' of group 'g' is failed" in report.problems


def test_late_rewards_know_groups_by_their_columns_and_rollouts_by_index(tmp_path: Path) -> None:
    late = tmp_path / "rewards.jsonl"
    late.write_text('{"m": "a", "id": 1, "rollout": 1, "reward": {"score": 2}}\n')
    records = [rollout(m="a", id=1, reward=None) for _ in range(2)]
    _, groups = imported(tmp_path, records, maps=["group=m+id"], rewards_file=late, reward_key="score")
    assert rewards(groups["a|1"]) == [None, 2.0]


def test_ids_that_a_table_made_floats_are_the_same_ids(tmp_path: Path) -> None:
    late = tmp_path / "rewards.jsonl"
    late.write_text('{"group": 7.0, "rollout": 1.0, "reward": 2}\n')
    _, groups = imported(tmp_path, [rollout(7, reward=None) for _ in range(2)], rewards_file=late)
    assert rewards(groups["7"]) == [None, 2.0]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (['{"group": "g", "rollout": 0, "reward": 1}'] * 2, ":2: rollout '0' of group 'g' is scored twice"),
        (['{"group": ["g"], "rollout": 0, "reward": 1}'], ":1: column 'group' holds a list"),
        (['{"group": "g", "rollout": NaN, "reward": 1}'], ":1: a late reward needs .* no `rollout`"),
        (['{"group": "g", "reward": 1}'], ":1: a late reward needs .* no `rollout`"),
        (['{"group": "g", "rollout": 0}'], ":1: a late reward needs .* no `reward`"),
        (['{"group": "g", "rollout": 0, "reward": "x"}'], ":1: reward 'x' is not a number"),
        (['{"group": "g", "rollout": 0, "reward": 1}'], "has reward 0 at .*in.jsonl:1 already"),
    ],
)
def test_late_rewards_that_cannot_be_right_are_refused(tmp_path: Path, lines: list[str], says: str) -> None:
    late = tmp_path / "rewards.jsonl"
    late.write_text("\n".join(lines))
    with pytest.raises((TraceError, RewardError), match=says):
        imported(tmp_path, [rollout()], rewards_file=late)


def test_a_late_reward_that_agrees_is_no_news(tmp_path: Path) -> None:
    late = tmp_path / "rewards.jsonl"
    late.write_text('{"group": "g", "rollout": 0, "reward": 0}\n')
    report, groups = imported(tmp_path, [rollout()], rewards_file=late)
    assert (report.late_rewards, report.skipped, rewards(groups["g"])) == (0, 0, [0.0])


def test_progress_ends_at_the_size_of_the_files(tmp_path: Path) -> None:
    told: list[int] = []
    report, _ = imported(tmp_path, [rollout(n) for n in range(5)], on_bytes=told.append)
    assert told == sorted(told)
    assert told[-1] == report.bytes == (tmp_path / "in.jsonl").stat().st_size


def test_many_problems_are_counted_and_some_listed(tmp_path: Path) -> None:
    report, _ = imported(tmp_path, [rollout(n, status="timeout", reward=None) for n in range(80)])
    assert (report.problem_count, len(report.problems), report.failed) == (80, 50, 80)
    assert json.loads(json.dumps(report.to_dict()))["sizes"] == {"1": 80}


def test_several_files_may_share_groups(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"rank{rank}.jsonl").write_text(
            "".join(json.dumps(rollout(g, reward=rank)) + "\n" for g in "ab")
        )
    with Recorder(tmp_path / "out" / "t.jsonl") as out:
        report = import_rollouts("generic", sorted(tmp_path.glob("rank*")), out)
    assert (report.files, report.groups, report.sizes) == (3, 2, {3: 2})
    assert [rewards(g) for g in read_groups(tmp_path / "out")] == [[0.0, 1.0, 2.0]] * 2


def test_the_usual_mistakes_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown format 'tau' .known: generic, tau-bench"):
        imported(tmp_path, [rollout()], form="tau")
    assert "no rollouts in 1 file" in refusal(tmp_path, [])
    assert ":1: no record has a column 'sucess'" in refusal(tmp_path, [rollout()], maps=["reward=sucess"])
    assert ":2: no group id in group_id" in refusal(tmp_path, [rollout(), {"actions": []}])
    with Recorder(tmp_path / "t.jsonl") as out, pytest.raises(TraceError, match="both read and written"):
        import_rollouts("generic", tmp_path / "t.jsonl", out)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
COLUMNS = [
    *("group_id", "task_id", "rollout_id", "attempt", "group_size", "status", "error", "actions", "messages"),
    *("observations", "is_error", "reward", "tokens", "prompt", "traj", "trial", "info", "completion"),
    *("example_id", "choices", "usage", "trajectories", "steps", "token_usage", "step", "final_answer"),
]


@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(st.dictionaries(st.sampled_from(COLUMNS), VALUES, max_size=8), max_size=4),
)
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_stands_in_the_columns_is_taken_or_refused_on_purpose(
    tmp_path: Path, form: str, records: list[dict[str, Any]]
) -> None:
    filled = [{"group_id": "g", "task_id": 0, "example_id": 0, "completion": [], **r} for r in records]
    filled = [{"traj": [], "prompt": "", "messages": [], "trajectories": [], **r} for r in filled]
    with suppress(SelectiveRolloutError):
        imported(tmp_path, filled, form=form)


def test_deep_values_break_nothing(tmp_path: Path) -> None:
    deep = "[" * 900 + "]" * 900
    (tmp_path / "in.jsonl").write_text(
        f'{{"group_id": 1, "prompt": {deep}, "actions": [{deep}], "reward": 0}}\n'
    )
    with Recorder(tmp_path / "out.jsonl") as out:
        with suppress(TraceError):
            import_rollouts("generic", tmp_path / "in.jsonl", out)
