"""Taking up the groups of a trace after a restart.

The agents have gone on, so a group goes on where its record stops: the same attempt, in the same file. Its
steps are told to a fresh gate, which decides by positions and so says what it said before; verdicts and
audits on record are read, never drawn again.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from selective_rollout.gate.decision import Reason
from selective_rollout.integrations.gateway.book import Book
from selective_rollout.integrations.gateway.config import GatewayConfig
from selective_rollout.integrations.gateway.desk import Desk, GroupFacts, Write
from selective_rollout.integrations.gateway.member import Member
from selective_rollout.integrations.gateway.threads import Threads
from selective_rollout.trace.convert import decision_event
from selective_rollout.trace.reader import ReadReport, RecordedGroup, read_groups
from selective_rollout.trace.schema import Event
from selective_rollout.types import Rollout, RolloutStatus


def take_up(
    path: Path, book: Book, config: GatewayConfig, write: Write, report: ReadReport | None = None
) -> tuple[int, int]:
    """Fill a book with the groups of a trace.

    Args:
        path: the trace file.
        book: takes the groups.
        config: how the gateway is set up.
        write: takes the events that follow.
        report: collects what the reader repaired.

    Returns:
        How many groups go on, and how many have ended.

    Raises:
        TraceError: the trace is unreadable.
    """
    ended: deque[RecordedGroup] = deque(maxlen=config.limits.ended_groups)
    going = over = 0
    for recorded in read_groups(path, report=report):
        if recorded.end is None:
            book.take(_desk(recorded, config, write, book.clock()))
            going += 1
            continue
        if len(ended) == ended.maxlen:
            book.forget(ended[0].group.id)
        ended.append(recorded)
        over += 1
    for recorded in ended:
        book.take(_desk(recorded, config, write, book.clock()))
    return going, over


class _Tap:
    """Keeps events from being written twice while they are told again."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self.open = False

    def __call__(self, event: Event) -> None:
        if self.open:
            self._write(event)


def _desk(recorded: RecordedGroup, config: GatewayConfig, write: Write, now: float) -> Desk:
    tap = _Tap(write)
    desk = Desk(_facts(recorded, config), config, tap, now)
    if any(decision.reason is Reason.DISABLED for decision in recorded.decisions):
        desk.switch_off()  # before its steps are told: what stood at the check then may all agree by now
    was_cut = any(rollout.status is RolloutStatus.CUT for rollout in recorded.group.rollouts)
    for rollout in recorded.group.rollouts:
        _replay(desk, desk.members[rollout.index], rollout, recorded, was_cut=was_cut)
    fired = desk.gate.fired
    if fired is not None and (was_cut or recorded.end is None):
        desk.control.note(fired)
    for rollout in recorded.group.rollouts:
        if rollout.status.ended_normally and rollout.reward is not None and (was_cut or rollout.late_reward):
            desk.gate.score(rollout.index, rollout.reward)
    if recorded.end is not None:
        desk.settle(now)
    tap.open = True
    for check in desk.gate.checks[len(recorded.decisions) :]:
        write(decision_event(recorded.group.id, recorded.group.attempt, check))
    desk.settle(now)
    return desk


def _facts(recorded: RecordedGroup, config: GatewayConfig) -> GroupFacts:
    scope, _, name = recorded.group.id.rpartition("/")
    return GroupFacts(
        scope=scope,
        name=name,
        size=recorded.group.size,
        task_id=recorded.group.task_id,
        mode=recorded.begin.mode or config.run.mode,
        audited=bool(recorded.begin.audit),
        metadata=recorded.group.metadata,
        attempt=recorded.group.attempt,
        place=-1,
    )


def _replay(desk: Desk, member: Member, rollout: Rollout, recorded: RecordedGroup, *, was_cut: bool) -> None:
    """Tell the gate what a member did, as it heard it.

    A cut that was carried out stands, so rewards come after it; they may have done so the first time.
    """
    index, log = rollout.index, desk.log
    steps = list(rollout.steps)
    with_end = rollout.status.ended_normally and bool(steps) and not _told_apart(rollout, recorded)
    for step in steps:
        log.write_step(index, step)
        if step is not steps[-1] or not with_end:
            log.report(index, step.action)
        if step.usage is not None:
            member.ledger.add(step.usage)
    member.steps, member.last_action = len(steps), steps[-1].action if steps else None
    member.threads = Threads(rollout.actions)
    if rollout.status.ended_normally:
        early = None if was_cut or rollout.late_reward else rollout.reward
        last = steps[-1].action if with_end else None
        log.finish(index, early, rollout.answer, last_action=last)
    elif rollout.status is RolloutStatus.FAILED:
        failure = rollout.failure
        log.fail(index, failure.kind if failure else "unknown", failure.message if failure else "")
    member.status, member.answer, member.reward = rollout.status, rollout.answer, rollout.reward
    member.failure = rollout.failure
    if not member.running and rollout.status is not RolloutStatus.CUT:
        desk.control.ended(index, failed=rollout.status is RolloutStatus.FAILED, answer=rollout.answer)


def _told_apart(rollout: Rollout, recorded: RecordedGroup) -> bool:
    """Whether the gate looked at the last action before it knew that the rollout ended with it."""
    facts = (decision.facts for decision in recorded.decisions)
    last = len(rollout.steps)
    return any(read is not None and read.step == last and rollout.index in read.running for read in facts)
