"""Following TRL's tool loop from outside: what each turn of each row was, told to the row's group.

The loop keeps one list of messages per row and appends to it: the model's message, then one message per tool
call. When it asks for the next turn, the rows it asks for are those whose list has grown by tool messages
since. A row that it does not ask for any more has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from selective_rollout.actions import ActionOptions, from_message
from selective_rollout.engine.training import Facts
from selective_rollout.integrations.trl.batch import GateBatch
from selective_rollout.types import Usage

Message = Mapping[str, Any]


class ToolLoop:
    """Reports the turns of one generation batch.

    Args:
        batch: the groups of the rows.
        completions: completions[i]: the messages of row i so far, appended to by the trainer.
        tokens: tokens[i]: how many the first turn of row i has.
        options: how messages become actions.
    """

    def __init__(
        self,
        batch: GateBatch,
        completions: Sequence[list[Message]],
        tokens: Sequence[int],
        options: ActionOptions,
    ) -> None:
        self._completions = completions
        self._tokens = list(tokens)
        self._options = options
        self._told = [0] * len(completions)
        self._slots = [(slot, member) for _, slot, member in batch.members()]
        self._live = {row for row, (slot, _) in enumerate(self._slots) if slot.group is not None}

    def next_turn(self) -> list[int]:
        """The rows that the trainer is about to generate for, once all that happened was reported."""
        asked = [row for row in range(len(self._completions)) if self._has_news_from_tools(row)]
        for row in sorted(self._live.difference(asked)):
            self._end(row)
        for row in asked:
            self._told[row] = len(self._completions[row])
            if row in self._live and not self.stopped(row):
                self._report(row)
        return asked

    def generated(self, row: int, tokens: int) -> None:
        """A turn of this row has come."""
        self._tokens[row] = tokens

    def stopped(self, row: int) -> bool:
        """Whether nothing more is to be generated for this row."""
        return self._slots[row][0].dropped

    def end(self) -> None:
        """The loop is over."""
        for row in sorted(self._live):
            self._end(row)

    def _has_news_from_tools(self, row: int) -> bool:
        messages = self._completions[row]
        return len(messages) > self._told[row] and messages[-1]["role"] == "tool"

    def _report(self, row: int) -> None:
        slot, member = self._slots[row]
        assert slot.group is not None
        message, replies = _last_turn(self._completions[row])
        facts = Facts(
            usage=self._usage(row), observation="\n".join(str(reply["content"]) for reply in replies)
        )
        slot.group.step(member, from_message(message, self._options), **facts)

    def _end(self, row: int) -> None:
        """The trainer let go of it: the model called no tool, or it ran into a limit."""
        self._live.discard(row)
        slot, member = self._slots[row]
        if slot.group is None or slot.group.stopped:
            return
        message, replies = _last_turn(self._completions[row])
        if replies:  # already reported; the turn after it was truncated to nothing
            slot.group.finish(member, truncated=True)
            return
        slot.group.finish(
            member,
            action=from_message(message, self._options),
            truncated=bool(message.get("tool_calls")),
            usage=self._usage(row),
        )

    def _usage(self, row: int) -> Usage:
        return Usage(completion=self._tokens[row], source="client")


def _last_turn(messages: Sequence[Message]) -> tuple[Message, list[Message]]:
    """The model's last message, and the tools' replies to it."""
    replies: list[Message] = []
    for message in reversed(messages):
        if message["role"] != "tool":
            return message, replies[::-1]
        replies.append(message)
    raise AssertionError("a completion begins with the model's message")
