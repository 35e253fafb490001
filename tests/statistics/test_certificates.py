"""The bound fails in at most delta of the repeats: alone, clustered, after choosing, in strata, with a score.

Each simulation draws data sets from a population whose false-cut rate is known at every threshold, and counts
how often the certified threshold has a true rate above alpha. Where a naive procedure is shown to fail, the
same draws are used for both.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable

import pytest

from selective_rollout.analysis.calibrate import best_rule
from selective_rollout.analysis.certify import Question, largest_tau
from selective_rollout.analysis.fit_score import Example, fit_score
from selective_rollout.analysis.sample import Collector, Entry, Sample, Unit, collect
from selective_rollout.analysis.split import OnePerTask, Split
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.score import TwoSidedScore
from selective_rollout.trace.reader import RecordedGroup
from selective_rollout.trace.schema import GroupEvent
from selective_rollout.types import Group, Rollout, RolloutStatus, Step

pytestmark = pytest.mark.stats

QUESTION = Question(alpha=0.1, delta=0.05, grid="0.01:0.30:0.01")


def at_most(share: float, repeats: int) -> float:
    """The share plus three standard errors of a simulation with that many repeats."""
    return share + 3 * math.sqrt(share * (1 - share) / repeats)


def unit(task: object, zero_variance: bool, distance: float) -> Unit:
    return Unit(str(task), zero_variance, ((distance, 10),), 100)


def steep(rng: random.Random) -> float:
    """A signal-bearing group's distance; P(below tau) is 0.06 up to tau 0.15 and 0.11 from there to 0.3."""
    draw = rng.random()
    return 0.0 if draw < 0.06 else 0.145 if draw < 0.11 else 0.5


def rate_of_steep(tau: float) -> float:
    return 0.06 if tau <= 0.145 else 0.11


def tight(rng: random.Random) -> float:
    """A signal-bearing group's distance; P(below tau) is just above alpha at every tau."""
    return 0.0 if rng.random() < 0.101 else 0.5


@pytest.mark.parametrize(
    ("draw", "rate"),
    [(steep, rate_of_steep), (tight, lambda _: 0.101), (random.Random.random, lambda tau: tau)],
)
@pytest.mark.parametrize("tasks", [60, 200, 600])
def test_the_bound_fails_in_at_most_delta_of_repeats(
    draw: Callable[[random.Random], float], rate: Callable[[float], float], tasks: int
) -> None:
    rng, repeats, failed = random.Random(tasks), 1500, 0
    for _ in range(repeats):
        units = [unit(i, rng.random() < 0.4, draw(rng)) for i in range(tasks)]
        tau = largest_tau(units, QUESTION)
        failed += tau is not None and rate(tau) > QUESTION.alpha
    assert failed / repeats <= at_most(QUESTION.delta, repeats)


def test_the_bound_is_not_bought_by_never_certifying() -> None:
    rng, repeats = random.Random(1), 2000
    failed = certified = 0
    for _ in range(repeats):
        tau = largest_tau([unit(i, False, tight(rng)) for i in range(200)], QUESTION)
        failed += tau is not None
        good = [unit(i, False, 0.0 if rng.random() < 0.03 else 0.5) for i in range(200)]
        certified += largest_tau(good, QUESTION) is not None
    assert failed / repeats > QUESTION.delta / 2, "right at the bound nearly all of delta is spent"
    assert certified / repeats > 0.9


def test_clustered_groups_break_a_naive_count_but_not_ours() -> None:
    """Tasks whose groups share their fate, as prompts visited in several epochs do."""
    rng, repeats, epochs = random.Random(2), 1500, 6
    naive = ours = 0
    for _ in range(repeats):
        draw: OnePerTask[Unit] = OnePerTask(rng.randrange(10**6))
        everything = []
        for task in range(60):
            fate = tight(rng)
            for epoch in range(epochs):
                made = unit(task, False, fate if rng.random() < 0.7 else tight(rng))
                everything.append(made)
                draw.offer(str(task), f"{task}@{epoch}", made)
        naive += largest_tau(everything, QUESTION) is not None
        ours += largest_tau(draw.items, QUESTION) is not None
    assert naive / repeats > 0.14
    assert ours / repeats <= at_most(QUESTION.delta, repeats)


def test_choosing_and_certifying_on_the_same_tasks_breaks_and_a_split_does_not() -> None:
    """Eight start_steps that are equally bad; the luckiest one looks certified."""
    rng, repeats, tried = random.Random(3), 400, 8
    rules = [GateConfig(start_step=k) for k in range(1, tried + 1)]
    naive = split = shared = 0
    for _ in range(repeats):
        sample = Sample(Split(0.4, rng.randrange(10**6)))
        entries = []
        for task in range(250):
            mixed = rng.random() < 0.6
            units = tuple(
                unit(task, not mixed, tight(rng) if mixed else rng.choice([0.0, 0.5])) for _ in range(tried)
            )
            entry = Entry(units, "mixed" if mixed else "all_fail", {}, None)
            entries.append(entry)
            part = sample.choose if sample.split.part(str(task)) == "choose" else sample.certify
            part.append(entry)
        taus = [largest_tau([entry.units[i] for entry in entries], QUESTION) for i in range(tried)]
        naive += any(tau is not None for tau in taus)
        level = QUESTION.delta / tried
        shared += any(
            largest_tau([entry.units[i] for entry in entries], QUESTION, level) is not None
            for i in range(tried)
        )
        chosen = best_rule(sample, rules, QUESTION)
        split += largest_tau([entry.units[chosen] for entry in sample.certify], QUESTION) is not None
    assert naive / repeats > 3 * QUESTION.delta
    assert split / repeats <= at_most(QUESTION.delta, repeats)
    assert shared / repeats <= at_most(QUESTION.delta, repeats)


def test_strata_hold_all_at_once_only_if_they_share_delta() -> None:
    rng, repeats, strata = random.Random(4), 1200, 6
    each_alone = jointly = 0
    for _ in range(repeats):
        parts = [[unit(i, False, tight(rng)) for i in range(120)] for _ in range(strata)]
        each_alone += any(largest_tau(part, QUESTION) is not None for part in parts)
        level = QUESTION.delta / strata
        jointly += any(largest_tau(part, QUESTION, level) is not None for part in parts)
    assert each_alone / repeats > 2 * QUESTION.delta
    assert jointly / repeats <= at_most(QUESTION.delta, repeats)


def test_pooling_strata_bounds_the_mixture_and_not_the_worst_stratum() -> None:
    """A pooled certificate is about the mixture; a per-stratum one keeps the bad stratum off."""
    rng, repeats = random.Random(5), 300
    pooled = bad = 0
    for _ in range(repeats):
        good_part = [unit(i, False, 0.0 if rng.random() < 0.01 else 0.5) for i in range(240)]
        bad_part = [unit(i, False, 0.0 if rng.random() < 0.25 else 0.5) for i in range(60)]
        pooled += largest_tau(good_part + bad_part, QUESTION) is not None
        bad += largest_tau(bad_part, QUESTION, QUESTION.delta / 2) is not None
    assert pooled / repeats > 0.8
    assert bad / repeats < 0.01


ANSWERS = Question(alpha=0.1, delta=0.05, grid="0.01:0.30:0.01", risk="answer")


def voter(rng: random.Random, task: object, harm: Callable[[random.Random], tuple[bool, float]]) -> Unit:
    differs, distance = harm(rng)
    return unit(task, not differs, distance)


def rising(rng: random.Random) -> tuple[bool, float]:
    """(answered differently, distance): P(cut and differs) is 0.06 up to tau 0.15 and 0.12 from there on."""
    draw = rng.random()
    return (draw < 0.12, 0.0 if draw < 0.06 else 0.145 if draw < 0.12 else rng.random())


def just_above(rng: random.Random) -> tuple[bool, float]:
    """P(cut and differs) is 0.101 at every tau; a third of all groups differ, most of them uncut."""
    draw = rng.random()
    return (draw < 0.33, 0.0 if draw < 0.101 else 0.5 if draw < 0.33 else rng.random())


@pytest.mark.parametrize(
    ("harm", "risk"), [(rising, lambda tau: 0.06 if tau <= 0.145 else 0.12), (just_above, lambda _: 0.101)]
)
@pytest.mark.parametrize("tasks", [60, 200, 500])
def test_the_bound_on_wrong_answers_fails_in_at_most_delta_of_repeats(
    harm: Callable[[random.Random], tuple[bool, float]], risk: Callable[[float], float], tasks: int
) -> None:
    rng, repeats, failed = random.Random(tasks), 1500, 0
    for _ in range(repeats):
        tau = largest_tau([voter(rng, i, harm) for i in range(tasks)], ANSWERS)
        failed += tau is not None and risk(tau) > ANSWERS.alpha
    assert failed / repeats <= at_most(ANSWERS.delta, repeats)


def test_the_bound_on_wrong_answers_is_not_bought_by_never_certifying() -> None:
    rng, repeats = random.Random(7), 1500
    failed = sum(
        largest_tau([voter(rng, i, just_above) for i in range(200)], ANSWERS) is not None
        for _ in range(repeats)
    )
    assert failed / repeats > ANSWERS.delta / 2, "right at the bound nearly all of delta is spent"
    certified = sum(
        largest_tau([voter(rng, i, lambda rng: (rng.random() < 0.03, 0.0)) for i in range(200)], ANSWERS)
        is not None
        for _ in range(repeats)
    )
    assert certified / repeats > 0.9


def test_the_bound_on_wrong_answers_holds_through_votes_and_replays() -> None:
    """From answers and actions to the certificate: the true risk is that of a large population."""

    def drawn(rng: random.Random, task: int) -> RecordedGroup:
        alike = rng.random() < 0.5
        right = rng.choice([0.55, 0.95]) if alike else 0.5
        rollouts = tuple(
            Rollout(
                i,
                tuple(Step(k, "a" if alike else rng.choice("ab")) for k in (1, 2, 3)),
                RolloutStatus.FINISHED,
                answer="x" if rng.random() < right else "y",
            )
            for i in range(5)
        )
        begin = GroupEvent(group=f"g{task}", task_id=f"g{task}", size=5, mode="observe")
        return RecordedGroup(
            Group(f"g{task}", 5, rollouts, f"g{task}"), begin, None, (), 0, 0, 0, where="here"
        )

    rule, rng, repeats = GateConfig(start_step=2, outcome="survivor"), random.Random(8), 80
    question = Question(alpha=0.125, delta=0.05, grid="0.05:0.60:0.05", risk="answer")

    def units(tasks: int) -> list[Unit]:
        collector = Collector([rule], Split(0.0), risk="answer")
        sample = collect((drawn(rng, rng.randrange(10**9)) for _ in range(tasks)), collector)
        return [entry.units[0] for entry in sample.certify]

    population = units(3000)

    def risk(tau: float) -> float:
        return sum(not u.harmless and u.saved(tau) is not None for u in population) / len(population)

    taus = [largest_tau(units(100), question) for _ in range(repeats)]
    failed = sum(tau is not None and risk(tau) > question.alpha for tau in taus)
    assert risk(0.6) > question.alpha, "there is something to get wrong"
    assert any(tau is not None for tau in taus), "and something to get right"
    assert failed / repeats <= at_most(question.delta, repeats)


def scored(rng: random.Random, task: int) -> Example:
    """Four features, of which two say a little."""
    kind = rng.choice(["all_fail", "all_success", "mixed", "mixed"])
    values: dict[str, float | None] = {name: rng.gauss(0, 1) for name in "abcd"}
    values["a"] = (kind == "all_fail") + rng.gauss(0, 1)
    values["b"] = (kind == "all_success") + rng.gauss(0, 1)
    return Example(f"t{task}", kind, values)  # type: ignore[arg-type]


def test_a_score_fitted_on_other_tasks_keeps_the_bound() -> None:
    rng, repeats = random.Random(6), 120
    question = Question(alpha=0.1, delta=0.05, grid="0.05:0.60:0.05")
    reference = [scored(rng, i) for i in range(5000)]
    same_tasks = other_tasks = 0
    for _ in range(repeats):
        drawn = [scored(rng, i) for i in range(160)]
        score = fit_score(drawn[:60], features="abcd", folds=2).score

        def p(example: Example, score: TwoSidedScore = score) -> float:
            return score.p_signal([example.values[name] for name in score.features]) or 0.0

        true = sorted(p(example) for example in reference if not example.zero_variance)
        for examples, on_same in ((drawn[:60], True), (drawn[60:], False)):
            tau = largest_tau([unit(e.task_id, e.zero_variance, p(e)) for e in examples], question)
            failed = tau is not None and bisect_left(true, tau) / len(true) > question.alpha
            same_tasks += failed and on_same
            other_tasks += failed and not on_same
    assert other_tasks / repeats <= at_most(question.delta, repeats)
    assert same_tasks / repeats > other_tasks / repeats
