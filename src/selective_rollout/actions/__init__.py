"""Canonical actions: one symbol for what a model did in one step.

`read_action` takes the action out of a message, `canonicalise` makes the symbol, `from_message` does both.
"""

from selective_rollout.actions.answer import default_answer
from selective_rollout.actions.canonical import canonicalise, changes_world, tool_names
from selective_rollout.actions.options import DEFAULT_OPTIONS, ActionOptions
from selective_rollout.actions.raw import RawAction, RawCall
from selective_rollout.actions.read import read_action
from selective_rollout.actions.transcript import from_message, from_messages

__all__ = [
    "DEFAULT_OPTIONS",
    "ActionOptions",
    "RawAction",
    "RawCall",
    "canonicalise",
    "changes_world",
    "default_answer",
    "from_message",
    "from_messages",
    "read_action",
    "tool_names",
]
