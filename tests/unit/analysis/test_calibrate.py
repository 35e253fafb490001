"""From recorded groups to a certificate, or to an honest off."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from selective_rollout.analysis.calibrate import SCORE_GRID, Calibration, calibrate
from selective_rollout.analysis.certify import Question, Verdict
from selective_rollout.analysis.inference import survivor_agrees
from selective_rollout.analysis.sample import Collector, Sample, collect
from selective_rollout.analysis.split import Split
from selective_rollout.analysis.verdicts import explain
from selective_rollout.errors import ConfigError
from selective_rollout.gate.certificate import Workload
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.group import GroupGate
from selective_rollout.trace.reader import RecordedGroup
from selective_rollout.trace.schema import GroupEvent
from selective_rollout.types import Group, Rollout, RolloutStatus, Step

RULE = GateConfig(start_step=3)
ALL = Split(0.0)


def group(
    rows: Sequence[str],
    rewards: Sequence[float | None],
    *,
    id: str = "g",
    task_id: str | None = None,
    error: bool | None = None,
    status: RolloutStatus = RolloutStatus.FINISHED,
    **metadata: Any,
) -> Group:
    """Rows of one-letter actions."""
    members = tuple(
        Rollout(i, tuple(Step(k, a, is_error=error) for k, a in enumerate(row, start=1)), status, reward)
        for i, (row, reward) in enumerate(zip(rows, rewards, strict=True))
    )
    return Group(id, len(rows), members, task_id or id, metadata=metadata)


def recorded(made: Group, history: list[float] | None = None) -> RecordedGroup:
    begin = GroupEvent(group=made.id, task_id=made.task_id, size=made.size, mode="observe", history=history)
    return RecordedGroup(made, begin, None, (), 0, 0, 0, where="trace.jsonl:2")


def stream(n: int, seed: int = 0, *, informative: bool = True, **metadata: Any) -> Iterator[Group]:
    """Groups of four: converged ones are all-fail if the distance informs, else rewards are a coin's."""
    rng = random.Random(seed)
    for i in range(n):
        converged = rng.random() < 0.4
        rows = ["aaaaaa"] * 4 if converged else ["".join(rng.choices("abcdef", k=6)) for _ in range(4)]
        equal = rng.random() < 0.95 if converged and informative else rng.random() < 0.3
        rewards = [0.0] * 4 if equal else [0.0, 1.0, 0.0, 0.0]
        yield group(rows, rewards, id=f"g{seed}-{i}", **metadata)


def sample_of(
    groups: Iterable[Group], rules: Sequence[GateConfig] = (RULE,), split: Split = ALL, **options: Any
) -> Sample:
    return collect(map(recorded, groups), Collector(rules, split, **options))


def run(
    groups: Iterable[Group], rules: Sequence[GateConfig] = (RULE,), split: Split = ALL, **options: Any
) -> Calibration:
    kept = {name: options.pop(name) for name in ("features", "stratum_key") if name in options}
    question = options.pop("question", Question())
    sample = sample_of(groups, rules, split, **kept)
    return calibrate(sample, rules, question, stratum_key=kept.get("stratum_key"), **options)


class TestSample:
    def test_units_say_what_the_gate_would_do(self) -> None:
        rule = replace(RULE, check_every=2)
        made = group(["aabb", "aaabbbbb", "aaabbbb"], [0.0, 1.0, 0.0])
        [entry] = sample_of([made], [rule]).certify
        [unit] = entry.units
        assert not unit.harmless
        for tau in (0.05, 0.2, 0.23, 0.5, 1.0):
            gate = GroupGate(replace(rule, tau=tau), 3)
            for rollout in made.rollouts:
                *before, last = rollout.actions
                for action in before:
                    gate.report(rollout.index, action)
                gate.finish(rollout.index, rollout.reward, action=last)
            cut_at = gate.fired.step if gate.fired is not None else None
            left = (
                None if cut_at is None else sum(max(0, len(r.steps) - (cut_at or 0)) for r in made.rollouts)
            )
            assert unit.saved(tau) == left
        assert unit.steps == 19

    def test_what_is_left_out_is_counted_and_said(self) -> None:
        groups = [
            group(["aaaa", "aaaa"], [0.0, None], id="unscored"),
            group(["aaaa"], [0.0], id="alone"),
            group(["aaaa", "bbbb"], [0.0, 0.0], id="a", prompt="same"),
            group(["aaaa", "bbbb"], [0.0, 0.0], id="b", prompt="same"),
            replace(group(["aaaa", "bbbb"], [0.0, 1.0], id="c"), policy_version="2"),
        ]
        sample = sample_of(groups)
        assert (sample.groups, sample.unknown, sample.singletons, len(sample.certify)) == (5, 1, 1, 3)
        assert sample.group_size is None
        said = "\n".join(sample.warnings)
        assert "1 of 5 groups left out: unscored members could flip their label" in said
        assert "1 groups share a prompt but not a task id" in said
        assert "group sizes differ (1 of 1, 4 of 2)" in said
        assert "2 policy versions recorded" in said

    def test_groups_of_one_are_a_grouping_mistake(self) -> None:
        sample = sample_of(group(["aaaa"], [1.0], id=f"g{i}") for i in range(5))
        assert any("every group has a single member" in warning for warning in sample.warnings)
        with pytest.raises(ConfigError, match="no labelled group is left to certify on"):
            calibrate(sample, [RULE], Question())

    def test_a_group_that_was_stopped_is_refused_with_its_place(self) -> None:
        cut = group(["aaaa", "aaaa"], [None, None], id="x", status=RolloutStatus.CUT)
        with pytest.raises(ConfigError, match=r"trace\.jsonl:2: a gate stopped group 'x', so nobody knows"):
            sample_of([cut])

    def test_one_group_of_each_task_certifies_and_the_others_choose(self) -> None:
        split = Split(0.4)
        groups = [
            group(["aaaa", "abcd"], [0.0, 1.0], id=f"t{i % 20}/{i}", task_id=f"t{i % 20}") for i in range(60)
        ]
        sample = sample_of(groups, split=split)
        choosers = {f"t{i}" for i in range(20) if split.part(f"t{i}") == "choose"}
        assert {entry.units[0].task_id for entry in sample.certify}.isdisjoint(choosers)
        assert len(sample.certify) == 20 - len(choosers)
        assert len(sample.choose) == 3 * len(choosers)

    def test_the_history_veto_reads_what_came_before(self) -> None:
        rule = replace(RULE, history_mixed=2)

        split = next(split for seed in range(100) if (split := Split(0.4, seed)).part("t") == "choose")

        def cut(*rewards: list[float], past: list[float] | None = None) -> bool:
            """Whether the last of several visits of a task is cut."""
            visits = [group(["aaaa"] * 2, row, id=f"g{i}", task_id="t") for i, row in enumerate(rewards)]
            made = [recorded(visit, past if visit is visits[-1] else None) for visit in visits]
            return bool(collect(made, Collector([rule], split)).choose[-1].units[0].looks)

        assert not cut([0.0, 0.0]), "without a past nothing is cut"
        assert cut([0.0, 0.0], [0.0, 0.0])
        assert not cut([0.0, 1.0], [0.0, 0.0])
        assert cut([0.0, 1.0], [0.0, 0.0], past=[0.0, 0.0]), "what the trace says was read counts"

    def test_strata_must_be_declared_for_every_group(self) -> None:
        with pytest.raises(ConfigError, match=r"group 'g' has no metadata 'type' \(keys: kind\)"):
            sample_of([group(["aaaa", "aaaa"], [0.0, 0.0], kind="x")], stratum_key="type")


class TestCalibrate:
    def test_an_informative_distance_is_certified(self) -> None:
        result = run(stream(300), workload=Workload(model="m", group_size=4))
        assert result.verdict is Verdict.CERTIFIED
        made = result.certificate
        assert made is not None
        assert made.rule == replace(RULE, tau=0.3) == result.rule
        assert (made.n_signal, made.false_cuts) == (result.chosen.n_signal, result.chosen.false_cuts)
        assert (made.choose_share, made.chains, made.workload.model) == (0.0, 1, "m")
        assert made.bound <= 0.1

    def test_a_coin_is_not(self) -> None:
        result = run(stream(300, informative=False))
        assert result.verdict is Verdict.NO_BETTER_THAN_CHANCE
        assert result.certificate is None

    def test_order_and_repetition_change_nothing(self) -> None:
        groups = list(stream(200))
        assert run(groups).to_dict() == run(reversed(groups)).to_dict()

    def test_a_split_certifies_on_the_other_tasks(self) -> None:
        result = run(stream(500), split=Split(0.4))
        assert result.chosen.groups == len(result.sample.certify) < 320
        assert result.certificate is not None
        assert result.certificate.choose_share == 0.4

    def test_several_start_steps_without_a_split_share_delta(self) -> None:
        rules = [replace(RULE, start_step=k) for k in (2, 3, 4)]
        result = run(stream(300), rules)
        assert [finding.level for finding in result.findings] == [0.05 / 3] * 3
        assert [finding.start_step for finding in result.findings] == [2, 3, 4]
        assert result.certificate is not None
        assert result.certificate.chains == 3
        assert result.certificate.rule.start_step == result.chosen.start_step

    def test_with_a_split_one_start_step_is_chosen_first(self) -> None:
        rules = [replace(RULE, start_step=k) for k in (2, 3, 4)]
        result = run(stream(500), rules, Split(0.4))
        [finding] = result.findings
        assert finding.level == 0.05
        assert finding.start_step == 2, "the earliest of equally good ones saves most"

    def test_strata_share_delta_or_stand_alone(self) -> None:
        groups = [
            *stream(400, 1, type="x"),
            *stream(400, 2, type="y"),
            *stream(60, 3, informative=False, type="z"),
        ]
        joint = run(groups, stratum_key="type")
        assert [finding.stratum for finding in joint.findings] == ["x", "y", "z"]
        assert {finding.level for finding in joint.findings} == {0.05 / 3}
        made = joint.certificate
        assert made is not None
        assert (made.stratum_key, made.joint, made.chains) == ("type", True, 3)
        assert [stratum.name for stratum in made.strata] == ["x", "y"]
        assert made.tau_for({"type": "z"}) == 0.0
        assert made.rule.tau == max(stratum.tau for stratum in made.strata)
        alone = run(groups, stratum_key="type", joint=False)
        assert {finding.level for finding in alone.findings} == {0.05}
        assert alone.certificate is not None
        assert (alone.certificate.joint, alone.certificate.chains) == (False, 1)

    def test_a_gate_worse_than_fresh_prompts_is_pointed_out(self) -> None:
        groups = [
            *(group(["aaaa"] * 4, [0.0] * 4, id=f"z{i}") for i in range(60)),
            *(group(["aaaa"] * 4, [0.0, 1.0, 0.0, 0.0], id=f"s{i}") for i in range(55)),
            *(group(["a" * 80, *["b" * 80] * 3], [0.0, 1.0, 0.0, 0.0], id=f"k{i}") for i in range(45)),
            *(group(["abcd", "bcda", "cdab", "dabc"], [0.0] * 4, id=f"m{i}") for i in range(1)),
        ]
        result = run(groups, question=Question(alpha=0.7))
        assert result.verdict is Verdict.CERTIFIED
        assert any("is not above 1: without a gate" in warning for warning in result.warnings)

    def test_it_is_plain_data(self) -> None:
        document = json.loads(json.dumps(run(stream(100), split=Split(0.4)).to_dict(), allow_nan=False))
        assert {"tau", "cuts", "false_cuts", "n_signal", "needed", "needed_min", "verdict", "gate"} <= set(
            document
        )
        assert document["choose_groups"] + document["certify_tasks"] == document["recorded_groups"] == 100


def futile(n: int) -> Iterator[Group]:
    """Errors foretell all-fail groups and equal actions all-success ones; neither alone tells both."""
    rng = random.Random(5)
    for i in range(n):
        kind = rng.choice(["fail", "success", "mixed", "mixed"])
        rows = (
            ["aaaaaa"] * 4 if kind == "success" else ["".join(rng.choices("abcdef", k=6)) for _ in range(4)]
        )
        rewards = {"fail": [0.0] * 4, "success": [1.0] * 4, "mixed": [0.0, 1.0, 0.0, 1.0]}[kind]
        yield group(rows, rewards, id=f"g{i}", error=kind == "fail" and rng.random() < 0.95)


class TestScore:
    FEATURES = ("distance", "error_share")

    def test_a_score_that_sees_both_sides_takes_over(self) -> None:
        result = run(futile(400), split=Split(0.4), fit=True, features=self.FEATURES)
        assert result.score is not None
        assert result.score.recommended
        assert result.score.auroc is not None
        assert result.score.auroc > 0.9
        made = result.certificate
        assert made is not None
        assert made.rule.score == result.score.score
        assert (made.grid, result.question.grid) == (SCORE_GRID, SCORE_GRID)
        plain = run(futile(400), split=Split(0.4))
        assert (result.chosen.saved or 0) > 1.3 * (plain.chosen.saved or 0)

    def test_one_that_adds_nothing_does_not(self) -> None:
        result = run(stream(400), split=Split(0.4), fit=True, features=("distance", "repeat_rate"))
        assert result.score is not None
        assert not result.score.recommended
        assert result.rule.score is None
        assert result.question.grid == Question().grid
        assert result.to_dict()["score"]["recommended"] is False

    def test_the_certified_score_cuts_live_what_it_was_certified_on(self) -> None:
        groups = list(futile(400))
        result = run(groups, split=Split(0.4), fit=True, features=self.FEATURES)
        certify = [made for made in groups if Split(0.4).part(made.task_id) == "certify"]
        live = sample_of(certify, [result.rule])
        cuts = [entry.units[0].saved(result.rule.tau) is not None for entry in live.certify]
        assert sum(cuts) == result.chosen.cuts

    @pytest.mark.parametrize(
        ("split", "steps", "message"),
        [(ALL, (3,), "calibrate with a split"), (Split(0.4), (3, 4), "a score is fitted at one start_step")],
    )
    def test_it_needs_tasks_of_its_own(self, split: Split, steps: tuple[int, ...], message: str) -> None:
        rules = [replace(RULE, start_step=k) for k in steps]
        with pytest.raises(ConfigError, match=message):
            run(futile(50), rules, split, fit=True, features=self.FEATURES)


def voters(n: int, seed: int = 0, *, informative: bool = True) -> Iterator[Group]:
    """Groups of five without rewards: those that act alike answer alike, if the distance informs."""
    rng = random.Random(seed)
    for i in range(n):
        converged = rng.random() < 0.4
        rows = ["aaaaaa"] * 5 if converged else ["".join(rng.choices("abcdef", k=6)) for _ in range(5)]
        right = 0.97 if converged and informative else 0.65
        made = group(rows, [None] * 5, id=f"v{seed}-{i}")
        answers = ["x" if rng.random() < right else rng.choice("yz") for _ in range(5)]
        members = (replace(r, answer=a) for r, a in zip(made.rollouts, answers, strict=True))
        yield replace(made, rollouts=tuple(members))


class TestAnswerRisk:
    SURVIVOR = replace(RULE, outcome="survivor")
    QUESTION = Question(risk="answer")

    def run(self, groups: Iterable[Group], split: Split = ALL, **options: Any) -> Calibration:
        sample = sample_of(groups, [self.SURVIVOR], split, risk="answer", **options)
        return calibrate(sample, [self.SURVIVOR], self.QUESTION)

    def test_it_is_taken_over_all_tasks_whose_full_vote_is_known(self) -> None:
        groups = list(voters(400))
        result = self.run(groups)
        known = [made for made in groups if survivor_agrees(made) is not None]
        cut = [made for made in known if len({rollout.actions for rollout in made.rollouts}) == 1]
        differ = [made for made in cut if not survivor_agrees(made)]
        finding, made = result.chosen, result.certificate
        assert result.verdict is Verdict.CERTIFIED
        assert (finding.groups, finding.cuts, finding.false_cuts) == (len(known), len(cut), len(differ))
        assert (finding.n_signal, finding.trials, finding.efficiency) == (None, len(known), None)
        assert finding.base_rate == sum(map(survivor_agrees, known)) / len(known)
        assert made is not None
        assert (made.risk, made.n_signal, made.rule.outcome) == ("answer", None, "survivor")
        assert finding.bound == made.bound <= 0.1
        assert "at most 0.1 of all groups are cut and answered differently" in explain(finding, self.QUESTION)

    def test_the_survivors_own_steps_are_not_saved(self) -> None:
        finding = self.run(voters(400)).chosen
        assert finding.cuts is not None
        assert (finding.lossless_steps or 0) + (finding.lossy_steps or 0) == finding.cuts * 4 * 3

    def test_it_takes_the_same_split_and_one_group_of_each_task(self) -> None:
        groups = [replace(made, task_id=f"t{i % 150}") for i, made in enumerate(voters(450))]
        result = self.run(groups, Split(0.4))
        certifying = {f"t{i}" for i in range(150) if Split(0.4).part(f"t{i}") == "certify"}
        assert result.chosen.groups == len(certifying)

    def test_distances_that_say_nothing_are_off(self) -> None:
        result = self.run(voters(400, informative=False))
        assert result.verdict is Verdict.NO_BETTER_THAN_CHANCE
        assert "by the exact rule" in explain(result.chosen, self.QUESTION)

    def test_survivors_that_always_agree_need_no_gate(self) -> None:
        made = [replace(g, rollouts=tuple(replace(r, answer="x") for r in g.rollouts)) for g in voters(100)]
        result = self.run(made)
        assert result.verdict is Verdict.CERTIFIED_BUT_USELESS
        assert "fewer rollouts for every group would do" in explain(result.chosen, self.QUESTION)

    def test_too_few_say_how_many_are_needed(self) -> None:
        result = self.run(voters(20))
        assert result.verdict is not Verdict.CERTIFIED
        assert result.chosen.needed_min == 29

    def test_votes_that_are_not_known_are_left_out_and_said(self) -> None:
        silent = [replace(g, rollouts=tuple(replace(r, answer=None) for r in g.rollouts)) for g in voters(3)]
        sample = sample_of([*silent, *voters(50, 1)], [self.SURVIVOR], risk="answer")
        assert (sample.unknown, len(sample.certify)) == (3, 50)
        assert "3 of 53 groups left out: their full vote is not known" in sample.warnings
        with pytest.raises(ConfigError, match="record more groups, with answers"):
            self.run(silent)

    def test_nothing_but_survivors_can_be_asked(self) -> None:
        with pytest.raises(ConfigError, match="the rule's outcome must be survivor"):
            Collector([RULE], ALL, risk="answer")
        sample = sample_of(voters(50), [self.SURVIVOR], Split(0.4), risk="answer")
        with pytest.raises(ConfigError, match="a score is fitted to rewards"):
            calibrate(sample, [self.SURVIVOR], self.QUESTION, fit=True)

    def test_what_is_certified_on_answers_cuts_a_subset_at_lower_taus(self) -> None:
        units = [entry.units[0] for entry in sample_of(voters(200), [self.SURVIVOR], risk="answer").certify]
        harm = [
            sum(unit.saved(tau) is not None and not unit.harmless for unit in units)
            for tau in self.QUESTION.taus
        ]
        assert harm == sorted(harm)


@pytest.fixture(scope="module")
def airline(shared_data: Path) -> list[Group]:
    """Real tool-agent groups: 50 tasks of four rollouts each."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in (shared_data / "tau_airline_gpt4o.jsonl").read_text().splitlines():
        row = json.loads(line)
        rows[row["group_id"]].append(row)
    return [
        Group(
            name,
            len(members),
            tuple(
                Rollout(
                    index,
                    tuple(Step(k, action) for k, action in enumerate(member["actions"], start=1)),
                    RolloutStatus.FINISHED,
                    float(member["reward"]),
                )
                for index, member in enumerate(members)
            ),
            name,
        )
        for name, members in rows.items()
    ]


@pytest.mark.parametrize("alpha", [0.15, 0.20])
@pytest.mark.parametrize("share", [0.0, 0.4])
@pytest.mark.parametrize("step", [5, 10, 15])
def test_on_the_airline_the_honest_answer_is_off(
    airline: list[Group], alpha: float, share: float, step: int
) -> None:
    result = run(airline, [GateConfig(start_step=step)], Split(share), question=Question(alpha))
    assert result.certificate is None
    assert not result.chosen.on


def test_the_airline_certificates_that_would_have_been_worthless(airline: list[Group]) -> None:
    bare = GateConfig(vetoes=())
    for alpha, tau, cuts, false_cuts in ((0.15, 0.2, 0, 0), (0.2, 0.3, 1, 1)):
        question = Question(alpha, grid="0.05:0.30:0.05")
        finding = run(airline, [bare], question=question).chosen
        assert (finding.tau, finding.cuts, finding.false_cuts, finding.n_signal) == (
            tau,
            cuts,
            false_cuts,
            26,
        )
        assert finding.verdict is Verdict.NO_BETTER_THAN_CHANCE
