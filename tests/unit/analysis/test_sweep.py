"""Sweeps of small made-up workloads whose answer is known."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from selective_rollout.analysis.report.sweep_view import sweep_view
from selective_rollout.analysis.split import Split, require_unseen
from selective_rollout.analysis.sweep import sweep, sweep_traces
from selective_rollout.analysis.sweep_files import require_free, write_sweep
from selective_rollout.analysis.sweep_grid import SweepGrid, symbol_maker
from selective_rollout.analysis.sweep_result import SweepResult, SweepVerdict
from selective_rollout.errors import ConfigError
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Group, Rollout, RolloutStatus, Step

GRID = SweepGrid(
    taus=(0.1, 0.2, 0.5, 0.6), start_steps=(2, 4), check_everys=(None, 2), signals=("distance", "repeat_rate")
)
AGREE = ["abcdef", "abcdef", "abcdef"]
PART = ["abcdef", "uvwxyz", "ABCDEF"]


def group(
    name: str, rows: list[str], rewards: list[float | None], task: str = "", **metadata: object
) -> Group:
    rollouts = tuple(
        Rollout(i, tuple(Step(k, a) for k, a in enumerate(row, start=1)), RolloutStatus.FINISHED, reward)
        for i, (row, reward) in enumerate(zip(rows, rewards, strict=True))
    )
    return Group(name, len(rollouts), rollouts, task or name, metadata=metadata)


def telling(count: int) -> list[Group]:
    """Groups that agree exactly if they carry no signal."""
    fails = [group(f"z{i}", AGREE, [0.0] * 3) for i in range(count)]
    return fails + [group(f"s{i}", PART, [0.0, 1.0, 1.0]) for i in range(count)]


def telling_nothing(count: int) -> list[Group]:
    draw = random.Random(5)
    rewards = ([0.0] * 3, [1.0, 0.0, 1.0])
    return [
        group(f"g{i}", ["".join(draw.choices("ab", k=6)) for _ in range(3)], rewards[i % 2])
        for i in range(count)
    ]


def test_a_signal_that_tells_is_better_than_chance() -> None:
    result = sweep(telling(15), GRID)
    assert result.verdict is SweepVerdict.BETTER_THAN_CHANCE
    assert result.best is not None
    assert (result.best.measure.name, result.best.area.value) == ("distance", 1.0)
    assert result.best.all_success.value is None
    assert result.best.all_fail.value == 1.0
    assert result.best.spearman == pytest.approx(1.0)
    [rule] = result.front
    assert (rule.accounting.right, rule.accounting.wrong) == (15, 0)
    assert rule.accounting.saved == pytest.approx(15 * 12 / (30 * 18))
    assert (rule.start_step, rule.tau) == (2, 0.1)


def test_noise_is_no_better_than_chance() -> None:
    result = sweep(telling_nothing(40), GRID)
    assert result.verdict is SweepVerdict.NO_BETTER_THAN_CHANCE
    assert result.words.startswith("No better than chance here: the best of 4 configurations")
    assert result.chance is not None
    assert result.chance.median > 0.5, "the best of several beats a coin even if nothing is there"


def test_one_kind_of_group_cannot_be_told_apart() -> None:
    result = sweep(telling(3)[:3], GRID)
    assert result.verdict is SweepVerdict.ONE_CLASS
    assert "3 zero-variance and 0 signal-bearing groups" in result.words
    assert result.chance is None


def test_clustered_groups_are_worth_no_more_than_their_tasks() -> None:
    few = telling_nothing(8)
    copies = [
        group(
            f"{g.id} {copy}", ["".join(r.actions) for r in g.rollouts], [r.reward for r in g.rollouts], g.id
        )
        for g in few
        for copy in range(12)
    ]
    grid = SweepGrid(start_steps=(4,), check_everys=(None,), signals=("distance",))
    alone, copied = sweep(few, grid), sweep(copies, grid)
    assert copied.tasks == 8
    assert copied.best is not None
    assert alone.best is not None
    assert copied.best.area.value == alone.best.area.value
    assert copied.best.area.interval == alone.best.area.interval
    assert copied.chance is not None
    assert alone.chance is not None
    assert copied.chance.p95 == pytest.approx(alone.chance.p95, abs=0.1)


def test_of_thresholds_with_the_same_cuts_the_smallest_is_kept() -> None:
    once = SweepGrid(taus=(0.2, 0.3, 0.5, 1.0), start_steps=(2,), check_everys=(None,), signals=("distance",))
    groups = [group("z", ["aa", "aa", "ab"], [0.0] * 3), group("s", ["abc", "xyz", "uvw"], [0.0, 1.0, 1.0])]
    assert [rule.tau for rule in sweep(groups, once).rules] == []
    longer = [group("z", ["aaa", "aaa", "aba"], [0.0] * 3), *groups[1:]]
    assert [rule.tau for rule in sweep(longer, once).rules] == [0.5]


def test_a_single_configuration_is_a_replay() -> None:
    grid = SweepGrid(taus=(0.2,), start_steps=(4,), check_everys=(None,), signals=("distance",))
    document = sweep(telling(2), grid).to_dict()
    assert document["replay"]["right"] == 2
    assert document["replay"]["lossless_steps"] == 2 * 3 * 2
    assert sweep(telling(2), GRID).to_dict()["replay"] is None


def test_held_out_reward_has_its_own_front() -> None:
    agreeing = group("z", AGREE, [0.0] * 3, held_out_reward=0.0)
    parted = group("s", PART, [0.0, 1.0, 1.0], held_out_reward="0.5")
    rules = sweep([agreeing, parted], GRID).rules
    assert {rule.held_out for rule in rules} == {0.5}
    assert [rule.name for rule in rules if rule.on_held_out_front] == ["distance < 0.1 at 2"]
    assert all(rule.held_out is None for rule in sweep(telling(2), GRID).rules)


def test_groups_that_a_gate_stopped_are_left_out() -> None:
    cut = Group("c", 1, (Rollout(0, (), RolloutStatus.CUT),), "c")
    result = sweep([cut, *telling(2)], GRID)
    assert result.nothing.groups == 4
    assert any("1 groups left out" in warning for warning in result.warnings)
    with pytest.raises(ConfigError, match=r"no group ran to its own end \(1 were stopped by a gate\)"):
        sweep([cut], GRID)


def test_what_stands_in_the_way_is_said() -> None:
    unscored = [group("u", ["aaa", "bbb"], [None, 1.0])]
    assert any("1 of 1 groups have no label" in warning for warning in sweep(unscored, GRID).warnings)
    lonely = [group("l", ["aaa"], [1.0])]
    assert any("every group has a single member" in warning for warning in sweep(lonely, GRID).warnings)
    silent = SweepGrid(signals=("distance", "error_share"))
    assert any("error_share" in warning for warning in sweep(telling(2), silent).warnings)


class TestHistory:
    GRID = SweepGrid(taus=(0.1,), start_steps=(2,), check_everys=(None,), signals=("distance",))

    def visits(self, task: str, *rewards: list[float | None]) -> list[Group]:
        return [group(f"{task}{i}", AGREE, row, task) for i, row in enumerate(rewards)]

    def test_a_veto_needs_enough_equal_rewards(self) -> None:
        fails, mixed = [0.0] * 3, [0.0, 1.0, 0.0]
        result = sweep([*self.visits("a", fails, fails, fails), *self.visits("b", mixed, mixed)], self.GRID)
        study = result.history
        assert study is not None
        assert study.with_past == 3
        cuts = [(rule.last, rule.accounting.right, rule.accounting.wrong) for rule in study.rules[:4]]
        assert cuts == [(0, 3, 2), (2, 2, 0), (4, 1, 0), (8, 0, 0)]

    def test_a_group_that_is_cut_leaves_no_rewards(self) -> None:
        study = sweep(self.visits("a", [0.0] * 3, [0.0, 1.0, 0.0], [0.0] * 3), self.GRID).history
        assert study is not None
        assert [(r.last, r.accounting.right, r.accounting.wrong) for r in study.rules[1:2]] == [(2, 1, 1)]

    def test_a_skipped_group_saves_all_its_steps(self) -> None:
        result = sweep(self.visits("a", *[[1.0] * 3] * 40), self.GRID)
        assert result.history is not None
        skip = result.history.rules[4]
        assert skip.skips
        assert 20 < skip.accounting.cuts < 39
        assert skip.accounting.lossless.steps == 18 * skip.accounting.cuts

    def test_the_past_predicts_prompts_that_stay_as_they_are(self) -> None:
        groups = []
        for visit in range(3):
            for task in range(6):
                rewards: list[float | None] = [0.0] * 3 if task % 2 else [0.0, 1.0, 1.0]
                groups.append(group(f"{task}/{visit}", PART, rewards, f"t{task}"))
        study = sweep(groups, self.GRID).history
        assert study is not None
        assert study.predictor.value == 1.0

    def test_without_a_second_visit_there_is_nothing_to_study(self) -> None:
        assert sweep(telling(3), self.GRID).history is None


class TestGrid:
    def test_names_and_ranges_are_checked(self) -> None:
        with pytest.raises(ConfigError, match="unknown signal 'mood'; known ones are distance"):
            SweepGrid(signals=("mood",))
        with pytest.raises(ConfigError, match="unknown canonicaliser 'mood'"):
            SweepGrid(canonicalisers=("mood",))
        with pytest.raises(ConfigError, match=r"sweep\.taus is empty"):
            SweepGrid(taus=())
        with pytest.raises(ConfigError, match=r"gate\.start_step"):
            SweepGrid(start_steps=(0,))

    def test_distances_are_taken_under_every_reading(self) -> None:
        grid = SweepGrid(
            signals=("distance", "tool_distance", "repeat_rate"),
            canonicalisers=("recorded", "name_only", "scrub_volatile"),
        )
        names = [measure.name for measure in grid.measures()]
        assert names == ["distance", "distance:name_only", "distance:scrub_volatile", "repeat_rate"]
        symbol = symbol_maker("name_only")
        assert symbol is not None
        assert symbol('take({"id": 3})') == "take"

    def test_only_distances_are_gates_of_their_own(self) -> None:
        grid = SweepGrid(signals=("distance_unpadded", "char_distance", "repeat_rate"))
        gates = [measure.gate(0.1, 5, 2) for measure in grid.measures()]
        assert [gate and (gate.level, gate.padding, gate.check_every) for gate in gates] == [
            ("action", "none", 2),
            ("char", "none", None),
            None,
        ]


def recorded(path: Path, groups: list[Group]) -> Path:
    with Recorder(path) as recorder:
        for each in groups:
            with recorder.group(each.id, each.size, task_id=each.task_id) as writing:
                for rollout in each.rollouts:
                    for action in rollout.actions:
                        writing.step(rollout.index, action)
                    writing.finish(rollout.index, rollout.reward)
    return path


def test_a_sweep_sees_its_part_of_the_tasks_and_leaves_a_mark(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "t.jsonl", telling(30))
    split = Split(0.5, seed=2)
    result = sweep_traces([trace], GRID, split=split)
    expected = sum(split.part(each.task_id) == "choose" for each in telling(30))
    assert result.nothing.groups == expected
    assert result.to_dict()["looked_at"] == "choose"
    require_unseen([trace], split)
    with pytest.raises(ConfigError, match="another part of its tasks"):
        require_unseen([trace], Split(0.3, seed=2))


def test_a_sweep_of_everything_leaves_nothing_to_certify_on(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "t.jsonl", telling(5))
    told: list[int] = []
    result = sweep_traces([trace], GRID, split=None, on_bytes=told.append)
    assert result.to_dict()["looked_at"] == "all"
    assert told[-1] == trace.stat().st_size
    with pytest.raises(ConfigError, match="looked at all of its tasks"):
        require_unseen([trace], Split())


def test_the_same_data_give_the_same_document() -> None:
    first, second = (sweep(telling(6), GRID).to_dict() for _ in range(2))
    assert json.dumps(first, allow_nan=False) == json.dumps(second, allow_nan=False)


class TestFiles:
    def result(self) -> SweepResult:
        made = [*telling(6), *telling_nothing(6)]
        made[0] = group("z0", AGREE, [0.0] * 3, held_out_reward=1.0)
        return sweep(made, GRID)

    def test_document_and_pictures_are_written_whole(self, tmp_path: Path) -> None:
        result = self.result()
        require_free(tmp_path)
        written = write_sweep(tmp_path / "new", result, result.to_dict())
        assert sorted(path.name for path in written) == ["pareto.png", "signals.png", "sweep.json"]
        assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(p.name for p in written)
        assert written[0].read_bytes().startswith(b"\x89PNG")
        with pytest.raises(ConfigError, match="exists: name another folder"):
            require_free(tmp_path / "new")

    def test_a_folder_that_cannot_be_made_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        result = self.result()
        with pytest.raises(ConfigError, match="cannot write the sweep there"):
            write_sweep(tmp_path / "file", result, result.to_dict())

    def test_a_sweep_without_cuts_can_be_drawn(self, tmp_path: Path) -> None:
        result = sweep([group("s", PART, [0.0, 1.0, 1.0])], GRID)
        assert write_sweep(tmp_path, result, result.to_dict())

    def test_the_report_can_draw_it(self) -> None:
        view = sweep_view(self.result().report_view())
        assert view.signals == ["distance", "repeat_rate"]
        assert view.steps == [2, 4]
        assert view.null_95 is not None
        assert any(point.on_front for point in view.points)
