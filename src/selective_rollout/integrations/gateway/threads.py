"""Which turns of a conversation are new.

Clients send the whole conversation with every request, so a request tells what was done, however often it is
repeated. Agents also shorten their history, start it afresh, or lead several conversations: each is a thread
of its own, known by its opening.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from selective_rollout.integrations.gateway.answer import Answer
from selective_rollout.integrations.gateway.conversation import (
    Conversation,
    Said,
    Turn,
    waits_for_client,
)

_MOST_THREADS: Final = 64
_LONGEST_OVERLAP: Final = 256


class Pending:
    """An answer that no later request has shown yet: the client may drop it, or end with it.

    Its action is read when it is asked for, which is seldom: the next request tells it as well.

    Args:
        answer: the answer, with its message.
        message: that message.
        read: reads what a message does.
        offered_tools: whether the request for it offered tools.
    """

    def __init__(
        self,
        answer: Answer,
        message: Mapping[str, Any],
        read: Callable[[Mapping[str, Any]], Said],
        offered_tools: bool,
    ) -> None:
        self.answer = answer
        self.offered_tools = offered_tools
        self.looks_final = not waits_for_client(message)
        """Whether agents end on such an answer: it calls nothing."""
        self._message = message
        self._read = read
        self._said: Said | None = None

    @property
    def said(self) -> Said:
        """What it does."""
        if self._said is None:
            self._said = self._read(self._message)
        return self._said

    def is_shown_by(self, said: Said) -> bool:
        """Whether a request's turn is this answer."""
        calls = self._message.get("tool_calls")
        if calls and said.calls:
            return tuple(call.get("id") for call in calls) == said.calls
        return self.said.same(said)


@dataclass(slots=True)
class Thread:
    """One conversation of a rollout."""

    known: list[Said] = field(default_factory=list)
    """Turns that were seen in it."""
    pending: Pending | None = None
    continued: str | None = None
    """Id of the stored response that the last request continued."""


class Threads:
    """The conversations of one rollout.

    Args:
        recorded: actions of a rollout that is taken up from a trace.
    """

    def __init__(self, recorded: Sequence[str] = ()) -> None:
        self._recorded = [Said(action, None) for action in recorded]
        self._threads: OrderedDict[int, Thread] = OrderedDict()

    @property
    def latest(self) -> Thread | None:
        """The conversation that the last request belonged to."""
        return next(reversed(self._threads.values()), None)

    @property
    def all(self) -> tuple[Thread, ...]:
        """Every conversation, the least recent first."""
        return tuple(self._threads.values())

    def advance(self, conversation: Conversation) -> tuple[Thread, Sequence[Turn]]:
        """File a request under its thread.

        Returns:
            The thread, and the turns that are new in it. A thread that opens with turns in it has none: those
            are examples, or a past that nobody recorded.
        """
        turns = conversation.turns
        said = [turn.said for turn in turns]
        thread = self._threads.get(conversation.opening)
        if thread is None:
            thread = self._continued(said)
            self._keep(conversation.opening, thread)
            if not thread.known:
                thread.known = self._baseline(said)
        self._threads.move_to_end(conversation.opening)
        start = first_new(thread.known, said)
        if start < len(said):
            thread.known = said
        return thread, turns[start:]

    def continuing(self, response_id: str) -> Thread | None:
        """The thread whose last answer has this id, or that continued it before."""
        for opening, thread in reversed(self._threads.items()):
            pending = thread.pending
            if response_id in ((pending.answer.id if pending else None), thread.continued):
                self._threads.move_to_end(opening)
                return thread
        return None

    def _continued(self, said: Sequence[Said]) -> Thread:
        """The latest thread if the conversation goes on with it under a shortened history, else a new one."""
        latest = self.latest
        if latest is not None and latest.known and said and first_new(latest.known, said) > 0:
            opening = next(reversed(self._threads))
            del self._threads[opening]
            return latest
        return Thread()

    def _baseline(self, said: list[Said]) -> list[Said]:
        """Turns that do not count: all of them, or those up to the end of what a trace holds."""
        recorded, self._recorded = self._recorded, []
        if not recorded:
            return list(said)
        if len(said) < len(recorded) and all(old.same(new) for old, new in zip(recorded, said, strict=False)):
            return recorded
        for start in range(len(said) - len(recorded) + 1):
            window = said[start : start + len(recorded)]
            if all(old.same(new) for old, new in zip(recorded, window, strict=True)):
                return said[: start + len(recorded)]
        return list(said)

    def _keep(self, opening: int, thread: Thread) -> None:
        self._threads[opening] = thread
        while len(self._threads) > _MOST_THREADS:
            self._threads.popitem(last=False)


def first_new(known: Sequence[Said], now: Sequence[Said]) -> int:
    """The first place in `now` from which on nothing is known.

    Args:
        known: turns seen before.
        now: turns of a request: the same, more, fewer (an older request again), or others after a common
            beginning; also some in the middle may have been left out to shorten it.
    """
    prefix = 0
    for old, new in zip(known, now, strict=False):
        if not old.same(new):
            break
        prefix += 1
    rest, tail = now[prefix:], known[prefix:]
    for length in range(min(len(rest), len(tail), _LONGEST_OVERLAP), 0, -1):
        if all(old.same(new) for old, new in zip(tail[-length:], rest[:length], strict=True)):
            return prefix + length
    return prefix
