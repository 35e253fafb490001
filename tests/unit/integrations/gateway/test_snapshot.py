"""What the live page is told: totals that keep measured and estimated apart, and pictures that stay right."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.engine.config import RunConfig
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.gateway import GatewayConfig
from selective_rollout.integrations.gateway.book import Book
from selective_rollout.integrations.gateway.desk import Desk
from selective_rollout.integrations.gateway.live_view import MOST_ENDED, LiveView
from selective_rollout.integrations.gateway.snapshot import Avoided, Line, Snapshot, Totals
from selective_rollout.policy.endpoint import Endpoint
from selective_rollout.types import Usage

CONFIG = GatewayConfig(
    upstream=Endpoint(base_url="http://127.0.0.1:9/v1"),
    rule=GateConfig(start_step=2),
    run=RunConfig(mode="enforce", audit_rate=0.5),
)
OPEN = Line(
    group="g",
    task_id="g",
    size=2,
    mode="enforce",
    state="running",
    audited=False,
    resumed=False,
    members="rr",
    step=1,
    next_check=2,
    checked_at=None,
    reason=None,
    compared=None,
    bounds=None,
    tau=0.12,
    fired_at=None,
    late_veto=False,
    cut_as=None,
    cut_at=None,
    survivor=None,
    held=0,
    answers=0,
    unknown_requests=0,
    completion_tokens=0,
    tokens_after_fire=0,
    touched_at=0.0,
)
FIRED = replace(
    OPEN, state="ended", answers=9, checked_at=2, fired_at=2, next_check=None, completion_tokens=90
)


def ran_on(after: int, **more: Any) -> Line:
    return replace(FIRED, audited=True, tokens_after_fire=after, **more)


def cut(after: int = 0, **more: Any) -> Line:
    return replace(FIRED, cut_as="drop", cut_at=2, tokens_after_fire=after, **more)


def summed(lines: Sequence[Line]) -> Snapshot:
    totals = Totals()
    for line in lines:
        totals.add(line)
    return totals.snapshot(CONFIG, tuple(lines), now=0.0, recording=True, others=0)


def avoided(*lines: Line) -> Avoided:
    return summed(lines).avoided


def test_without_audits_nobody_knows_what_cuts_avoided() -> None:
    assert avoided(cut(), cut()) == Avoided(0, 0, 0, 2, 0, None, None, None)


def test_the_estimate_is_what_audited_groups_went_on_to_generate() -> None:
    seen = avoided(cut(10), cut(), ran_on(100), ran_on(300))
    assert (seen.estimate, seen.low, seen.high) == (2 * 200 - 10, 2 * 100 - 10, 2 * 300 - 10)
    assert (seen.measured, seen.ran_on, seen.cuts, seen.audits) == (400, 2, 2, 2)


@pytest.mark.parametrize(
    "out",
    [
        ran_on(300, state="running"),
        ran_on(300, resumed=True),
        ran_on(300, late_veto=True),
        ran_on(300, unknown_requests=1),
    ],
    ids=["still running", "of an earlier process", "vetoed late", "tokens unknown"],
)
def test_groups_that_tell_too_little_are_no_basis_for_it(out: Line) -> None:
    assert avoided(cut(), out).estimate is None
    assert avoided(cut(), out, ran_on(40)).estimate == 40


def test_observed_groups_are_measured_but_audit_nothing() -> None:
    seen = avoided(replace(ran_on(70), audited=False, mode="observe"), cut())
    assert (seen.measured, seen.audits, seen.estimate) == (70, 0, None)


def test_tokens_that_nobody_counted_are_unknown_and_not_0() -> None:
    silent = ran_on(0, unknown_requests=9, completion_tokens=0)
    assert (avoided(silent).measured, avoided(silent).uncounted) == (None, 9)
    assert summed([silent]).completion_tokens is None
    assert summed([silent, FIRED]).completion_tokens == 90
    assert summed([OPEN]).completion_tokens == 0


def lines() -> st.SearchStrategy[Line]:
    fired = st.sampled_from([OPEN, FIRED, cut(), ran_on(0), ran_on(0, late_veto=True)])
    few = st.integers(0, 50)
    return st.builds(
        lambda line, held, tokens, after, unknown: replace(
            line,
            held=held,
            completion_tokens=tokens,
            tokens_after_fire=after if line.fired_at else 0,
            answers=unknown + bool(tokens),
            unknown_requests=unknown,
        ),
        *(fired, few, few, few, st.integers(0, 2)),
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(lines(), max_size=8))
def test_totals_add_up(some: list[Line]) -> None:
    seen = summed(some)
    assert seen.open_groups + seen.ended_groups == len(some)
    assert seen.held == sum(line.held for line in some)
    assert seen.fired == sum(line.fired_at is not None for line in some)
    assert seen.cut == sum(line.cut_as is not None for line in some)
    assert seen.decided >= seen.fired >= seen.cut + seen.audited
    assert seen.completion_tokens in (None, sum(line.completion_tokens for line in some))
    part = seen.avoided
    if part.estimate is not None:
        assert part.low is not None
        assert part.high is not None
        assert part.low <= part.estimate <= part.high


def opened(book: Book, name: str, scope: str = "", size: int = 2) -> Desk:
    desk = book.declare(scope, name, size, None, {})
    assert desk is not None
    return desk


def end(book: Book, desk: Desk) -> None:
    desk.close("ended", "", book.clock())
    book.settle(desk)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


async def picture(view: LiveView, scope: str = "") -> dict[str, Any]:
    return dict(json.loads(await view.picture(scope)))


async def test_open_groups_come_first_and_the_latest_ended_after_them() -> None:
    book = Book(CONFIG, lambda event: None, Clock())
    view = LiveView(CONFIG, book)
    for number in range(MOST_ENDED + 5):
        end(book, opened(book, f"old-{number}"))
    opened(book, "new")
    seen = await picture(view)
    names = [line["group"] for line in seen["groups"]]
    assert names[:2] == ["new", f"old-{MOST_ENDED + 4}"]
    assert (len(names), seen["left_out"]) == (1 + MOST_ENDED, 5)
    assert (seen["open_groups"], seen["ended_groups"]) == (1, MOST_ENDED + 5)
    assert seen["groups"][0]["members"] == "rr"
    assert seen["groups"][1]["members"] == "xx"


async def test_a_request_that_waits_shows_on_its_rollout() -> None:
    book = Book(CONFIG, lambda event: None, Clock())
    opened(book, "g", size=40).members[1].waiting = 1
    (line,) = (await picture(LiveView(CONFIG, book)))["groups"]
    assert (line["state"], line["held"], line["size"]) == ("held", 1, 40)
    assert line["members"] == "rh" + 30 * "r"


async def test_a_client_sees_its_own_groups_only() -> None:
    book = Book(CONFIG, lambda event: None, Clock())
    view = LiveView(CONFIG, book)
    opened(book, "mine", scope="me")
    opened(book, "theirs", scope="them")
    for scope, name in (("me", "mine"), ("them", "theirs")):
        seen = await picture(view, scope)
        assert [line["group"] for line in seen["groups"]] == [name]
        assert (seen["open_groups"], seen["other_groups"]) == (1, 1)
    assert (await view.totals()).groups == 2


async def test_what_comes_late_is_seen_on_an_ended_group() -> None:
    book = Book(CONFIG, lambda event: None, Clock())
    view = LiveView(CONFIG, book)
    desk = opened(book, "g")
    for member in desk.members:
        desk.finish(member.index, None, None, now=book.clock())
    book.settle(desk)
    before = await picture(view)
    desk.members[0].ledger.add(Usage(completion=7))
    desk.score(0, 1.0, book.clock())
    after = await picture(view)
    assert (before["completion_tokens"], after["completion_tokens"]) == (0, 7)


async def test_requests_get_their_turn_while_a_picture_is_taken() -> None:
    book = Book(CONFIG, lambda event: None, Clock())
    view = LiveView(CONFIG, book)
    for number in range(200):
        opened(book, f"g-{number}")
    turns = 0

    async def request() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(request())
    await view.picture("")
    other.cancel()
    assert turns >= 10


async def test_many_who_look_on_share_one_picture() -> None:
    now = 0.0
    book = Book(CONFIG, lambda event: None, lambda: now)
    view = LiveView(CONFIG, book)
    first = await asyncio.gather(*(view.picture("") for _ in range(20)))
    opened(book, "g")
    assert {*first, await view.picture("")} == {first[0]}
    now = 0.6
    assert (await picture(view))["open_groups"] == 1
