"""The stream gate against a plain reading of its definition, whatever the network does to the streams."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance.Levenshtein import distance

from selective_rollout.errors import ConfigError, GroupError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import GateDecision, Reason, judge
from selective_rollout.gate.group import GroupGate
from selective_rollout.gate.score import TwoSidedScore
from selective_rollout.gate.streaming import (
    Characters,
    MemberStream,
    StreamGate,
    StreamRule,
    replay_streams,
)

END = object()
STEPS = GateConfig()

tokens = st.integers(0, 3)
streams = st.lists(st.lists(tokens, max_size=30), min_size=2, max_size=5)
rules = st.builds(
    StreamRule,
    level=st.just("token"),
    tau=st.sampled_from([0.05, 0.1, 0.2, 0.25, 0.5, 0.75, 1.0]),
    start=st.integers(1, 12),
    check_every=st.integers(1, 9),
)


@st.composite
def groups(draw: st.DrawFn) -> list[MemberStream]:
    """Streams that share a beginning, some finished, some lost."""
    common = draw(st.lists(tokens, max_size=15))
    return [
        MemberStream(
            [*common, *row],
            finished=draw(st.booleans()),
            reward=draw(st.sampled_from([None, 0.0, 1.0])),
        )
        for row in draw(streams)
    ]


def plain_distance(members: Sequence[MemberStream], k: int) -> float:
    """Mean over pairs of d(a, b) / k, ended streams filled with END; of the members present at k."""
    present = [m for m in members if m.finished or len(m.symbols) >= k]
    rows = [[*m.symbols[:k], *[END] * (k - len(m.symbols))] for m in present]
    pairs = [distance(a, b, processor=_ids) for a, b in combinations(rows, 2)]
    return sum(pairs) / (len(pairs) * k)


def _ids(row: list[object]) -> list[int]:
    return [id(symbol) if symbol is END else int(symbol) for symbol in row]  # type: ignore[call-overload]


def expected(rule: StreamRule, members: Sequence[MemberStream]) -> list[tuple[int, Reason]]:
    """Every check in lockstep: position and outcome, up to the one that fires."""
    made: list[tuple[int, Reason]] = []
    k = rule.start
    while not made or any(len(m.symbols) >= k for m in members):
        present = [m for m in members if m.finished or len(m.symbols) >= k]
        ended = [m for m in present if m.finished and len(m.symbols) <= k]
        rewards = [m.reward for m in ended if m.reward is not None]
        if len(present) < STEPS.required_members(len(members)):
            reason = Reason.TOO_FEW_MEMBERS
        elif not any(m.symbols[:k] for m in present):
            reason = Reason.NO_ACTIONS
        elif not plain_distance(members, k) < rule.tau:
            reason = Reason.DISTANCE
        elif rewards and max(rewards) != min(rewards):
            reason = Reason.KNOWN_REWARDS_DIFFER
        elif len(ended) == len(present):
            reason = Reason.NOBODY_RUNNING
        else:
            reason = Reason.FIRED
        made.append((k, reason))
        if reason is Reason.FIRED:
            break
        k += rule.check_every
    return made


def seen(checks: Sequence[GateDecision]) -> list[tuple[int | None, Reason]]:
    return [(check.step, check.reason) for check in checks]


def stream_in_chunks(
    rule: StreamRule, members: Sequence[MemberStream], order: random.Random
) -> tuple[GateDecision, ...]:
    """Let the members speak in any order, in pieces of any size."""
    gate = StreamGate(rule, STEPS, len(members))
    left = {g: list(member.symbols) for g, member in enumerate(members)}
    while left:
        g = order.choice(list(left))
        size = order.choice([0, 1, 1, 2, 5, 40])
        gate.hear(g, left[g][:size])
        del left[g][:size]
        if not left[g]:
            del left[g]
            if members[g].finished:
                gate.finish(g, members[g].reward)
            else:
                gate.lose(g)
    return gate.checks


@given(rules, groups())
@settings(max_examples=150)
def test_decisions_are_those_of_lockstep_and_of_the_plain_mean(
    rule: StreamRule, members: list[MemberStream]
) -> None:
    checks = replay_streams(rule, STEPS, members, exact=True)
    assert seen(checks) == expected(rule, members)
    for check in checks:
        if check.distance is not None and check.step is not None:
            assert check.distance == pytest.approx(plain_distance(members, check.step), abs=1e-12)


@given(rules, groups(), st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_neither_chunks_nor_the_order_of_arrival_matter(
    rule: StreamRule, members: list[MemberStream], order: random.Random
) -> None:
    at_once = replay_streams(rule, STEPS, members)
    assert [(c.step, c.reason, c.facts) for c in stream_in_chunks(rule, members, order)] == [
        (c.step, c.reason, c.facts) for c in at_once
    ]


@given(rules, groups())
def test_every_decision_follows_from_what_it_stored(rule: StreamRule, members: list[MemberStream]) -> None:
    for check in replay_streams(rule, STEPS, members):
        assert check.facts is not None
        assert judge(rule.within(STEPS), check.facts) is check.reason


@given(st.lists(st.lists(tokens, min_size=1, max_size=12), min_size=2, max_size=4), st.integers(1, 5))
def test_a_chunk_is_its_symbols_one_by_one(rows: list[list[int]], start: int) -> None:
    rule = GateConfig(level="token", start_step=start, check_every=2, tau=0.4)
    by_chunk, one_by_one = (GroupGate(rule, len(rows), exact=True) for _ in range(2))
    for g, row in enumerate(rows):
        by_chunk.extend(g, row)
        for symbol in row:
            one_by_one.report(g, symbol)
    for g in range(len(rows)):
        by_chunk.finish(g)
        one_by_one.finish(g)
    assert by_chunk.checks == one_by_one.checks


@given(st.text(st.characters(), max_size=40), st.randoms(use_true_random=False))
def test_characters_survive_any_cut(text: str, cuts: random.Random) -> None:
    """Also where a cut goes through the two halves of one character, as JSON escapes may spell it."""
    halves = text.encode("utf-16-le", "surrogatepass")
    units = [halves[i : i + 2].decode("utf-16-le", "surrogatepass") for i in range(0, len(halves), 2)]
    characters, heard = Characters(), ""
    while units:
        size = cuts.randint(1, 4)
        heard += characters.add("".join(units[:size]))
        del units[:size]
    assert heard + characters.end() == halves.decode("utf-16-le", "replace")


def test_half_a_character_that_stays_alone_is_replaced() -> None:
    characters = Characters()
    assert characters.add("a\ud83d") == "a"
    assert characters.add("\ude00b") == "\U0001f600b"
    assert characters.add("c\ud83d") == "c"
    assert characters.end() == "\ufffd"


def test_a_lost_stream_counts_as_far_as_it_went() -> None:
    rule = StreamRule(level="token", tau=0.1, start=2, check_every=2)
    gate = StreamGate(rule, GateConfig(min_members=2), 3)
    for g in range(3):
        gate.hear(g, [1])
    gate.lose(2)
    assert gate.hear(2, [9, 9, 9]) is None, "a second try says nothing"
    gate.hear(0, [1, 1])
    made = gate.hear(1, [1, 1])
    assert made is not None
    assert made.fires
    assert made.facts is not None
    assert made.facts.members == (0, 1)
    assert gate.finish(2, 1.0) is None
    assert gate.fired is made
    with pytest.raises(GroupError, match="no rollout 3"):
        gate.hear(3, [1])


def test_a_disabled_gate_never_fires() -> None:
    gate = StreamGate(StreamRule(level="token", tau=0.5, start=1, check_every=1), STEPS, 2)
    gate.disable()
    assert gate.is_over
    assert [gate.hear(g, [1, 1]) for g in (0, 1)] == [None, None]
    assert gate.fired is None


@pytest.mark.parametrize(
    "bad",
    [{"level": "action"}, {"tau": 1.5}, {"tau": True}, {"start": 0}, {"check_every": 0}, {"start": 1.5}],
)
def test_bad_rules_are_named(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"stream.{next(iter(bad))}"):
        StreamRule(**{"level": "char", "tau": 0.1, **bad})  # type: ignore[arg-type]


def test_a_rule_with_a_score_takes_no_chunks() -> None:
    score = TwoSidedScore(("distance",), (0.0,), (1.0,), (0.0,), (0.0,), 0.0, 0.0)
    gate = GroupGate(GateConfig(score=score), 2)
    with pytest.raises(ConfigError, match="single actions"):
        gate.extend(0, ["a"])
    assert StreamRule(level="char", tau=0.1).within(GateConfig(score=score)).score is None


def test_a_member_that_ends_exactly_at_a_check_is_seen_as_ended() -> None:
    """Its reward may veto there, whether its end is heard at once or long after its last symbol."""
    rule = StreamRule(level="token", tau=0.5, start=2, check_every=1)
    gate = StreamGate(rule, GateConfig(min_members=2), 3)
    for g in range(3):
        gate.hear(g, [1, 1])
    gate.hear(2, [1])
    assert gate.checks == (), "nobody knows yet whether 0 and 1 run on"
    gate.finish(0, 1.0)
    made = gate.finish(1, 0.0)
    assert made is not None
    assert made.reason is Reason.KNOWN_REWARDS_DIFFER
