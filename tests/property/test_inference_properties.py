"""The exact rule against trying out every vote that is still out, and against the engine's own control."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.analysis.inference import SCHEDULES, Schedule, exact_votes, leaders_of
from selective_rollout.draws import survivor_order
from selective_rollout.engine.vote import VoteControl
from selective_rollout.gate.vote import plurality
from selective_rollout.types import Group, Rollout, RolloutStatus, Step

DONE, LIMIT, LOST = RolloutStatus.FINISHED, RolloutStatus.TRUNCATED, RolloutStatus.FAILED
FATES = [(DONE, "a"), (DONE, "b"), (DONE, "a"), (DONE, None), (LIMIT, None), (LIMIT, "b"), (LOST, None)]


@st.composite
def groups(draw: st.DrawFn, most: int = 4) -> Group:
    fates = draw(st.lists(st.sampled_from(FATES), min_size=1, max_size=most))
    rollouts = [
        Rollout(i, tuple(Step(k, "go") for k in range(draw(st.integers(0, 3)))), status, answer=answer)
        for i, (status, answer) in enumerate(fates)
    ]
    return Group(draw(st.sampled_from("pqrst")), len(rollouts), tuple(rollouts), "t")


def vote(answers: Sequence[str | None]) -> str | None:
    """The answer with more votes than any other; None: a tie, or no vote."""
    ranked = Counter(answer for answer in answers if answer is not None).most_common(2)
    alone = len(ranked) == 1 or (len(ranked) == 2 and ranked[0][1] > ranked[1][1])
    return ranked[0][0] if alone else None


def certain(cast: Sequence[str | None], unknown: int) -> str | None:
    """The answer that wins whatever `unknown` more members say, found by trying it all."""
    winners = {vote([*cast, *rest]) for rest in product(("a", "b", "another", None), repeat=unknown)}
    return winners.pop() if len(winners) == 1 else None


def waves(group: Group, schedule: Schedule) -> list[list[Rollout]]:
    order = [group.rollouts[index] for index in survivor_order(group.id, group.size)]
    first = {"parallel": group.size, "two_waves": group.size // 2 + 1, "one_at_a_time": 1}[schedule]
    if schedule == "one_at_a_time":
        return [[rollout] for rollout in order]
    return [wave for wave in (order[:first], order[first:]) if wave]


def moments(group: Group, schedule: Schedule) -> Iterator[dict[int, int]]:
    """Steps each member has taken and may go beyond, moment by moment; -1: it has not been begun."""
    at = dict.fromkeys(range(group.size), -1)
    for wave in waves(group, schedule):
        for time in range(max(len(rollout.steps) for rollout in wave) + 1):
            at |= {rollout.index: time for rollout in wave}
            yield dict(at)
        at |= {rollout.index: 99 for rollout in wave}


@settings(max_examples=150, deadline=None)
@given(groups())
def test_it_stops_at_the_first_moment_at_which_every_way_to_go_on_ends_alike(group: Group) -> None:
    lengths = [len(rollout.steps) for rollout in group.rollouts]
    for schedule in SCHEDULES:
        expected: tuple[str | None, list[int]] = (None, lengths)
        for at in moments(group, schedule):
            ended = [rollout for rollout in group.rollouts if at[rollout.index] >= lengths[rollout.index]]
            silent = [rollout for rollout in ended if (rollout.status, rollout.answer) == (DONE, None)]
            unknown = group.size - len(ended) + len(silent)
            winner = certain([rollout.answer for rollout in ended if rollout not in silent], unknown)
            if winner is not None and len(ended) < group.size:
                expected = winner, [min(max(0, at[i]), length) for i, length in enumerate(lengths)]
                break
        run = exact_votes(group)[schedule]
        assert (run.answer, [run.steps[i] for i in range(group.size)]) == expected, schedule


@settings(max_examples=100, deadline=None)
@given(groups(most=7), st.sampled_from(SCHEDULES))
def test_what_it_answers_is_the_full_votes(group: Group, schedule: Schedule) -> None:
    run = exact_votes(group)[schedule]
    silent = [r for r in group.rollouts if (r.status, r.answer) == (DONE, None)]
    cast = {r.index: r.answer for r in group.rollouts if r.answer is not None and r.status is not LOST}
    for said in product(("a", "b", "another", None), repeat=len(silent)):
        late = {r.index: answer for r, answer in zip(silent, said, strict=True) if answer is not None}
        full = plurality(cast | late, survivor_order(group.id, group.size))
        assert run.answer is None or run.answer == full
    if run.answer is not None and len(cast) > 1:
        assert leaders_of(group) == {run.answer}


@settings(max_examples=100, deadline=None)
@given(groups(most=7).filter(lambda g: all((r.status, r.answer) != (DONE, None) for r in g.rollouts)))
def test_in_two_waves_it_is_the_engines_rule(group: Group) -> None:
    stopped: list[int] = []
    control = VoteControl(group.id, group.size, stopped.append)
    for wave in waves(group, "two_waves"):
        for rollout in sorted(wave, key=lambda rollout: len(rollout.steps)):
            if not control.decided:
                failed = rollout.status is LOST
                control.ended(rollout.index, failed=failed, answer=None if failed else rollout.answer)
    run = exact_votes(group)["two_waves"]
    spared = {i for i, rollout in enumerate(group.rollouts) if run.steps[i] < len(rollout.steps)}
    cast = {r.index: r.answer for r in group.rollouts if r.answer is not None and r.status is not LOST}
    assert control.answer == plurality(cast, survivor_order(group.id, group.size))
    assert run.answer in (None, control.winner)
    assert spared <= set(stopped), "who ends at the very moment of the decision is spared nothing"
    assert set(stopped) <= spared | {i for i in stopped if run.steps[i] == len(group.rollouts[i].steps)}
