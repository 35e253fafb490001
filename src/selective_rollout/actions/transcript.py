"""Canonical actions of one message, and of a whole conversation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from selective_rollout.actions.canonical import canonicalise
from selective_rollout.actions.items import join_items
from selective_rollout.actions.options import DEFAULT_OPTIONS, ActionOptions
from selective_rollout.actions.raw import RawAction, RawCall
from selective_rollout.actions.read import is_assistant, read_action


def from_message(message: Any, options: ActionOptions = DEFAULT_OPTIONS) -> str:
    """Return the canonical action of one assistant message (see `read_action`, `canonicalise`)."""
    return canonicalise(read_action(message, options), options)


def from_messages(messages: Iterable[Any], options: ActionOptions = DEFAULT_OPTIONS) -> list[str]:
    """Return the canonical actions of one rollout's conversation, `actions[k - 1]` for step k.

    Every assistant message is one step, however the log numbers its lines; other messages are none. Items of
    OpenAI's Responses API are one step as far as they follow each other. A message
    whose calls all came before with the same ids and the same arguments is a retry and counts once; the same
    call under a new id is a real repeat. An id that carried different calls is being reused by the server
    and proves nothing.
    """
    actions = [read_action(message, options) for message in join_items(messages) if is_assistant(message)]
    return [canonicalise(action, options) for action in _without_retries(actions)]


def _without_retries(actions: list[RawAction]) -> Iterator[RawAction]:
    known: defaultdict[str, set[str]] = defaultdict(set)
    for action in actions:
        for call in action.calls:
            if call.id is not None:
                known[call.id].add(_identity(call))
    trusted = {call_id for call_id, calls in known.items() if len(calls) == 1}
    seen: set[str] = set()
    for action in actions:
        ids = [call.id for call in action.calls]
        if ids and all(call_id in trusted and call_id in seen for call_id in ids):
            continue
        seen.update(call_id for call_id in ids if call_id is not None)
        yield action


def _identity(call: RawCall) -> str:
    return canonicalise(RawAction(calls=(call,)))
