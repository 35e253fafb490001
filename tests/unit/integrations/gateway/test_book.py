"""Groups without HTTP: the gate's inputs, restarts at any event, audits, strata."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.rule import AuditAlarmWarning
from selective_rollout.errors import ConfigError
from selective_rollout.gate.audit import Alarm
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.gateway import Gateway, GatewayConfig, Limits
from selective_rollout.integrations.gateway.address import Address
from selective_rollout.integrations.gateway.answer import Answer, read_whole
from selective_rollout.integrations.gateway.book import Book
from selective_rollout.integrations.gateway.conversation import read_body
from selective_rollout.integrations.gateway.desk import Desk
from selective_rollout.integrations.gateway.resume import take_up
from selective_rollout.policy.endpoint import Endpoint
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import RolloutStatus

G = 3
EARLY = GateConfig(start_step=2)
ENFORCE = RunConfig(mode="enforce")
UPSTREAM = Endpoint(base_url="http://127.0.0.1:9/v1")


def config(rule: GateConfig = EARLY, run: RunConfig = ENFORCE, **more: Any) -> GatewayConfig:
    return GatewayConfig(upstream=UPSTREAM, rule=rule, run=run, **more)


def history(rollout: int, steps: int, word: Callable[[int, int], str], **fields: Any) -> bytes:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for step in range(steps):
        call = {"id": f"{rollout}-{step}", "function": {"name": word(rollout, step), "arguments": "{}"}}
        messages.append({"role": "assistant", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "ok"})
    return json.dumps({"messages": messages, **fields}).encode()


def alike(rollout: int, step: int) -> str:
    return f"step{step}"


def apart(rollout: int, step: int) -> str:
    return f"step{step}of{rollout}"


def hear(
    desk: Desk, rollout: int, steps: int, word: Callable[[int, int], str] = alike, **fields: Any
) -> None:
    """A request of a rollout that has done so many steps."""
    raw = history(rollout, steps, word, **fields)
    body = read_body(raw)
    assert body is not None
    if desk.members[rollout].running:
        thread = desk.hear(rollout, "chat", raw, body, 0.0)
        call = {"id": f"{rollout}-{steps}", "function": {"name": word(rollout, steps), "arguments": "{}"}}
        answer = Answer({"role": "assistant", "tool_calls": [call]}, id=f"r{rollout}-{steps}")
        desk.answered(rollout, thread, answer, offered_tools=True, now=0.0)


def opened(book: Book, name: str = "g", size: int = G) -> Desk:
    desk = book.seat("", Address(name, 0, size))
    assert desk is not None
    return desk


def new_book(settings: GatewayConfig) -> tuple[Book, list[Any]]:
    events: list[Any] = []
    return Book(settings, events.append, lambda: 0.0), events


def run_group(desk: Desk, steps: int = 3, word: Callable[[int, int], str] = alike, **fields: Any) -> None:
    for done in range(steps + 1):
        for rollout in range(G):
            hear(desk, rollout, done, word, **fields)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"seed": 7}, "seed"), ({"temperature": 0}, "temperature_zero"), ({"temperature": 0.7}, None)],
)
def test_copies_by_construction_are_never_cut(fields: dict[str, Any], reason: str | None) -> None:
    book, events = new_book(config())
    desk = opened(book)
    run_group(desk, **fields)
    assert desk.gate.sampling_verdict == reason
    assert (desk.cut_as is None) == (reason is not None)
    assert events[0].sampling is not None


def test_one_answer_out_of_a_cache_is_no_agreement() -> None:
    book, _ = new_book(config())
    desk = opened(book)
    for done in range(3):
        for rollout in range(G):
            raw = history(rollout, done, alike)
            body = read_body(raw)
            assert body is not None
            thread = desk.hear(rollout, "chat", raw, body, 0.0)
            cached = {
                "id": "same",
                "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}],
            }
            answer = read_whole("chat", json.dumps(cached).encode(), 1)
            desk.answered(rollout, thread, answer, offered_tools=True, now=0.0)
    assert [check.reason.value for check in desk.gate.checks] == ["identical_sampling"]


def test_an_answer_that_was_cut_off_is_no_action() -> None:
    book, events = new_book(config())
    desk = opened(book)
    body = read_body(history(0, 0, alike))
    assert body is not None
    thread = desk.hear(0, "chat", history(0, 0, alike), body, 0.0)
    cut_off = Answer({"role": "assistant", "content": "and so"}, "and so", finish_reason="length")
    desk.answered(0, thread, cut_off, offered_tools=False, now=0.0)
    desk.finish(0, None, None, now=0.0)
    assert desk.members[0].status is RolloutStatus.TRUNCATED
    assert [type(event).__name__ for event in events] == ["GroupEvent", "RolloutEndEvent"]


class Kept:
    """A recorder of which every state can be had again."""

    def __init__(self, path: Path, settings: GatewayConfig) -> None:
        self.path = path
        self.settings = settings

    def lines(self, word: Callable[[int, int], str], rewards: tuple[float, ...]) -> list[bytes]:
        with Recorder(self.path) as recorder:
            book = Book(self.settings, recorder.write, lambda: 0.0)
            desk = opened(book)
            run_group(desk, 2, word)
            for rollout, reward in enumerate(rewards):
                if desk.members[rollout].running:
                    desk.finish(rollout, reward, None, now=0.0)
            for member in desk.members:
                if member.running:
                    desk.fail(member.index, "idle", "", 0.0)
        return self.path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("outcome", ["drop", "survivor"])
@pytest.mark.parametrize("word", [alike, apart], ids=["alike", "apart"])
def test_a_restart_at_any_event_goes_on_as_if_nothing_had_been(
    tmp_path: Path, outcome: Any, word: Callable[[int, int], str]
) -> None:
    settings = config(GateConfig(start_step=2, outcome=outcome))
    lines = Kept(tmp_path / "whole.jsonl", settings).lines(word, (1.0, 0.0, 1.0))
    (whole,) = read_groups(tmp_path / "whole.jsonl")
    for kept in range(1, len(lines) + 1):
        path = tmp_path / f"{kept}.jsonl"
        path.write_bytes(b"".join(lines[:kept]))
        with Recorder(path) as recorder:
            book = Book(settings, recorder.write, lambda: 0.0)
            take_up(path, book, settings, recorder.write)
            desk = book.find("", "g")
            desk = desk if desk is not None else opened(book)
            run_group(desk, 2, word)
            for rollout, reward in enumerate((1.0, 0.0, 1.0)):
                if desk.members[rollout].running:
                    desk.finish(rollout, reward, None, now=0.0)
        (group,) = read_groups(path)
        assert group.end is not None
        assert whole.end is not None
        assert (group.end.outcome, group.end.cut_at) == (whole.end.outcome, whole.end.cut_at)
        assert group.end.survivor == whole.end.survivor
        assert [d.fires for d in group.decisions] == [d.fires for d in whole.decisions]
        assert [r.actions[:2] for r in group.group.rollouts] == [r.actions[:2] for r in whole.group.rollouts]
        assert [r.status for r in group.group.rollouts] == [r.status for r in whole.group.rollouts]


def test_an_audit_on_record_is_not_drawn_again(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    audited = config(run=RunConfig(mode="enforce", audit_rate=1.0))
    with Recorder(path) as recorder:
        run_group(opened(Book(audited, recorder.write, lambda: 0.0)), 1)
    with Recorder(path) as recorder:
        book = Book(config(), recorder.write, lambda: 0.0)
        take_up(path, book, config(), recorder.write)
        desk = book.find("", "g")
        assert desk is not None
        run_group(desk, 3)
    assert (desk.facts.audited, desk.cut_as) == (True, None)


def test_each_stratum_has_its_own_threshold() -> None:
    taus = {"easy": 0.5, "hard": 0.0}
    book, _ = new_book(config(tau_of=lambda metadata: taus.get(str(metadata.get("level")), 0.0)))
    easy = book.declare("", "e", G, None, {"level": "easy"})
    hard = book.declare("", "h", G, None, {"level": "hard"})
    assert easy is not None
    assert hard is not None
    for desk in (easy, hard):
        run_group(desk)
    assert (easy.cut_as, hard.cut_as) == ("drop", None)


def test_once_the_alarm_has_rung_new_groups_are_only_observed() -> None:
    alarm = Alarm(0.05, 1.0)
    book, _ = new_book(config(run=RunConfig(mode="enforce", audit_rate=1.0), alarm=alarm))

    def run(number: int) -> None:
        desk = opened(book, f"g{number}")
        run_group(desk, 3)
        for rollout in range(G):
            desk.finish(rollout, float(rollout % 2), None, now=0.0)
        book.settle(desk)

    with pytest.warns(AuditAlarmWarning, match="the gate is off"):
        deque((run(number) for number in range(40) if not alarm.rung), maxlen=0)
    assert opened(book, "later").facts.mode == "observe"


def test_rules_that_need_what_a_gateway_has_not_are_refused() -> None:
    with pytest.raises(ConfigError, match="not vote"):
        config(GateConfig(outcome="vote"))
    with pytest.raises(ConfigError, match="does not keep"):
        config(GateConfig(history_mixed=2))


async def test_other_kinds_of_connections_are_not_served() -> None:
    gateway = Gateway(config(), lambda event: None)
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.sleep(0)
        return {"type": "lifespan.shutdown"}

    async def send(event: Any) -> None:
        sent.append(event["type"])

    await gateway({"type": "websocket"}, receive, send)
    assert sent == []
    await gateway({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_large_groups_cannot_fill_the_memory() -> None:
    book, _ = new_book(config(limits=Limits(open_rollouts=10)))
    assert book.seat("", Address("a", 0, 6)) is not None
    assert book.seat("", Address("b", 0, 6)) is None
    assert book.seat("", Address("c", 0, 4)) is not None


def test_a_full_disk_stops_the_recording_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    written: list[Any] = []

    def write(event: Any) -> None:
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        written.append(event)

    gateway = Gateway(config(), write, lambda: 0.0)
    run_group(opened(gateway.book))
    assert len(written) == 2
    assert gateway.book.seat("", Address("new", 0, G)) is None
    assert caplog.text.count("recording failed") == 1
